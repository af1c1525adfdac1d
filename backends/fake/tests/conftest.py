"""What the tests of all backends use."""

from tests.support.frozen_objects import older_objects_are_frozen  # noqa: F401 - for pytest to find
from tests.support.nightly_parts import pytest_itemcollected  # noqa: F401 - for pytest to find
from tests.support.not_run import pytest_terminal_summary  # noqa: F401 - for pytest to find
