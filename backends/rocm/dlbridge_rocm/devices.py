"""The thread's current device, and attributes of devices.

HIP has no contexts to push: most calls mean the current device of the calling
thread, which is left as it was found.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from .driver import INVALID_VALUE, call, check, guard, status
from .library import constant, ffi

__all__ = ["attribute", "run"]

T = TypeVar("T")

_RELAXED: int = constant("hipStreamCaptureModeRelaxed")


@cache
def attribute(device_id: int, name: str) -> int:
    """The device attribute *name*, without its ``hipDeviceAttribute``; 0 if HIP knows none."""
    value = ffi.new("int *")
    which = constant(f"hipDeviceAttribute{name}")
    code = status("hipDeviceGetAttribute", value, which, device_id)
    if code == INVALID_VALUE:
        return 0
    check("hipDeviceGetAttribute", code)
    return int(value[0])


def run(device_id: int, work: Callable[..., T], *arguments: Any) -> T:
    """Call *work* on *device_id*, relaxed; the thread's own device and mode are back after it.

    Allocating, freeing and waiting would otherwise invalidate a capture anywhere in the process
    (``hipThreadExchangeStreamCaptureMode``; StreamCaptureOngoing in AMD's hip_stream.cpp).
    """
    if guard.in_child:
        guard.check()
    own, mode = ffi.new("int *"), ffi.new("hipStreamCaptureMode *", _RELAXED)
    call("hipGetDevice", own)
    try:
        try:
            if own[0] != device_id:
                call("hipSetDevice", device_id)
            call("hipThreadExchangeStreamCaptureMode", mode)  # now it holds the old mode
            return work(*arguments)
        finally:
            _leave(own[0], device_id, mode)
    except BaseException:  # a signal handler's may have cut off the first
        _leave(own[0], -1, mode)
        raise


def _leave(own: int, device_id: int, mode: Any) -> None:
    """Put back what is not back yet."""
    if mode[0] != _RELAXED:
        call("hipThreadExchangeStreamCaptureMode", mode)  # now it holds `_RELAXED` again
    if own != device_id:
        call("hipSetDevice", own)
