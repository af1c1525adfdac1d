"""Primary contexts: the ones that torch, cupy and every CUDA runtime use too.

Each is retained once and kept until the process ends: memory of other libraries lives in it. A
context costs hundreds of MB of device memory, so none is made on a GPU that nobody uses. The
thread's current context is left as it was found.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int, c_uint64
from functools import cache
from typing import Any, TypeVar

from .driver import call, check, cu, device_count, guard
from .raw import functions as cuda

__all__ = ["attribute", "device_in_use", "primary", "run", "run_somewhere"]

T = TypeVar("T")

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


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


def run(context: int, work: Callable[..., T], *arguments: Any) -> T:
    """Call *work* in *context*, relaxed; the thread's own context and mode are back after it.

    Page-locking and freeing do not depend on any stream, yet in the default capture mode they
    would invalidate a capture anywhere in the process (``cuThreadExchangeStreamCaptureMode``).
    """
    if guard.in_child:
        guard.check()
    cell, mode = c_uint64(), c_int(_RELAXED)
    code = cuda.cuCtxGetCurrent(cell)
    if code:
        check("cuCtxGetCurrent", code)
    own = cell.value
    try:
        try:
            if own != context:
                code = cuda.cuCtxPushCurrent(context)
                if code:
                    check("cuCtxPushCurrent", code)
            code = cuda.cuThreadExchangeStreamCaptureMode(mode)  # now it holds the old mode
            if code:
                check("cuThreadExchangeStreamCaptureMode", code)
            result = work(*arguments)
            if mode.value != _RELAXED:
                cuda.cuThreadExchangeStreamCaptureMode(mode)
            if own != context:
                cuda.cuCtxPopCurrent(cell)
            return result
        except BaseException:
            _leave(own, mode)
            raise
    except BaseException:  # a signal handler's may have cut off the first
        _leave(own, mode)
        raise


def _leave(own: int, mode: c_int) -> None:
    """Put back what is not back yet; contexts are pushed and popped."""
    if mode.value != _RELAXED:
        cuda.cuThreadExchangeStreamCaptureMode(mode)  # now it holds `_RELAXED` again
    cell = c_uint64(own)
    while not cuda.cuCtxGetCurrent(cell) and cell.value not in (own, 0):
        cuda.cuCtxPopCurrent(cell)


def run_somewhere(device_id: int, work: Callable[..., T], *arguments: Any) -> T:
    """Call *work* in the thread's context, or if it has none in one that is there.

    For questions that any context answers: where a pointer lives. Only if no GPU has a context
    one is made, on *device_id*.
    """
    guard.check()
    context = int(call("cuCtxGetCurrent")) or primary(_active(device_id))
    return run(context, work, *arguments)


def _active(preferred: int) -> int:
    """*preferred* if it has a primary context, else the first device that has one, else it."""
    candidates: list[int] = [preferred, *range(device_count())]
    for device_id in candidates:
        _flags, active = call("cuDevicePrimaryCtxGetState", call("cuDeviceGet", device_id))
        if int(active):
            return device_id
    return preferred
