"""What the tests of all backends use."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "support"))

from frozen import older_objects_are_frozen  # noqa: F401 - for pytest to find
from nightly import pytest_itemcollected  # noqa: F401 - for pytest to find
from not_run import pytest_terminal_summary  # noqa: F401 - for pytest to find
