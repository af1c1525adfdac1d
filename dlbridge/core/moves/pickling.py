"""The bytes of a tensor, and the contents of its pickles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.structs import FLAG_SUBBYTE_PADDED
from dlbridge.core.tensor.operand import operand_of

from .copies import copy_elements
from .host_and_device import packed_bytes, restore
from .transfer import copy_to_host, to_compact_host

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.core.tensor.tensor import Tensor

__all__ = ["SHARED_BYTES", "reduce", "tobytes"]

SHARED_BYTES = 1000
"""Bytes up to this length may be an object that others have too, so they are never written."""


def tobytes(tensor: Tensor) -> bytes:
    """See `Tensor.tobytes`."""
    operand = operand_of(tensor)
    if not operand.size:
        return b""
    if operand.device.is_host or operand.nbytes <= SHARED_BYTES:
        return bytes(packed_bytes(operand_of(to_compact_host(tensor))))
    # The device writes into a bytes object that nobody else has seen: there is no other buffer.
    import numpy as np

    raw = bytes(operand.nbytes)
    copy_elements(restore(np.frombuffer(raw, "u1"), operand), operand)
    return raw


def reduce(tensor: Tensor, protocol: int) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """The function that unpickles *tensor*, and its arguments."""
    import pickle

    operand = operand_of(tensor)
    flags = operand.flags & FLAG_SUBBYTE_PADDED
    raw: Any = b""
    if protocol < 5:
        raw = tobytes(tensor)
    elif operand.size:
        # A copy of a device's memory: who keeps the buffer may read it at any time.
        host = to_compact_host(tensor) if operand.device.is_host else copy_to_host(tensor)
        raw = pickle.PickleBuffer(packed_bytes(operand_of(host)))
    unpickle = type(tensor)._unpickle
    described = operand.dtype.name, operand.shape, str(tensor.device), flags
    return unpickle, (raw, *described, protocol < 5)
