"""Packing of elements below a byte, in the bit order that DLPack prescribes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .dtypes import DType

__all__ = ["pack_bits", "unpack_bits"]


def unpack_bits(data: memoryview | bytes, dtype: DType, count: int) -> npt.NDArray[np.uint8]:
    """The raw codes of *count* packed elements of a type of fewer than 8 bits, a byte each.

    Little bit-endian (``dlpack.h`` 1.3, DLDataType): code *i* is
    ``(data >> (i * bits)) & mask``. A vector element gives a code per lane. A
    negative ``int4`` keeps its two's complement: -1 is 15. ValueError if *data*
    (contiguous) is too short, or the type has 8 bits and more.
    """
    import numpy as np

    word, nbytes, shifts = _groups(dtype)
    need = dtype.nbytes(count)
    packed = np.frombuffer(data, np.uint8)
    if count < 0 or packed.size < need:
        raise ValueError(f"{count} elements of {dtype} take {need} bytes; there are {packed.size}")
    groups = np.zeros((-(-need // nbytes), nbytes), word)
    groups.reshape(-1)[:need] = packed[:need]
    words = np.zeros(len(groups), word)
    for i in range(nbytes):
        words |= groups[:, i] << word(8 * i)
    codes = (words[:, None] >> shifts) & word((1 << dtype.bits) - 1)
    raw: np.ndarray[Any, np.dtype[np.uint8]] = codes.reshape(-1)[: count * dtype.lanes].astype("u1")
    return raw


def pack_bits(codes: npt.ArrayLike, dtype: DType) -> bytes:
    """The inverse of `unpack_bits`: ``dtype.nbytes(count)`` bytes, unused bits zero.

    Only the low bits of each code (an unsigned byte) count, as in padded
    storage, whose high bits DLPack leaves undefined. ValueError if the codes
    are not a whole number of elements, or the type has 8 bits and more.
    """
    import numpy as np

    word, nbytes, shifts = _groups(dtype)
    given = np.asarray(codes)
    if given.dtype.kind not in "ui" and given.size:
        raise TypeError(
            f"codes are unsigned bytes, not {given.dtype}: give array.view(numpy.uint8), which"
            " shows the codes and not the values"
        )
    flat = given.astype(np.uint8).reshape(-1)
    if flat.size % dtype.lanes:
        raise ValueError(
            f"{flat.size} codes are not a whole number of {dtype}: it has {dtype.lanes}"
        )
    lanes = np.zeros((-(-flat.size // len(shifts)), len(shifts)), word)
    lanes.reshape(-1)[: flat.size] = flat & np.uint8((1 << dtype.bits) - 1)
    words = np.zeros(len(lanes), word)
    for i, shift in enumerate(shifts):
        words |= lanes[:, i] << shift
    packed: npt.NDArray[np.uint8] = np.empty((len(words), nbytes), np.uint8)
    for i in range(nbytes):
        packed[:, i] = (words >> word(8 * i)) & word(255)
    return bytes(packed.reshape(-1)[: dtype.nbytes(flat.size // dtype.lanes)])


def _groups(dtype: DType) -> tuple[Any, int, npt.NDArray[Any]]:
    """How codes fill whole bytes: the integer to work in, its bytes, the shift of each code.

    6 bits: 4 codes in 3 bytes. 4 bits: 2 codes in 1 byte.
    """
    if not hasattr(dtype, "bits"):
        raise TypeError(f"the type must be a DType: dlbridge.dtype({dtype!r})")
    import numpy as np

    if not 1 <= dtype.bits < 8 or dtype.lanes == 0:
        raise ValueError(
            f"{dtype} is not a sub-byte type: 1 to 7 bits a lane are packed below a byte"
        )
    common = math.gcd(dtype.bits, 8)
    nbytes = dtype.bits // common
    word = np.uint8 if nbytes == 1 else np.uint64
    return word, nbytes, np.arange(8 // common, dtype=word) * word(dtype.bits)
