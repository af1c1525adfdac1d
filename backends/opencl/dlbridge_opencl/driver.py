"""Calls of the driver: who may be in it, its errors in dlbridge's, and what is never released.

pyopencl releases the GIL while the driver works, so several threads can be in
the driver at once. OpenCL allows that; Oclgrind 21.10 crashes (measured).

At exit, before Python 3.14, a daemon thread that asks for the GIL after the
interpreter has ended is unwound through C++ frames, and that aborts the process
("terminate called without an active exception"). So at exit calls that have
begun are waited for, and new ones are refused (`dlbridge.kit.gate.Gate`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

import pyopencl as cl
from pyopencl import _cl

from dlbridge.errors import DeviceError, DeviceLost, DeviceMemoryError, Error, ExchangeError
from dlbridge.kit.gate import Gate

_Container = TypeVar("_Container")


def lasting(container: _Container) -> _Container:
    """*container*, whose OpenCL objects nobody releases: not a forked child, nor the end of all."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(container))  # a deliberate extra reference
    return container


class Driver(Gate):
    """The drivers that *several* threads may call at once, or those that take one at a time."""

    def __init__(self, several: bool) -> None:
        super().__init__("OpenCL", None, {}, several=several)

    def run(
        self, doing: str, function: Callable[..., Any], *given: Any, allocating: bool = False
    ) -> Any:
        """Call *function* inside; an error of OpenCL is translated, and names *doing*."""
        key = object()
        self._inside[key] = doing
        try:
            if self._ending:
                raise DeviceError(f"{doing}: OpenCL cannot be used while the process ends")
            if self._lock is None:
                return function(*given)
            with self._lock:
                return function(*given)
        except cl.Error as exc:
            raise translated(exc, doing, allocating=allocating) from exc
        finally:
            del self._inside[key]


def _read(queue: Any, buffer: Any, into: Any, offset: int, _: None, blocks: bool) -> object:
    return cl.enqueue_copy(queue, into, buffer, src_offset=offset, is_blocking=blocks)


def _write(queue: Any, buffer: Any, source: Any, offset: int, _: None, blocks: bool) -> object:
    return cl.enqueue_copy(queue, buffer, source, dst_offset=offset, is_blocking=blocks)


def _copy(queue: Any, source: Any, target: Any, nbytes: int, here: int, there: int) -> object:
    at = {"src_offset": here, "dst_offset": there}
    return cl.enqueue_copy(queue, target, source, byte_count=nbytes, **at)


# What enqueue_copy calls when it has looked at its arguments, which takes as long again. Two
# are called with queue, buffer, host memory, offset, None, and whether to block.
read_buffer: Callable[..., object] = getattr(_cl, "_enqueue_read_buffer", _read)
write_buffer: Callable[..., object] = getattr(_cl, "_enqueue_write_buffer", _write)
copy_buffer: Callable[..., object] = getattr(_cl, "_enqueue_copy_buffer", _copy)

# Errors ---------------------------------------------------------------------------

_code = cl.status_code

# A status that is in no table is a DeviceError without advice. (OpenCL 3.0 API
# specification, Appendix F; the texts say what to do.)
MEMORY = {
    _code.MEM_OBJECT_ALLOCATION_FAILURE: "the device has no room left",
    _code.OUT_OF_HOST_MEMORY: "the host has no room left",
    _code.INVALID_BUFFER_SIZE: "the device does not allow one allocation of this size; "
    "move a large tensor in slices, each a tensor of its own",
}
ALLOCATING = {
    **MEMORY,
    # NVIDIA's driver says so when it has no memory for a buffer.
    _code.OUT_OF_RESOURCES: "the device has no room left",
}
IMPOSSIBLE = {
    _code.INVALID_OPERATION: "the memory was made with flags that forbid it, "
    "or the device cannot do it; if they forbid the host (CL_MEM_HOST_NO_ACCESS and the "
    "like), copy on the device first: dlbridge.to_device(t, t.device, copy=True)",
    _code.MEM_COPY_OVERLAP: "source and target overlap; copy through a third tensor",
}
LOST = {
    _code.INVALID_CONTEXT: "the context was lost or belongs to another device",
    _code.INVALID_COMMAND_QUEUE: "the queue was lost",
    _code.DEVICE_NOT_AVAILABLE: "the device was lost",
    _code.OUT_OF_RESOURCES: "the device ran out of resources, "
    "or an earlier kernel reached outside its memory",
}


def translated(exc: cl.Error, doing: str, *, allocating: bool = False) -> Error:
    """The error to raise from *exc*, which came while we were *doing* something.

    *allocating* says that this was the creation of a buffer.
    """
    code = exc.code
    name = cl.status_code.to_string(code, "status %d")
    text = f"opencl: {doing}: {exc.routine}: {name} ({code})"
    # What the compiler said stands after a line about the device.
    log = str(exc).partition("\n\nBuild on ")[2].partition("\n\n")[2]
    if log:
        text = f"{text}: {log}"
    memory = ALLOCATING if allocating else MEMORY
    if code in memory:
        return DeviceMemoryError(f"{text}: {memory[code]}")
    if code in IMPOSSIBLE:
        return ExchangeError(f"{text}: {IMPOSSIBLE[code]}")
    if code in LOST:
        kind = DeviceLost if code == _code.DEVICE_NOT_AVAILABLE else DeviceError
        return kind(
            f"{text}: {LOST[code]}. If a kernel crashed before, its context is lost: "
            "drop the tensors in it and call dlbridge_opencl.use_context with a new one"
        )
    return DeviceError(text)


def context_of(holder: Any, asked: int = cl.mem_info.CONTEXT) -> cl.Context:
    """The context of a buffer, or of a queue by ``command_queue_info.CONTEXT``.

    A queue and a buffer keep their context (OpenCL 3.0, 5.1 and 5.2.1). Those of Intel's CPU
    runtime 2026.22 do not (measured): its handle ends with the last reference of the program.
    ExchangeError then: the commands still run, but nothing can be made in the context any more.
    """
    try:  # pyopencl's property `context` would be one call more
        return holder.get_info(asked)
    except cl.LogicError as exc:
        if exc.code != _code.INVALID_CONTEXT:
            raise
        raise ExchangeError(
            f"opencl: the context of {holder!r} has been released, and this driver keeps no "
            "context for its queues and buffers; keep the pyopencl.Context as long as its queues, "
            "buffers and arrays are used"
        ) from exc
