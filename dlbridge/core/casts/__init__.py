"""Conversions between dtypes, in host memory."""
