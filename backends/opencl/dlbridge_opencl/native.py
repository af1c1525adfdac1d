"""Take and give pyopencl's own objects: arrays, buffers, sub-buffers and SVM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl

from dlbridge.errors import ExchangeError
from dlbridge.protocol import NativeArray

from . import devices, foreign, memory, queues
from .driver import context_of, translated


def from_native(obj: object) -> NativeArray | None:
    """The description of a pyopencl array, buffer or SVM pointer; None for other objects.

    Work on the array's own queue comes before ours on its memory. SVM gets a
    buffer over its memory (CL_MEM_USE_HOST_PTR with an SVM pointer shares it:
    OpenCL 2.0, 5.2.1), in the context of its array or of the queue to which it is
    bound, otherwise in that of device 0.
    """
    if not any(str(base.__module__).startswith("pyopencl") for base in type(obj).__mro__):
        return None
    if isinstance(obj, cl.MemoryObjectHolder):
        if obj.type != cl.mem_object_type.BUFFER:
            raise ExchangeError(f"opencl: {type(obj).__name__} is not linear memory; pass a Buffer")
        context = context_of(obj)
        return _buffer(obj, foreign.device_of(context), context)
    if isinstance(obj, cl.SVMPointer):
        return _svm(obj)
    from pyopencl.array import Array

    return _array(obj) if isinstance(obj, Array) else None


def _buffer(buffer: cl.MemoryObject, device_id: int, context: cl.Context) -> NativeArray:
    return NativeArray(
        device_id=device_id,
        data=buffer.int_ptr,
        offset=0,
        dtype="uint8",
        shape=(buffer.size,),
        strides=None,
        readonly=bool(buffer.flags & cl.mem_flags.READ_ONLY),
        owner=(memory.reference_to(device_id, buffer.int_ptr, context), buffer),
    )


def _svm(svm: cl.SVMPointer) -> NativeArray:
    queue = getattr(svm, "_queue", None)  # an SVMAllocation that is bound to one
    context = context_of(queue, cl.command_queue_info.CONTEXT) if queue else devices.context(0)
    device_id = foreign.device_of(context)
    if svm.size:
        buffer = _over_svm(context, svm)
        described = _buffer(buffer, device_id, context)
        described = described._replace(owner=(described.owner, svm))
    else:  # OpenCL has no buffer of 0 bytes
        described = NativeArray(device_id, 0, 0, "uint8", (0,), None, readonly=False, owner=svm)
    array = getattr(svm, "mem", None)  # the array that an SVM was made from
    if not isinstance(array, np.ndarray):
        return described
    return described._replace(
        dtype=_dtype_name(array.dtype),
        shape=array.shape,
        strides=array.strides,
        readonly=not array.flags.writeable,
    )


def _over_svm(context: cl.Context, svm: cl.SVMPointer) -> cl.Buffer:
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    try:
        host = memory.host_memory(svm.svm_ptr, svm.size, readonly=False)
        buffer = cl.Buffer(context, flags, hostbuf=host)
        if buffer.uses_svm_pointer:
            return buffer
    except cl.Error as exc:
        raise translated(exc, f"a buffer over {svm.size} bytes of SVM") from exc
    raise ExchangeError(
        f"opencl: {svm!r} is over memory that is not SVM of {context!r}; allocate it there "
        "(pyopencl.fsvm_empty), or pass the numpy array itself to dlbridge"
    )


def _array(array: Any) -> NativeArray:
    layout: dict[str, Any] = {
        "dtype": _dtype_name(array.dtype),
        "shape": tuple(array.shape),
        "strides": tuple(array.strides),
    }
    queue = array.queue
    device_id = devices.find(queue.device) if queue is not None else None
    if device_id is None:
        device_id = foreign.device_of(array.context)
    base = array.base_data
    if base is None:  # pyopencl has no buffer for 0 elements
        return NativeArray(device_id, 0, 0, readonly=False, owner=array, **layout)
    if isinstance(base, cl.SVMPointer):
        base = _over_svm(array.context, base)
    for event in array.events:  # they may be of queues that are not known here
        event.wait()
    described = _buffer(base, device_id, array.context)
    users = None if queue is None else queues.note_user(base.int_ptr, queue)
    owner = described.owner, array, users
    return described._replace(owner=owner, offset=array.offset, **layout)


def to_native(array: NativeArray) -> object:
    """A `pyopencl.array.Array` over the memory, on the queue of ``use_stream`` or this thread's.

    Its ``base_data`` is the `pyopencl.Buffer` and keeps the owner alive; so do
    slices of the array. A kernel needs its ``queue`` and ``context``.
    ExchangeError if numpy has no dtype of that name, or if the tensor is
    read-only: a kernel can write to every buffer that it gets (also to one made
    with CL_MEM_READ_ONLY: measured on PoCL 3.1), and an array cannot forbid that.
    """
    from pyopencl.array import Array

    dtype = _dtype(array.dtype)
    queue = queues.resolve(array.device_id, array.stream).queue
    if not array.data:
        return Array(queue, array.shape, dtype)
    if array.readonly:
        raise ExchangeError(
            "opencl: the tensor is read-only, and a kernel could write to the pyopencl array; "
            "copy it first: dlbridge.to_device(x, device, copy=True).to_native()"
        )
    entry = memory.memory_at(array.device_id, array.data)
    if queue.context != entry.context:
        queue = queues.elsewhere(array.device_id, entry.context)
    noted = [] if entry.users is None else entry.users.queues
    # `use_stream` may have put our work on one of the first; the others have the user's.
    for user in [*queues.users(entry.context), *noted]:
        queues.order(array.device_id, queue, user)
    users = entry.users = queues.note_user(array.data, queue)
    buffer = cl.MemoryObject.from_int_ptr(array.data, True)
    buffer.owner = array.owner if entry.is_ours else (array.owner, users)
    return Array(queue, array.shape, dtype, data=buffer, offset=array.offset, strides=array.strides)


def _dtype_name(dtype: np.dtype[Any]) -> str:
    if dtype.fields is None:
        return str(dtype.name)
    name = next((name for name, vector in _VECTORS.items() if vector == dtype), None)
    if name is None:
        raise ExchangeError(
            f"opencl: dtype {dtype} has fields, and is no vector type without padding; take "
            "array.view() of its scalar type first"
        )
    return name


_VECTORS: dict[str, np.dtype[Any]] = {
    f"{np.dtype(scalar).name}x{lanes}": vector
    for (scalar, lanes), vector in cl.cltypes.vec_types.items()
    if np.dtype(scalar).itemsize * lanes == vector.itemsize
}
"""OpenCL's ``float4`` and the like, by our names; those of 3 have a fourth number."""


def _dtype(name: str) -> np.dtype[Any]:
    if name in _VECTORS:
        return _VECTORS[name]
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes  # noqa: F401 - registers bfloat16 and the small floats

        return np.dtype(name)
    except ImportError as exc:
        raise ExchangeError(
            f"opencl: a pyopencl array of {name} needs numpy to know {name}: "
            "pip install ml_dtypes, or take a view as unsigned integers"
        ) from exc
    except TypeError as exc:
        raise ExchangeError(
            f"opencl: pyopencl arrays have elements of numpy and ml_dtypes, which have no {name}; "
            "take a view as a type of one lane, or as integers: t.view('uint8').to_native()"
        ) from exc
