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

import ctypes
import functools
import os
import sys

import pyopencl as cl

from dlbridge.errors import ExchangeError

from . import devices

POINTER_SIZE = ctypes.sizeof(ctypes.c_void_p)
FIRST_PAGE = 4096
"""Bytes. No object has a smaller address: small integers are counters, flags or mistakes."""


def import_data(device_id: int, data: int, module: str) -> tuple[int, int]:
    """Our device and the ``cl_mem`` for a tensor that *module* exported.

    The foreign *device_id* is ignored: every library numbers devices in its own
    way. OpenCL is called only for an object that `is_object` recognises.
    """
    handle: int | None = data
    if not is_object(data):
        handle = _word_at(data)
        if handle is not None and not is_object(handle):
            handle = None
    if handle is None:
        raise ExchangeError(
            f"opencl: data {data:#x} from {module} is neither a cl_mem nor TVM's buffer "
            "descriptor of a driver in use here; export the cl_mem itself"
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
    return device_of(buffer.context), handle


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
    return _word_at(handle) in tables


@functools.cache
def _roots() -> tuple[frozenset[int], frozenset[int]]:
    """The handles of the platforms and devices in use, and their drivers' dispatch tables."""
    handles = [devices.device(i).handle for i in range(devices.device_count())]
    roots = frozenset(obj.int_ptr for each in handles for obj in (each, each.platform))
    return roots, frozenset(word for word in map(_word_at, roots) if word is not None)


def _word_at(address: int) -> int | None:
    """The pointer-sized word at *address*; None if no object of a driver can be there.

    Where the system lets a process read its own memory as a file, the result is
    None for an address that is not mapped, too; elsewhere that is a crash.
    """
    if address < FIRST_PAGE or address >> (8 * POINTER_SIZE) or address % POINTER_SIZE:
        return None
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, AttributeError):  # not Linux, or not allowed
        return ctypes.c_size_t.from_address(address).value
    try:
        return int.from_bytes(os.pread(memory, POINTER_SIZE, address), sys.byteorder)
    except (OSError, OverflowError):  # not mapped; beyond what a file offset can be
        return None
    finally:
        os.close(memory)
