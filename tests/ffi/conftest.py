"""The library under test with its own test functions, and scripts in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from expected import expected

from dlbridge import ffi
from dlbridge.core._cdefs import ffi as cffi
from dlbridge.errors import LibraryUnavailable

ROOT = Path(__file__).resolve().parents[2]

try:
    assert ffi.version
except LibraryUnavailable:
    # Where the library is expected, the tests themselves fail for want of it.
    if not expected("peers"):
        collect_ignore_glob = ["test_*.py"]

sys.path.insert(0, str(Path(__file__).parent))  # for `producers`

LOAD_TESTING = """
from dlbridge import ffi
from dlbridge.errors import LibraryUnavailable
from dlbridge.core._cdefs import ffi as cffi
testing_library = cffi.dlopen(
    ffi.library_path.replace("libtvm_ffi.", "libtvm_ffi_testing."), cffi.RTLD_NOW
)
def testing(name):
    return ffi.get_global_func("testing." + name)
"""


@pytest.fixture(scope="session")
def testing():
    """``testing("echo")`` is the global function ``testing.echo``."""
    path = ffi.library_path.replace("libtvm_ffi.", "libtvm_ffi_testing.")
    library = cffi.dlopen(path, cffi.RTLD_NOW)

    def get(name):
        assert library  # alive as long as its functions
        return ffi.get_global_func(f"testing.{name}")

    return get


@pytest.fixture
def echo(testing):
    return testing("echo")


@pytest.fixture
def apply(testing):
    """``apply(f, *args)`` is ``f(*args)``, called by C++."""
    return testing("apply")


@pytest.fixture
def run_script(tmp_path):
    """Run a script in a process of its own, with `testing` defined; ``(code, output)``."""

    def run(source, *, prelude=LOAD_TESTING, timeout=600, env=None):
        script = tmp_path / "script.py"
        script.write_text(prelude + textwrap.dedent(source))
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", str(script)],
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        code = done.returncode
        return (signal.Signals(-code).name if code < 0 else code), done.stdout

    return run
