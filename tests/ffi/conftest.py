"""The library under test with its own test functions, and scenes in processes of their own."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from cffi import FFI

from dlbridge import ffi
from dlbridge.abi import ffi as cffi
from dlbridge.errors import LibraryUnavailable
from tests.support.expected_parts import expected
from tests.support.scripts import SCENES, finished

ROOT = Path(__file__).resolve().parents[2]

try:
    assert ffi.version
except LibraryUnavailable:
    # Where the library is expected, the tests themselves fail for want of it.
    if not expected("peers"):
        collect_ignore_glob = ["test_*.py"]


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


@pytest.fixture(scope="session")
def plain_library(tmp_path_factory):
    """The library made of ``kernels/plain.c``."""
    from tests.ffi.building import KERNELS, build  # which load libtvm_ffi

    return build(KERNELS / "plain.c", tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def foreign_call():
    """``foreign_call(f)`` calls *f* in threads that Python has not made."""
    from dlbridge.ffi._lib import C

    foreign = FFI()
    foreign.cdef(
        "int pthread_create(unsigned long *, void *, void *(*)(void *), void *);"
        "int pthread_join(unsigned long, void **);"
    )
    libc = foreign.dlopen(None)

    def call(function, threads=1, turns=1):
        @foreign.callback("void *(void *)")
        def start(_argument):
            result = cffi.new("TVMFFIAny *")
            for _ in range(turns):
                C.TVMFFIFunctionCall(function._pointer, cffi.NULL, 0, result)
            return foreign.NULL

        made = foreign.new("unsigned long[]", threads)
        for place in range(threads):
            assert libc.pthread_create(made + place, foreign.NULL, start, foreign.NULL) == 0
        for thread in made:
            assert libc.pthread_join(thread, foreign.NULL) == 0

    return call


@pytest.fixture
def run_scene():
    """Run a scene of tests/scenes/ffi in a process of its own; ``(code or signal, output)``.

    The process has imported the FFI, and has not loaded the library. That of *fresh* has not.
    """

    def run(file, name, *arguments, env=None, fresh=False):
        program = SCENES / "run.py", f"ffi.{file}", name, *arguments
        done = finished(
            *program,
            env=env,
            imported=() if fresh else ("numpy", "tests.support.whole_core", "dlbridge.ffi"),
        )
        code = done.returncode
        return (signal.Signals(-code).name if code < 0 else code), done.stdout + done.stderr

    return run
