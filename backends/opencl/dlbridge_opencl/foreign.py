"""Find the buffer and the device of kDLOpenCL tensors from other libraries, without a guess.

DLPack says that ``data`` is a ``cl_mem``. TVM exports a pointer to its ``BufferDescriptor``, of
which the ``cl_mem`` is the first word (src/runtime/opencl/opencl_common.h).

The first word of every object that a driver makes (platform, device, context,
queue, buffer, event) is the address of the driver's dispatch table: that is
how the ICD loader finds the driver (cl_khr_icd, "ICD dispatch table"). So an
integer is an object of a driver in use here if the word at that address is the
dispatch table of a platform. Measured on PoCL 3.1, Oclgrind 21.10 and Intel 2026.2.
"""

from __future__ import annotations

import functools

import pyopencl as cl

from dlbridge.errors import ExchangeError
from dlbridge.kit.backend import word_at

from . import devices
from .driver import context_of


def import_data(device_id: int, data: int, module: str) -> tuple[int, int]:
    """Our device and the ``cl_mem`` for a tensor that *module* exported.

    The foreign *device_id* is ignored: every library numbers devices in its own
    way. OpenCL is called only for an object that `is_object` recognises.
    """
    handle: int | None = data
    if not is_object(data):
        handle = word_at(data)
        if handle is not None and not is_object(handle):
            handle = None
    if handle is None:
        raise ExchangeError(
            f"opencl: data {data:#x} from {module} is neither a cl_mem nor TVM's buffer "
            "descriptor of a driver in use here, or it has been released; export the cl_mem "
            "itself, and keep its buffer as long (from_blob: owner=buffer)"
        )
    try:
        buffer = cl.MemoryObject.from_int_ptr(handle, True)
    except cl.Error as exc:  # a queue, a context ...
        raise ExchangeError(f"opencl: data {data:#x} from {module} is not a cl_mem: {exc}") from exc
    if not isinstance(buffer, cl.Buffer):
        raise ExchangeError(
            f"opencl: data {data:#x} from {module} is of the type {type(buffer).__name__}, not a "
            "buffer"
        )
    return device_of(context_of(buffer)), handle


def device_of(context: cl.Context) -> int:
    """The number of the first known device of *context*.

    All devices of a context see its memory, so each of them would be right.
    """
    for handle in context.devices:
        device_id = devices.find(handle)
        if device_id is not None:
            return device_id
    raise ExchangeError(
        "opencl: the memory is on a device that clGetDeviceIDs does not list "
        "(a sub-device?); use a context of the whole device"
    )


def is_object(handle: int) -> bool:
    """Whether *handle* is an object of a driver in use here, and may be memory or a queue.

    Platforms, devices and known contexts are excluded: PoCL 3.1 ends the process
    if it is asked to retain one of them as a queue. Other kinds of objects cannot
    be recognised before the driver looks at them.
    """
    roots, tables = _roots()
    if handle in roots or handle in devices.contexts():
        return False
    return word_at(handle) in tables


@functools.cache
def _roots() -> tuple[frozenset[int], frozenset[int]]:
    """The handles of the platforms and devices in use, and their drivers' dispatch tables."""
    handles = [devices.device(i).handle for i in range(devices.device_count())]
    roots = frozenset(obj.int_ptr for each in handles for obj in (each, each.platform))
    return roots, frozenset(word for word in map(word_at, roots) if word is not None)
