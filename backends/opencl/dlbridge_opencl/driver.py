"""Entry to the driver: one thread at a time where it must be, and none once the process ends.

pyopencl gives up the GIL while the driver works, so threads meet there. OpenCL
is safe for that; Oclgrind 21.10 is not: it crashes (measured).

At exit, before Python 3.14, a daemon thread that comes back for the GIL after
the interpreter has ended is unwound through C++ frames, and that aborts the
process ("terminate called without an active exception"). So at exit calls that
have begun are awaited, and new ones are refused (`ending` asks for that).
"""

from __future__ import annotations

import threading
import time

from dlbridge.errors import DeviceError

from . import devices

__all__ = ["InDriver", "keep_to_this_thread"]

_one_at_a_time = threading.RLock()
# Single operations on a dict are atomic, so that finalizers may come in anywhere.
_inside: dict[InDriver, int] = {}  # call -> thread
_last_thread: list[int] = []  # the one that ends the process, once it does


class InDriver:
    """``with InDriver(device_id):`` around what gives up the GIL or changes the driver's state.

    Not in finalizers: they must not wait for another thread. DeviceError in any
    thread but the one that ends the process, once it does.
    """

    __slots__ = ("_lock",)

    def __init__(self, device_id: int) -> None:
        self._lock = None if devices.device(device_id).thread_safe else _one_at_a_time

    def __enter__(self) -> None:
        if self._lock is not None:
            self._lock.acquire()
        thread = threading.get_ident()
        _inside[self] = thread
        if _last_thread and thread not in _last_thread:
            self.__exit__()
            raise DeviceError("opencl: the process is ending; join your threads before that")

    def __exit__(self, *exc: object) -> None:
        _inside.pop(self, None)
        if self._lock is not None:
            self._lock.release()


def keep_to_this_thread(deadline: float) -> None:
    """Refuse every other thread from now on, and wait for those inside, until `time.monotonic`."""
    thread = threading.get_ident()
    _last_thread.append(thread)
    while any(other != thread for other in list(_inside.values())):
        if time.monotonic() > deadline:
            return
        time.sleep(0.001)
