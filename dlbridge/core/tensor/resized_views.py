"""Views of a tensor's memory as elements of another size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.core.dlpack.structs import FLAG_SUBBYTE_PADDED
from dlbridge.core.values.devices import CPU
from dlbridge.core.values.dtypes import DLDataTypeCode
from dlbridge.core.values.suggestions import with_article
from dlbridge.errors import ExchangeError

from .array_tensor import build
from .carriers import carrier
from .memory import Memory
from .operand import operand_of

if TYPE_CHECKING:
    from dlbridge.core.values.dtypes import DType

    from .operand import Operand
    from .tensor import Tensor


def view_resized(tensor: Tensor, new: DType) -> Tensor:
    """The memory of *tensor* as elements of *new*, whose size is another one.

    Only the carrier is made anew, so it is the same on all devices.
    """
    old = operand_of(tensor)
    bits = _element_bits(old, new)
    new_bits = new.bits * new.lanes
    shape = _shape(old, new, bits, new_bits)
    strides = _strides(old, new, bits, new_bits)
    memory = old.memory or Memory(CPU, old.data, tensor.origin, old.carrier)
    if old.size:
        _check_alignment(old, new)
    array = carrier(memory, old.byte_offset, new, shape, strides, old.readonly, old.carrier)
    return build(array, memory, new, old.byte_offset, old.flags & ~FLAG_SUBBYTE_PADDED)


def _element_bits(old: Operand, new: DType) -> int:
    """The bits that an element of *old* takes in memory."""
    if not (old.padded and old.dtype.is_subbyte):
        return old.dtype.bits * old.dtype.lanes
    if new.is_subbyte:
        raise ExchangeError(
            f"{_view(old, new)}: each {old.dtype} of this tensor takes a byte (it is padded), and "
            f"whether {with_article(str(new))} should too is not clear; view('uint8') shows the "
            "bytes"
        )
    return 8 * old.dtype.itemsize


def _shape(old: Operand, new: DType, bits: int, new_bits: int) -> tuple[int, ...]:
    if not old.shape:
        raise ExchangeError(
            f"{_view(old, new)}: a tensor without dimensions keeps its element size, and "
            f"{new_bits} bits are not {bits}; reshape(1) gives it a dimension"
        )
    *outer, last = old.shape
    if last * bits % new_bits:
        raise ExchangeError(
            f"{_view(old, new)}: the last dimension of {last} elements has {last * bits} bits, "
            f"which is no whole number of {new} of {new_bits}; take a part of it (t[..., :n]) "
            "that is"
        )
    return (*outer, last * bits // new_bits)


def _strides(old: Operand, new: DType, bits: int, new_bits: int) -> tuple[int, ...] | None:
    """The strides in elements of *new*; None for compact memory."""
    if old.contiguous:
        return None
    copied = "make a compact copy first: to_device(t, t.device, copy=True)"
    *outer, step = old.strides
    if old.shape[-1] > 1 and step != 1:
        raise ExchangeError(
            f"{_view(old, new)}: the last dimension has the stride {step}, and only neighbours in "
            f"memory can become one element or several; {copied}"
        )
    strides = [1]
    for extent, stride in zip(reversed(old.shape[:-1]), reversed(outer), strict=True):
        apart = stride * bits
        if extent > 1 and apart % new_bits:
            raise ExchangeError(
                f"{_view(old, new)}: neighbours along a dimension of {extent} are {apart} bits "
                f"apart, which is no multiple of {new_bits}; {copied}"
            )
        strides.append(apart // new_bits)
    return tuple(reversed(strides))


def _check_alignment(old: Operand, new: DType) -> None:
    """ExchangeError if elements would begin where kernels and other libraries fault on them.

    A complex number is aligned as its parts, a vector as one lane.
    """
    lane = new.itemsize if new.lanes == 1 else new.bits // 8
    alignment = lane // 2 if new.code == DLDataTypeCode.kDLComplex else lane
    start = old.byte_offset + (old.data if old.device.is_address else 0)
    if alignment > 1 and start % alignment:
        raise ExchangeError(
            f"{_view(old, new)}: {with_article(str(new))} must begin at a multiple of "
            f"{alignment} bytes, and the "
            f"first would be {start % alignment} past one; copy the bytes first: "
            "to_device(t, t.device, copy=True)"
        )


def _view(old: Operand, new: DType) -> str:
    return f"view({new}) of {old.dtype} {old.shape}"
