"""Host memory that the device uses in place (CL_MEM_USE_HOST_PTR)."""

from __future__ import annotations

import ctypes

import pyopencl as cl

from dlbridge.errors import ExchangeError

from . import devices, memory, queues
from .driver import Call
from .errors import translated
from .probe import PAGE, why_not_one_memory

__all__ = [
    "host_import_drawback",
    "host_import_refusal",
    "host_memory",
    "import_host",
]

CPU_ALIGNMENT = 64
"""Bytes. A kernel may take its buffer for ``float16 *``, which OpenCL C lets the
compiler read as aligned: PoCL 3.1 then crashes on memory that is not (measured)."""

GPU_GRANULARITY = 64
"""Bytes. GPUs that share memory use it in place only if it begins at a page and its
size is a multiple of this (Intel's and Arm's OpenCL guides; not confirmed on hardware)."""

_flags = cl.mem_flags


def host_import_drawback(device_id: int) -> str:
    """Say why a copy is better than host memory in place, unless that is asked for.

    Parameters
    ----------
    device_id : int
        The device.

    Returns
    -------
    str
        The reason; empty where host and device share their memory.

    Examples
    --------
    >>> import dlbridge
    >>> reason = dlbridge.backend("opencl").host_import_drawback(0)
    """
    chosen = devices.device(device_id)
    if chosen.shares_memory:
        return ""
    return f"{chosen.name} has memory of its own (CL_DEVICE_HOST_UNIFIED_MEMORY is false)"


def host_import_refusal(device_id: int, address: int, nbytes: int) -> str:
    """Why the device cannot use this host memory in place; empty if it can."""
    return _refusal(device_id, address, nbytes, readonly=False)


def _refusal(device_id: int, address: int, nbytes: int, *, readonly: bool) -> str:
    chosen = devices.device(device_id)
    if nbytes > chosen.max_allocation:
        return f"{chosen.name} allows {chosen.max_allocation} bytes in one buffer"
    alignment = CPU_ALIGNMENT if chosen.is_cpu else PAGE
    if address % alignment:
        return (
            f"its address {address:#x} is not a multiple of {alignment} bytes, which kernels on "
            f"{chosen.name} may rely on; memory of dlbridge.empty(shape, dtype, "
            f"alignment={alignment}).numpy() needs no copy"
        )
    if not chosen.is_cpu and nbytes % GPU_GRANULARITY:
        return f"its size is not a multiple of {GPU_GRANULARITY} bytes, as {chosen.name} needs"
    if not chosen.is_cpu and readonly:
        return (
            f"it is read-only, and the driver of a GPU as {chosen.name} may pin pages for writing"
        )
    trouble = why_not_one_memory(device_id)
    if not trouble:
        return ""
    own = "" if chosen.shares_memory else " has memory of its own, and"
    return f"{chosen.name}{own}: {trouble}"


def import_host(device_id: int, address: int, nbytes: int, readonly: bool) -> tuple[int, int]:
    """A buffer over host memory; ExchangeError where it is refused."""
    if refusal := _refusal(device_id, address, nbytes, readonly=readonly):
        raise ExchangeError(f"opencl:{device_id}: cannot use host memory in place: {refusal}")
    chosen = devices.device(device_id)
    flags = _flags.READ_ONLY | _flags.HOST_READ_ONLY if readonly else _flags.READ_WRITE
    context = devices.context(device_id)
    service = queues.service(device_id, context)
    host = host_memory(address, nbytes, readonly)
    try:
        with chosen.lock, Call():
            memory.release_freed(chosen)
            buffer = cl.Buffer(context, flags | _flags.USE_HOST_PTR, hostbuf=host)
            if not chosen.is_cpu:
                # Drivers of GPUs pin the pages at the first command, and that fails then.
                cl.enqueue_copy(service, bytearray(1), buffer, is_blocking=True)
    except cl.Error as exc:
        doing = f"using {nbytes} bytes of host memory in place"
        raise translated(exc, doing, allocating=True) from exc
    return memory.adopt(buffer, nbytes, context), 0


_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
_view.restype = ctypes.py_object
_READ, _WRITE = 0x100, 0x200  # PyBUF_READ, PyBUF_WRITE


def host_memory(address: int, nbytes: int, readonly: bool) -> memoryview:
    """The bytes at *address*; the caller keeps their owner alive."""
    view: memoryview = _view(address, nbytes, _READ if readonly else _WRITE)
    return view
