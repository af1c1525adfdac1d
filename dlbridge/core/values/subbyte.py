"""Packing of elements below a byte, in the bit order that DLPack prescribes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dlbridge.core.public import public

from .dtypes import dtype as as_dtype

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from dlbridge.typing import DTypeLike

    from .dtypes import DType


@public
def unpack_bits(data: memoryview | bytes, dtype: DTypeLike, count: int) -> npt.NDArray[np.uint8]:
    r"""Return the raw codes of packed elements of a sub-byte type, one byte for each code.

    Parameters
    ----------
    data : bytes or memoryview
        The packed elements, contiguous. The bit order is little-endian
        (``dlpack.h`` 1.3, DLDataType): code *i* is
        ``(data >> (i * bits)) & mask``.
    dtype : DTypeLike
        A type with 1 to 7 bits per lane, such as ``"int4"``.
    count : int
        The number of elements.

    Returns
    -------
    numpy.ndarray
        Of uint8, shape ``(count * dtype.lanes,)``. A negative ``int4`` keeps its
        two's complement: -1 is 15.

    Raises
    ------
    TypeError
        If *dtype* is not a dtype.
    ValueError
        If *data* is too short, or a lane has 8 bits or more.

    Examples
    --------
    >>> bridge.unpack_bits(b"\x21\x03", "uint4", 3)
    array([1, 2, 3], dtype=uint8)
    """
    import numpy as np

    kind = _subbyte(dtype)
    need = kind.nbytes(count)
    packed = np.frombuffer(data, np.uint8)
    if count < 0 or packed.size < need:
        raise ValueError(f"{count} elements of {kind} take {need} bytes; there are {packed.size}")
    lanes = count * kind.lanes
    bits = np.unpackbits(packed, count=lanes * kind.bits, bitorder="little")
    codes: np.ndarray[Any, np.dtype[np.uint8]]
    codes = bits.reshape(lanes, kind.bits) @ (1 << np.arange(kind.bits)).astype("u1")
    return codes


@public
def pack_bits(codes: npt.ArrayLike, dtype: DTypeLike) -> bytes:
    r"""Return codes as packed elements of a sub-byte type: the inverse of `unpack_bits`.

    Parameters
    ----------
    codes : array_like
        Integers, one for each lane. Only the low bits of a code are used: in padded storage
        DLPack leaves the high bits undefined. So a negative integer is its two's complement,
        the code of that number of an ``int4``.
    dtype : DTypeLike
        A type with 1 to 7 bits per lane, such as ``"int4"``.

    Returns
    -------
    bytes
        ``dtype.nbytes(count)`` bytes; unused bits are zero.

    Raises
    ------
    TypeError
        If *codes* are not integers, or *dtype* is not a dtype.
    ValueError
        If the codes are not a whole number of elements, or a lane has 8 bits or
        more.

    Examples
    --------
    >>> bridge.pack_bits([1, 2, 3], "uint4")
    b'!\x03'
    """
    import numpy as np

    kind = _subbyte(dtype)
    try:
        array = np.asarray(codes)
    except RuntimeError:  # torch's ReadOnlyTensorWrapper allows DLPack's methods only
        producer: Any = codes
        if not hasattr(producer, "__dlpack__"):
            raise
        array = np.from_dlpack(producer)
    if array.dtype.kind not in "ui" and array.size:
        codes_of = "array.view(numpy.uint8) has the codes of its values"
        way = codes_of if array.itemsize == 1 else f"dlbridge.astype(x, '{kind}') packs numbers"
        raise TypeError(f"codes are integers, not {array.dtype}: {way}")
    flat = array.astype(np.uint8).reshape(-1)
    if flat.size % kind.lanes:
        raise ValueError(f"{flat.size} codes are not a whole number of {kind}: it has {kind.lanes}")
    # The smallest group of codes that fills whole bytes; 6 bits: 4 codes in 3 bytes.
    common = math.gcd(kind.bits, 8)
    length, nbytes = 8 // common, kind.bits // common
    word: Any = np.uint8 if nbytes == 1 else np.uint64
    groups = np.zeros((-(-flat.size // length), length), word)
    groups.reshape(-1)[: flat.size] = flat & np.uint8((1 << kind.bits) - 1)
    words = np.zeros(len(groups), word)
    for i in range(length):
        words |= groups[:, i] << word(kind.bits * i)
    words = words.astype(words.dtype.newbyteorder("<"), copy=False)
    packed = words[:, None].view(np.uint8)[:, :nbytes].tobytes()
    return bytes(packed[: kind.nbytes(flat.size // kind.lanes)])


def _subbyte(dtype: DTypeLike) -> DType:
    kind = as_dtype(dtype)
    if not 1 <= kind.bits < 8 or kind.lanes == 0:
        raise ValueError(
            f"{kind} is not a sub-byte type: 1 to 7 bits a lane are packed below a byte"
        )
    return kind
