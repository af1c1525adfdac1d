"""Calls of the driver: one thread at a time where it must be, and none while the process ends.

pyopencl releases the GIL while the driver works, so several threads can be in
the driver at once. OpenCL allows that; Oclgrind 21.10 crashes (measured).

At exit, before Python 3.14, a daemon thread that asks for the GIL after the
interpreter has ended is unwound through C++ frames, and that aborts the process
("terminate called without an active exception"). So at exit calls that have
begun are waited for, and new ones are refused (`ending` asks for that).
"""

from __future__ import annotations

import threading
import time

from dlbridge.errors import DeviceError

__all__ = ["Call", "keep_to_this_thread"]

# Single operations on a dict are atomic, so a finalizer may run between any two.
_calls: dict[Call, int] = {}  # call -> thread
_last_thread: list[int] = []  # the thread that ends the process, once it does


class Call:
    """``with device.lock, Call():`` around what releases the GIL or changes the driver's state.

    The lock is a context manager of its own, entered by C code: a Ctrl-C cannot
    come between acquiring it and the block. Finalizers do not use `Call`, as they
    must not wait for another thread. DeviceError in every thread but the one that
    ends the process, once it does.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        thread = threading.get_ident()
        _calls[self] = thread
        if _last_thread and thread not in _last_thread:
            _calls.pop(self, None)
            raise DeviceError("opencl: the process is ending; join your threads before that")

    def __exit__(self, *exc: object) -> None:
        _calls.pop(self, None)


def keep_to_this_thread(deadline: float) -> None:
    """Refuse calls of other threads from now on, and wait until *deadline* for those that run.

    *deadline* is a time of `time.monotonic`.
    """
    thread = threading.get_ident()
    _last_thread.append(thread)
    while any(other != thread for other in list(_calls.values())):
        if time.monotonic() > deadline:
            return
        time.sleep(0.001)
