"""Primary contexts: the ones that torch, cupy and every CUDA runtime use too.

Each is retained once and kept until the process ends: memory of other libraries lives in it. A
context costs hundreds of MB of device memory, so none is made on a GPU that nobody uses. The
thread's current context is left as it was found.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from .driver import call, cu, device_count, guard

__all__ = ["attribute", "current", "device_in_use", "primary", "somewhere"]


@cache
def primary(device_id: int) -> int:
    """The primary context (CUcontext) of *device_id*, retained for good."""
    return int(call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", device_id)))


@cache
def attribute(device_id: int, name: str) -> int:
    """The device attribute *name*, without its ``CU_DEVICE_ATTRIBUTE_``."""
    which = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(call("cuDeviceGetAttribute", which, call("cuDeviceGet", device_id)))


@cache
def device_in_use() -> int:
    """The device of the thread's context at the first call; else one that has a context; else 0.

    Memory that belongs to no GPU is made in its context, for the whole process.
    """
    if int(call("cuCtxGetCurrent")):
        return int(call("cuCtxGetDevice"))
    return _active(0)


class current:  # noqa: N801  # reads as a function in `with current(context):`
    """Make *context* the thread's current one inside ``with``, and restore it after.

    Pushes only if it is not current already: 120 ns against 380 ns.
    """

    __slots__ = ("_context", "_pushed")

    def __init__(self, context: Any) -> None:
        self._context = context
        self._pushed = False

    def __enter__(self) -> None:
        guard.check()
        if int(call("cuCtxGetCurrent")) != int(self._context):
            call("cuCtxPushCurrent", self._context)
            self._pushed = True

    def __exit__(self, *_: object) -> None:
        if self._pushed:
            call("cuCtxPopCurrent")


def somewhere(device_id: int) -> current:
    """Stay in the thread's context inside ``with``; if it has none, be in one that is there.

    For questions that any context answers: where a pointer lives. Only if no GPU has a context
    one is made, on *device_id*.
    """
    guard.check()
    return current(int(call("cuCtxGetCurrent")) or primary(_active(device_id)))


def _active(preferred: int) -> int:
    """*preferred* if it has a primary context, else the first device that has one, else it."""
    candidates: list[int] = [preferred, *range(device_count())]
    for device_id in candidates:
        _flags, active = call("cuDevicePrimaryCtxGetState", call("cuDeviceGet", device_id))
        if int(active):
            return device_id
    return preferred
