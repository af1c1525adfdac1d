"""Calls in both directions: functions of C and of Python, their registry and environment."""
