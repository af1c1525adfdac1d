"""The bytes of a tensor, and the contents of its pickles."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.structs import FLAG_SUBBYTE_PADDED
from dlbridge.core.plugins.lookup import find_device
from dlbridge.core.tensor.carriers import address_of
from dlbridge.core.tensor.memory import Memory
from dlbridge.core.tensor.operand import operand_of
from dlbridge.core.tensor.tensor import make_tensor
from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import dtype as as_dtype
from dlbridge.errors import ExchangeError

from .host_and_device import packed_bytes
from .transfer import move, to_compact_host

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.core.tensor.tensor import Tensor

__all__ = ["reduce", "tobytes", "unpickle"]

_CPU = Device.of(1, 0)


def tobytes(tensor: Tensor) -> bytes:
    """See `Tensor.tobytes`."""
    return bytes(packed_bytes(operand_of(to_compact_host(tensor)))) if tensor.size else b""


def reduce(tensor: Tensor, protocol: int) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """The function that unpickles *tensor*, and its arguments."""
    import pickle

    operand = operand_of(to_compact_host(tensor))
    raw: Any = packed_bytes(operand) if operand.size else b""
    if protocol < 5:
        raw = bytes(raw)
    elif operand.size:
        raw = pickle.PickleBuffer(raw)
    flags = operand.flags & FLAG_SUBBYTE_PADDED
    unpickle = type(tensor)._unpickle
    return unpickle, (raw, operand.dtype.name, operand.shape, str(tensor.device), flags)


def unpickle(raw: Any, dtype: str, shape: tuple[int, ...], device: str, flags: int) -> Tensor:
    """The tensor that `reduce` has pickled."""
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
    return host if device == str(_CPU) else move(host, find_device(device), None)
