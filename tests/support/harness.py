"""Compiles ``harness.c``, the foreign C library of the tests, and loads it."""

from __future__ import annotations

import ctypes
import os
import subprocess
from functools import cache
from pathlib import Path

_FOLDER = "DLBRIDGE_TEST_HARNESS"
"""Environment variable: where a parent process has compiled it already."""


@cache
def path() -> str:
    """The compiled library. Skips the test where there is no C compiler."""
    if folder := os.environ.get(_FOLDER):
        return str(Path(folder, "libharness.so"))
    from tests.support.expected_parts import (
        compiler_or_skip,  # a process that a parent compiled for needs no pytest
    )
    from tests.support.temporary_folders import new_folder

    compiler = compiler_or_skip(os.environ.get("CC", "gcc"))
    folder = new_folder("harness")
    target = str(Path(folder, "libharness.so"))
    source = str(Path(__file__).with_name("harness.c"))
    subprocess.run(
        [compiler, "-Wall", "-Werror", "-O1", "-shared", "-fPIC", "-pthread", "-o", target, source],
        check=True,
    )
    os.environ[_FOLDER] = folder  # for the subprocesses of tests
    return target


def load(*, keep_gil: bool = False) -> ctypes.CDLL:
    """The library; with *keep_gil* its functions run with the GIL held."""
    library = (ctypes.PyDLL if keep_gil else ctypes.CDLL)(path())
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    for name, result, arguments in (
        ("hold", None, [pointer]),
        ("hold_until_exit", None, [pointer]),
        ("delete_in_thread", integer, [pointer]),
        ("delete_late", integer, [pointer]),
        ("delete", None, [pointer]),
        ("delete_with_error", None, [pointer]),
        ("from_py_object", integer, [pointer, ctypes.py_object, pointer, pointer]),
        ("repeat_from_py_object", ctypes.c_long, [pointer, ctypes.py_object, ctypes.c_long]),
        ("errors", integer, []),
        ("kind", ctypes.c_char_p, []),
        ("message", ctypes.c_char_p, []),
        ("allocate", integer, [pointer, pointer, pointer, integer]),
        ("current_work_stream", integer, [pointer, ctypes.c_int32, ctypes.c_int32, pointer]),
    ):
        function = getattr(library, f"harness_{name}")
        function.restype, function.argtypes = result, arguments
    return library
