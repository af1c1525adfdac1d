"""cuda.core's objects, in and out: a StridedMemoryView over a Buffer.

cuda.core is not needed for anything else, and only imported when `to_native`
is asked for; what it made is known by its module.
"""

from __future__ import annotations

from contextlib import suppress
from math import prod
from typing import Any

from dlbridge.errors import ExchangeError
from dlbridge.kit.resources import shared_lock
from dlbridge.protocol import NativeArray

from .gpu import gpu

_import = shared_lock()
"""While cuda.core 1.2.2 is imported it has the `__spec__` of another module, which is there
already: so Python lets other threads have it, and they find no `Buffer` in it."""


def from_native(obj: Any) -> NativeArray | None:
    """*obj* described, if cuda.core made it and it is on a device; else None."""
    if not type(obj).__module__.startswith("cuda.core."):
        return None
    # cuda.core asks the driver about foreign memory.
    return gpu.run_somewhere(gpu.host_device(), _describe, obj)


def _describe(obj: Any) -> NativeArray | None:
    kind = type(obj).__name__
    if kind not in ("Buffer", "StridedMemoryView") or not obj.is_device_accessible:
        return None
    if kind == "Buffer":
        return NativeArray(
            obj.device_id, int(obj.handle), 0, "uint8", (obj.size,), None, False, owner=obj
        )
    if obj.dtype is None:
        raise ExchangeError("the StridedMemoryView has no dtype; make it with dtype=")
    itemsize = obj.dtype.itemsize
    strides = obj.strides and tuple(step * itemsize for step in obj.strides)  # theirs: elements
    return NativeArray(
        obj.device_id, int(obj.ptr), 0, obj.dtype.name, tuple(obj.shape), strides,
        bool(obj.readonly), owner=obj,
    )  # fmt: skip


def to_native(array: NativeArray) -> object:
    """A cuda.core StridedMemoryView over the memory, which keeps *array.owner* alive.

    ExchangeError if cuda.core is not installed, if numpy does not know the dtype, if a stride is
    negative, or if there are no elements.
    """
    try:
        with _import:
            from cuda.core import Buffer
            from cuda.core.utils import StridedMemoryView
    except ImportError as exc:
        raise ExchangeError(
            "CUDA's own arrays come from cuda.core; pip install 'dlbridge-cuda[cuda-core]'"
        ) from exc
    if 0 in array.shape:  # it would be over no memory, and cuda.core says: on no device
        raise ExchangeError(
            f"cuda.core has no array of shape {array.shape}: it has no bytes, and so no device"
        )
    if any(step < 0 for step in array.strides or ()):
        raise ExchangeError(
            f"cuda.core has no view with negative strides, as {array.strides} bytes: its memory "
            "begins at the first element; copy the tensor first, "
            "dlbridge.to_device(t, t.device, copy=True)"
        )
    dtype = _numpy_dtype(array.dtype)
    strides = array.strides and tuple(step // dtype.itemsize for step in array.strides)
    if array.strides is None:
        nbytes = dtype.itemsize * prod(array.shape)
    else:
        steps = zip(array.shape, array.strides, strict=True)
        nbytes = dtype.itemsize + sum((extent - 1) * step for extent, step in steps)
    buffer = Buffer.from_handle(array.data + array.offset, nbytes, owner=_Owner(array.owner))

    def view() -> object:  # cuda.core asks the current context about the memory
        return StridedMemoryView.from_buffer(
            buffer, tuple(array.shape), strides, dtype=dtype, is_readonly=array.readonly
        )

    return gpu.run(gpu.contexts[array.device_id], view)


class _Owner:
    """Keeps *owner* alive: cuda.core takes None for "nobody owns it"."""

    def __init__(self, owner: object) -> None:
        self.owner = owner


def _numpy_dtype(name: str) -> Any:
    """The dtypes of numpy itself, and of ml_dtypes those that are not packed on the device."""
    import numpy as np

    with suppress(TypeError):
        dtype = np.dtype(name)
        if dtype.isbuiltin == 1:
            return dtype
    if name == "bfloat16" or name.startswith("float8"):
        with suppress(ImportError, AttributeError):
            import ml_dtypes

            return np.dtype(getattr(ml_dtypes, name))
    raise ExchangeError(f"cuda.core has no dtype {name}; view the tensor as uint8")
