"""The copy between two operands of one shape and type, in any memory.

Every copy of dlbridge is made here. Devices copy whole bytes, so elements below a byte are
brought to these before any driver is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.core.tensor.array_tensor import make_tensor, wrap_array
from dlbridge.core.tensor.memory import Memory
from dlbridge.core.tensor.operand import host_array, operand_of, require_compact
from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import DType
from dlbridge.core.values.subbyte import pack_bits, unpack_bits
from dlbridge.errors import ExchangeError

from .between_devices import on_device
from .host_and_device import from_host, restore, to_host
from .within_host import copy_host

if TYPE_CHECKING:
    from dlbridge.core.tensor.operand import Operand

    from .within_host import Progress

__all__ = ["bytes_of", "copy_elements"]

_CPU = Device.of(1, 0)
_BYTE = DType.of(1, 8)

_CHUNK = 1 << 20
"""Elements, a multiple of 8: what is packed or unpacked at once, with temporary arrays."""


def copy_elements(target: Operand, source: Operand, progress: Progress | None = None) -> None:
    """Copy the elements of *source* to *target*, complete on return if the host is involved.

    Shape and dtype are equal. On one device the copy is ordered on its current
    stream; between two devices of one backend it is complete on return.
    """
    if not source.size:
        return
    if target.dtype.bits < 8 and not _are_whole_bytes(target, source):
        _copy_subbyte(target, source, progress)
    elif not source.device.is_host:
        (to_host if target.device.is_host else on_device)(target, source, progress)
    elif not target.device.is_host:
        from_host(target, source, progress)
    else:
        copy_host(host_array(target), host_array(source), progress)


def bytes_of(operand: Operand, start: int, count: int) -> Operand:
    """*count* bytes of the memory of a compact operand, *start* bytes after its first element."""
    memory = operand.memory or Memory(_CPU, operand.data, "a numpy array", operand.carrier)
    place = operand.byte_offset + start
    return operand_of(make_tensor(memory, place, _BYTE, (count,), readonly=operand.readonly))


# Below a byte -----------------------------------------------------------------------


def _are_whole_bytes(target: Operand, source: Operand) -> bool:
    """Whether a copy of bytes copies the elements of both, and changes no other elements.

    No other elements are in the last byte of new memory.
    """
    dtype = target.dtype
    if dtype.is_subbyte and target.padded is not source.padded:
        return False
    return target.padded or target.is_new or not target.size * dtype.bits * dtype.lanes % 8


def _copy_subbyte(target: Operand, source: Operand, progress: Progress | None) -> None:
    """Copy elements below a byte that `_are_whole_bytes` has refused.

    Elements that begin in the last byte of *target* and are not in it stay as they are. To
    write them at the same time, in another thread or on another stream, is a race.
    """
    for side in (target, source):
        if not side.padded:
            require_compact(side)
    if target.padded is not source.padded:
        source = _stored_as(target, source)
        if _are_whole_bytes(target, source):
            copy_elements(target, source, progress)
            return
    whole, rest = divmod(target.size * target.dtype.bits * target.dtype.lanes, 8)
    # Both are read first: the two may be the same memory.
    old, new = _byte_at(target, whole), _byte_at(source, whole)
    if whole:
        copy_elements(bytes_of(target, 0, whole), bytes_of(source, 0, whole), progress)
    mask = (1 << rest) - 1
    import numpy as np

    last = np.array([(old & ~mask) | (new & mask)], np.uint8)
    copy_elements(bytes_of(target, whole, 1), operand_of(wrap_array(last)))


def _byte_at(operand: Operand, place: int) -> int:
    import numpy as np

    box = np.empty(1, np.uint8)
    copy_elements(operand_of(wrap_array(box)), bytes_of(operand, place, 1))
    return int(box[0])


def _stored_as(target: Operand, source: Operand) -> Operand:
    """The elements of *source* in new host memory: packed or padded, as those of *target*."""
    import numpy as np

    dtype = source.dtype
    if dtype.lanes != 1:
        raise ExchangeError(
            f"padded {dtype} elements cannot be copied to packed ones, nor packed to padded: "
            "dlpack.h does not say how lanes lie in padded elements; view('uint8') shows the bytes"
        )
    given = np.empty(source.nbytes, np.uint8)
    copy_elements(restore(given, source), source)
    stored = np.empty(target.nbytes, np.uint8)
    for start in range(0, source.size, _CHUNK):
        count = min(_CHUNK, source.size - start)
        padded = slice(start, start + count)
        packed = slice(dtype.nbytes(start), dtype.nbytes(start + count))
        if target.padded:
            stored[padded] = unpack_bits(given[packed].data, dtype, count)
        else:
            stored[packed] = np.frombuffer(pack_bits(given[padded], dtype), np.uint8)
    return restore(stored, target)
