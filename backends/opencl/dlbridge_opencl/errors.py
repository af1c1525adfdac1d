"""OpenCL's status codes as dlbridge's errors, by one table."""

from __future__ import annotations

import pyopencl as cl

from dlbridge.errors import DeviceError, DeviceMemoryError, Error, ExchangeError

__all__ = ["no_room", "translated"]

_code = cl.status_code

# What is in no table is a DeviceError without a hint. (OpenCL 3.0 API
# specification, Appendix F; the texts say what to do.)
MEMORY = {
    _code.MEM_OBJECT_ALLOCATION_FAILURE: "the device has no room left",
    _code.OUT_OF_HOST_MEMORY: "the host has no room left",
    _code.INVALID_BUFFER_SIZE: "the device does not allow one allocation of this size",
}
IMPOSSIBLE = {
    _code.INVALID_OPERATION: "the memory was made with flags that forbid it, "
    "or the device cannot do it; if they keep the host out (CL_MEM_HOST_NO_ACCESS and the "
    "like), copy on the device first: to_device(t, t.device, copy=True)",
    _code.MEM_COPY_OVERLAP: "source and target overlap; copy through a third tensor",
}
LOST = {
    _code.INVALID_CONTEXT: "the context is gone or belongs to another device",
    _code.INVALID_COMMAND_QUEUE: "the queue is gone",
    _code.DEVICE_NOT_AVAILABLE: "the device is gone",
    _code.OUT_OF_RESOURCES: "the device ran out of resources, "
    "or an earlier kernel reached outside its memory",
}


def no_room(exc: cl.Error) -> bool:
    """Whether *exc* says that memory is short."""
    return exc.code in MEMORY


def translated(exc: cl.Error, doing: str) -> Error:
    """The error to raise from *exc*, for what we were *doing* when it came."""
    code = exc.code
    name = cl.status_code.to_string(code, "status %d")
    text = f"opencl: {doing}: {exc.routine}: {name} ({code})"
    if code in MEMORY:
        return DeviceMemoryError(f"{text}: {MEMORY[code]}")
    if code in IMPOSSIBLE:
        return ExchangeError(f"{text}: {IMPOSSIBLE[code]}")
    if code in LOST:
        return DeviceError(
            f"{text}: {LOST[code]}. If a kernel crashed before, its context is lost: "
            "drop the tensors on it and call dlbridge_opencl.use_context with a new one"
        )
    return DeviceError(text)
