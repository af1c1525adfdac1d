"""What all tests use: devices, hypothesis's settings, the marks of tests that start programs."""

import os
import sys
import tempfile

# Without one, Mesa writes to stderr when wgpu looks for devices.
os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())

import hypothesis

from tests.support import temporary_folders as folders
from tests.support.device_fixtures import device, register, reported  # noqa: F401 - for pytest to find
from tests.support.frozen_objects import older_objects_are_frozen  # noqa: F401 - for pytest to find
from tests.support.not_run import pytest_terminal_summary  # noqa: F401 - for pytest to find
from tests.support.working_drivers import leave_out

# A busy machine is no reason to fail.
unhurried = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("unhurried", deadline=None, suppress_health_check=unhurried)
hypothesis.settings.load_profile("unhurried")


STARTERS = {
    *("subprocess", "multiprocessing"),
    *("finished", "run_script", "run_scene", "run_command", "run_pytest"),
}
"""A module that has one of these names runs programs in processes of their own."""


def pytest_configure():
    leave_out("opencl", "vulkan", simulators=False)


def pytest_collection_modifyitems(items):
    """Mark the tests that `make test-quick` leaves out: those of a module that starts programs."""
    for item in items:
        names = {*vars(item.module), *getattr(item, "fixturenames", ())}
        if not STARTERS.isdisjoint(names):
            item.add_marker("programs")


def pytest_sessionfinish():
    """Remove folders, finalize MPI: workers end without their exit functions."""
    folders.pytest_sessionfinish()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and not mpi.Is_finalized():
        mpi.Finalize()
