"""Intel's CPU runtime for this process and its children, and the backend under test."""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "tests" / "support")]

from expected import backend_or_skip, expected  # noqa: E402 - found by the line above
from frozen import older_objects_are_frozen  # noqa: E402, F401 - for pytest to find
from nightly import pytest_itemcollected  # noqa: E402, F401 - for pytest to find
from not_run import pytest_terminal_summary  # noqa: E402, F401 - for pytest to find
from working import leave_out  # noqa: E402

_runtime = Path(sys.prefix) / "lib" / "libintelocl.so"
if _runtime.exists():
    os.environ.setdefault("OCL_ICD_FILENAMES", str(_runtime))


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
