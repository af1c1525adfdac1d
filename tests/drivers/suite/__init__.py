"""Tests that every backend on a `dlbridge.kit.driver.StreamDriver` passes, on a simulated driver.

A backend's conftest makes a `rig.Rig` of its own and calls `rig.use`; its test modules import
the tests: ``from suite.streams import *``.
"""
