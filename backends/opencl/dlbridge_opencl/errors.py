"""Translate OpenCL's status codes to dlbridge's errors, by tables."""

from __future__ import annotations

import pyopencl as cl

from dlbridge.errors import DeviceError, DeviceLost, DeviceMemoryError, Error, ExchangeError

__all__ = ["no_room", "translated"]

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
    "like), copy on the device first: to_device(t, t.device, copy=True)",
    _code.MEM_COPY_OVERLAP: "source and target overlap; copy through a third tensor",
}
LOST = {
    _code.INVALID_CONTEXT: "the context was lost or belongs to another device",
    _code.INVALID_COMMAND_QUEUE: "the queue was lost",
    _code.DEVICE_NOT_AVAILABLE: "the device was lost",
    _code.OUT_OF_RESOURCES: "the device ran out of resources, "
    "or an earlier kernel reached outside its memory",
}


def no_room(exc: cl.Error) -> bool:
    """Whether *exc*, which came while a buffer was made, says that there is no memory left."""
    return exc.code in ALLOCATING


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
