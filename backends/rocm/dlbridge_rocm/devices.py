"""The thread's current device, and attributes of devices.

HIP has no contexts to push: most calls mean the current device of the calling
thread, which is left as it was found.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from .driver import INVALID_VALUE, answer, call, check, guard, status
from .library import constant, ffi

__all__ = ["attribute", "current"]


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


class current:  # noqa: N801  # reads as a function in `with current(device_id):`
    """Make *device_id* the thread's current device inside ``with``, and restore it after."""

    __slots__ = ("_before", "_device_id")

    def __init__(self, device_id: int) -> None:
        self._device_id = device_id

    def __enter__(self) -> None:
        guard.check()
        self._before = int(answer("hipGetDevice", "int"))
        if self._before != self._device_id:
            call("hipSetDevice", self._device_id)

    def __exit__(self, *_: Any) -> None:
        if self._before != self._device_id:
            call("hipSetDevice", self._before)
