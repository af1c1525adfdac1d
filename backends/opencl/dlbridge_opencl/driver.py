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
from typing import TYPE_CHECKING, Any, NoReturn

import pyopencl as cl
from pyopencl import _cl

from dlbridge.errors import DeviceError

from .errors import translated

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Call", "call", "keep_to_this_thread", "read_buffer", "write_buffer"]


def _read(queue: Any, buffer: Any, into: Any, offset: int, _: None, blocks: bool) -> object:
    return cl.enqueue_copy(queue, into, buffer, src_offset=offset, is_blocking=blocks)


def _write(queue: Any, buffer: Any, source: Any, offset: int, _: None, blocks: bool) -> object:
    return cl.enqueue_copy(queue, buffer, source, dst_offset=offset, is_blocking=blocks)


# What enqueue_copy calls when it has looked at its arguments, which takes as long again. Both
# are called with queue, buffer, host memory, offset, None, and whether to block.
read_buffer: Callable[..., object] = getattr(_cl, "_enqueue_read_buffer", _read)
write_buffer: Callable[..., object] = getattr(_cl, "_enqueue_write_buffer", _write)

# Single operations on a dict are atomic, so a finalizer may run between any two.
_calls: dict[object, int] = {}  # call -> thread
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
            _refuse()

    def __exit__(self, *exc: object) -> None:
        _calls.pop(self, None)


def call(doing: str, function: Callable[..., object], *arguments: object) -> None:
    """Call *function* as in ``with Call()``, for drivers that several threads may call at once.

    An error of OpenCL is translated; *doing* names the call in it.
    """
    key, thread = object(), threading.get_ident()
    _calls[key] = thread
    try:
        if _last_thread and thread not in _last_thread:
            _refuse()
        function(*arguments)
    except cl.Error as exc:
        raise translated(exc, doing) from exc
    finally:
        _calls.pop(key, None)


def _refuse() -> NoReturn:
    raise DeviceError("opencl: the process is ending; join your threads before that")


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
