"""Intel's CPU runtime for this process and its children, and the backend under test."""

import os

import pytest

from tests.support.expected_parts import backend_or_skip, expected
from tests.support.frozen_objects import older_objects_are_frozen  # noqa: F401 - for pytest to find
from tests.support.intel import RUNTIME
from tests.support.nightly_parts import pytest_itemcollected  # noqa: F401 - for pytest to find
from tests.support.not_run import pytest_terminal_summary  # noqa: F401 - for pytest to find
from tests.support.working_drivers import leave_out

if RUNTIME.exists():
    os.environ.setdefault("OCL_ICD_FILENAMES", str(RUNTIME))


def pytest_configure():
    leave_out("oneapi")


@pytest.fixture
def oneapi():
    return backend_or_skip("oneapi")


@pytest.fixture
def dpnp(oneapi):
    """The array library of oneAPI, which is large and not needed otherwise."""
    try:
        import dpnp
    except ImportError as exc:
        if expected("oneapi"):
            raise
        pytest.skip(f"dpnp: {exc}")
    return dpnp
