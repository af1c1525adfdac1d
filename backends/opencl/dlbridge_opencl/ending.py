"""Keeps daemon threads out of the driver while the process ends.

pyopencl gives up the GIL while the driver works. Before Python 3.14 a daemon
thread that wants it back after the interpreter has ended is unwound through
C++ frames, and that aborts the process ("terminate called without an active
exception"). So at exit such calls are awaited, and new ones are refused.
"""

from __future__ import annotations

import atexit
import threading
import time

from dlbridge.errors import DeviceError

__all__ = ["InDriver", "enter", "leave"]

PATIENCE = 10.0
"""Seconds to wait at exit for a call in another thread."""

# Single operations on a dict are atomic, so that finalizers may come in anywhere.
_inside: dict[object, int] = {}  # call -> thread
_last_thread: list[int] = []  # the one that ends the process, once it does


class InDriver:
    """``with InDriver():`` around calls that give up the GIL.

    DeviceError in any thread but the one that ends the process, once it does.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        enter(self)

    def __exit__(self, *exc: object) -> None:
        leave(self)


def enter(call: object) -> None:
    """Begin *call*; DeviceError as `InDriver`."""
    thread = threading.get_ident()
    _inside[call] = thread
    if _last_thread and thread not in _last_thread:
        leave(call)
        raise DeviceError("opencl: the process is ending; join your threads before that")


def leave(call: object) -> None:
    """End *call*."""
    _inside.pop(call, None)


@atexit.register
def _end() -> None:
    thread = threading.get_ident()
    _last_thread.append(thread)
    deadline = time.monotonic() + PATIENCE
    while any(other != thread for other in list(_inside.values())):
        if time.monotonic() > deadline:
            return
        time.sleep(0.001)
