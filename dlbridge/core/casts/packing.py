"""Packing of one code per byte into sub-byte elements, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.core.values.subbyte import pack_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from dlbridge.core.values.dtypes import DType

    Array = np.ndarray[Any, Any]

__all__ = ["packer"]


def packer(dtype: DType, length: int) -> Callable[[Array, Array], None]:
    """A function that packs codes, bytes whose high bits are zero or not, into bytes.

    Both arrays hold a multiple of 8 codes, *length* at most.
    """
    import numpy as np

    if 8 % dtype.bits:  # 6 bits: four codes in three bytes

        def pack_any(codes: Array, packed: Array) -> None:
            packed[...] = np.frombuffer(pack_bits(codes, dtype), "u1")

        return pack_any

    # The codes of one byte are the bytes of an integer. One multiplication moves
    # each to its place in the highest byte; the products do not overlap.
    count = 8 // dtype.bits
    word = np.dtype(f"<u{count}")
    mask = word.type(int.from_bytes(bytes([(1 << dtype.bits) - 1]) * count, "little"))
    top = 8 * count - 8
    factor = word.type(sum(1 << (top - (8 - dtype.bits) * place) for place in range(count)))
    words = np.empty(length // count, word)

    def pack(codes: Array, packed: Array) -> None:
        work = words[: packed.size]
        np.bitwise_and(codes.view(word), mask, out=work)
        work *= factor
        work >>= word.type(top)
        packed[...] = work

    return pack
