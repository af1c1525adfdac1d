"""Stands for the Python package of a driver."""
