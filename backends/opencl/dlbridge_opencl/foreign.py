"""Find the buffer and the device of kDLOpenCL tensors from other libraries.

DLPack says that ``data`` is a ``cl_mem``. TVM exports a pointer to its ``BufferDescriptor``, of
which the ``cl_mem`` is the first word (src/runtime/opencl/opencl_common.h).
"""

from __future__ import annotations

import pyopencl as cl

from dlbridge.errors import ExchangeError

from . import devices
from .handles import is_object, word_at
from .memory import is_kept

__all__ = ["device_of", "import_data"]


def import_data(device_id: int, data: int, module: str) -> tuple[int, int]:
    """Our device and the ``cl_mem`` for a tensor that *module* exported.

    The foreign *device_id* is ignored: every library numbers devices in its own
    way. OpenCL is called only for an object that `handles.is_object` recognises.
    A buffer that was freed here and is kept for the next tensor is refused.
    """
    if is_object(data):
        handle = data
    else:
        first_word = word_at(data)
        if first_word is None or not is_object(first_word):
            raise ExchangeError(
                f"opencl: data {data:#x} from {module} is neither a cl_mem nor TVM's buffer "
                "descriptor of a driver in use here; export the cl_mem itself"
            )
        handle = first_word
    if is_kept(handle):
        raise ExchangeError(
            f"opencl: data {data:#x} from {module} is memory of dlbridge that was freed: keep the "
            "tensor, or its capsule, as long as its memory is used"
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
