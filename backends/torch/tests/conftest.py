"""The device in Python of this process, and the backend under test."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "tests" / "support")]

from expected import backend_or_skip  # noqa: E402 - found by the line above
from frozen import older_objects_are_frozen  # noqa: E402, F401 - for pytest to find
from nightly import pytest_itemcollected  # noqa: E402, F401 - for pytest to find
from not_run import pytest_terminal_summary  # noqa: E402, F401 - for pytest to find


@pytest.fixture
def late():
    """The module of the device; torch is imported for it."""
    import late_device

    return late_device


@pytest.fixture
def backend(late):
    return backend_or_skip("torch-late")
