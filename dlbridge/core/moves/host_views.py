"""Device memory in the hands of the host, native objects, and pickles.

What `Tensor` offers through modules that stand after it; see `OPERATIONS`.
"""

from __future__ import annotations

import sys
from math import prod
from typing import Any

from dlbridge.core.dlpack.capsules import FLAG_SUBBYTE_PADDED
from dlbridge.core.outgoing.producer import OPERATIONS
from dlbridge.core.plugins.lookup import backend_of, supports
from dlbridge.core.plugins.streams import access
from dlbridge.core.tensor.expired import end_host_view
from dlbridge.core.tensor.memory import Memory
from dlbridge.core.tensor.tensor import Tensor, address_of, make_tensor
from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import dtype as as_dtype
from dlbridge.errors import ExchangeError
from dlbridge.protocol import NativeArray, SupportsNative

from .host_and_device import packed_bytes
from .plans import make_plan, why_no_host_view
from .transfer import run, to_device

__all__ = ["HostView", "host_view", "to_native"]

_CPU = Device.of(1, 0)


class HostView:
    """A tensor's memory as CPU memory, without a copy.

    ``with t.host_view() as h`` gives the CPU tensor, and the memory back to
    the device when the block ends: BufferError if arrays made from ``h`` are
    still alive then. Without ``with`` it is a DLPack producer, and the memory
    goes back when its last consumer is gone.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor: Tensor | None = tensor
        self._references = 0

    def __enter__(self) -> Tensor:
        tensor = self._view()
        self._references = sys.getrefcount(tensor._array)
        return tensor

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        tensor = self._view()
        tensor._release_shared()
        extra = sys.getrefcount(tensor._array) - self._references
        if extra > 0:
            if kind is not None:
                return  # the block's own error matters more; the view ends with its users
            raise ExchangeError(
                f"the host view is still used by {extra} array(s) or capsule(s) when its block "
                "ends; drop them first, or copy what must stay (copy=True)"
            )
        end_host_view(tensor)
        self._tensor = None

    def __dlpack__(self, **keywords: Any) -> Any:
        """As `Tensor.__dlpack__`, on the CPU."""
        return self._view().__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The CPU."""
        return self._view().__dlpack_device__()

    def _view(self) -> Tensor:
        if self._tensor is None:
            raise ExchangeError("this host view has ended; ask the tensor for another")
        return self._tensor


def host_view(tensor: Tensor) -> HostView:
    """See `Tensor.host_view`."""
    refusal = why_no_host_view(tensor)
    if refusal:
        raise ExchangeError(f"no host view of {tensor!r}: {refusal}; copy it: to_device(t, 'cpu')")
    if tensor.device is _CPU:
        return HostView(tensor[...])
    return HostView(run(make_plan(tensor, _CPU, False), tensor))


def to_native(tensor: Tensor) -> Any:
    """See `Tensor.to_native`."""
    device = tensor.device
    if device is _CPU:
        return tensor.numpy()
    plugin = backend_of(device)
    if not supports(plugin, SupportsNative):
        raise ExchangeError(f"the backend of {device} has no native objects; use DLPack")
    if tensor.size:
        access(tensor._memory)  # what its user queues comes after our last work on it
    size = tensor.itemsize
    return plugin.to_native(
        NativeArray(
            device_id=device.index,
            data=tensor._memory.data,
            offset=tensor._byte_offset,
            dtype=tensor.dtype.name,
            shape=tensor.shape,
            strides=tuple(step * size for step in tensor.strides),
            readonly=tensor.readonly,
            owner=tensor,
        )
    )


def reduce(tensor: Tensor, protocol: int) -> tuple[Any, ...]:
    """What pickle keeps of *tensor*; `unpickle` reads it."""
    import pickle

    compact = OPERATIONS["to_host_compact"](tensor)
    raw: Any = packed_bytes(compact) if tensor.size else b""
    if protocol < 5:
        raw = bytes(raw)
    elif tensor.size:
        raw = pickle.PickleBuffer(raw)
    flags = tensor._flags & FLAG_SUBBYTE_PADDED
    return unpickle, (raw, tensor.dtype.name, tensor.shape, str(tensor.device), flags)


def tobytes(tensor: Tensor) -> bytes:
    """See `Tensor.tobytes`."""
    return bytes(packed_bytes(OPERATIONS["to_host_compact"](tensor))) if tensor.size else b""


def unpickle(raw: Any, dtype: str, shape: tuple[int, ...], device: str, flags: int) -> Tensor:
    """The tensor that `reduce` wrote."""
    import numpy as np

    # bytes came inside the pickle; a buffer of the receiver's is used in place.
    array = np.frombuffer(bytearray(raw) if isinstance(raw, bytes) else raw, "u1")
    kind = as_dtype(dtype)
    need = kind.nbytes(prod(shape), padded=bool(flags & FLAG_SUBBYTE_PADDED))
    if array.nbytes != need:
        raise ExchangeError(
            f"the pickle's buffer has {array.nbytes} bytes, and {dtype} {shape} takes {need}: give "
            "pickle.loads the buffers of this pickle, in their order"
        )
    memory = Memory(_CPU, address_of(array) if array.size else 0, "a pickle", array)
    readonly = bool(array.size) and not array.flags.writeable
    host = make_tensor(memory, 0, kind, shape, readonly=readonly, flags=flags)
    return host if device == str(_CPU) else to_device(host, device)


def _as_host(tensor: Tensor) -> Tensor | None:
    """The memory as a CPU tensor without a copy, None where that cannot be."""
    if why_no_host_view(tensor):
        return None
    return run(make_plan(tensor, _CPU, False), tensor)


OPERATIONS.update(
    as_host=_as_host,
    host_view=host_view,
    reduce=reduce,
    to_native=to_native,
    tobytes=tobytes,
    why_no_host_view=why_no_host_view,
)
