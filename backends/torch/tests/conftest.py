"""The device in Python of this process, and the backend under test."""

import pytest

from tests.support.expected_parts import backend_or_skip
from tests.support.frozen_objects import older_objects_are_frozen  # noqa: F401 - for pytest to find
from tests.support.nightly_parts import pytest_itemcollected  # noqa: F401 - for pytest to find
from tests.support.not_run import pytest_terminal_summary  # noqa: F401 - for pytest to find


@pytest.fixture
def late():
    """The module of the device; torch is imported for it."""
    from backends.torch.tests import late_device

    return late_device


@pytest.fixture
def backend(late):
    return backend_or_skip("torch-late")
