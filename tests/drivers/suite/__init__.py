"""Tests that every backend on a `dlbridge.kit.driver.StreamDriver` passes, on a simulated driver.

A backend's conftest makes a `rig.Rig` of its own, calls `rig.use` and imports what `fixtures` has
for pytest. Its `test_common.py` imports the modules with the tests: ``from tests.drivers.suite import streams``
makes ``test_common.py::streams::test_...``.
"""
