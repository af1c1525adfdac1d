"""What the scenes of the FFI share.

Each checks by itself what it is about, and prints nothing: `tests/ffi/test_scenes.py` has a table of
them.
"""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from dlbridge import ffi
from dlbridge.abi import ffi as cffi


@cache
def testing_library() -> Any:
    return cffi.dlopen(
        ffi.library_path.replace("libtvm_ffi.", "libtvm_ffi_testing."), cffi.RTLD_NOW
    )


def testing(name: Any) -> Any:
    """The global function ``testing.NAME``, of the library's own test functions."""
    testing_library()
    return ffi.get_global_func(f"testing.{name}")


def at_once(*works: Any) -> None:
    """Do all *works*, each in a thread; an exception of one is raised."""
    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result()


def daemons(count: Any, work: Any) -> None:
    """Let so many daemon threads do *work*, until the process ends."""
    for _ in range(count):
        threading.Thread(target=work, daemon=True).start()


def turns(seconds: Any) -> Any:
    """0, 1, ... until so many seconds have passed, and 0 in any case."""
    end = time.monotonic() + seconds
    return itertools.takewhile(lambda turn: not turn or time.monotonic() < end, itertools.count())


def raised(kind: Any, function: Any, *arguments: Any) -> Any:
    """The exception of class *kind* that the call raises."""
    try:
        result = function(*arguments)
    except kind as error:
        return error
    raise AssertionError(f"{function} returned {result}")
