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

    kind = as_dtype(dtype)
    word, nbytes, shifts = _groups(kind)
    need = kind.nbytes(count)
    packed = np.frombuffer(data, np.uint8)
    if count < 0 or packed.size < need:
        raise ValueError(f"{count} elements of {kind} take {need} bytes; there are {packed.size}")
    groups = np.zeros((-(-need // nbytes), nbytes), word)
    groups.reshape(-1)[:need] = packed[:need]
    words = np.zeros(len(groups), word)
    for i in range(nbytes):
        words |= groups[:, i] << word(8 * i)
    codes = (words[:, None] >> shifts) & word((1 << kind.bits) - 1)
    raw: np.ndarray[Any, np.dtype[np.uint8]] = codes.reshape(-1)[: count * kind.lanes].astype("u1")
    return raw


@public
def pack_bits(codes: npt.ArrayLike, dtype: DTypeLike) -> bytes:
    r"""Return codes as packed elements of a sub-byte type: the inverse of `unpack_bits`.

    Parameters
    ----------
    codes : array_like
        Unsigned integers, one for each lane. Only the low bits of a code are
        used: in padded storage DLPack leaves the high bits undefined.
    dtype : DTypeLike
        A type with 1 to 7 bits per lane, such as ``"int4"``.

    Returns
    -------
    bytes
        ``dtype.nbytes(count)`` bytes; unused bits are zero.

    Raises
    ------
    TypeError
        If *codes* are not unsigned integers, or *dtype* is not a dtype.
    ValueError
        If the codes are not a whole number of elements, or a lane has 8 bits or
        more.

    Examples
    --------
    >>> bridge.pack_bits([1, 2, 3], "uint4")
    b'!\x03'
    """
    import numpy as np

    kind = as_dtype(dtype)
    word, nbytes, shifts = _groups(kind)
    try:
        given = np.asarray(codes)
    except RuntimeError:  # torch's ReadOnlyTensorWrapper allows DLPack's methods only
        array: Any = codes
        if not hasattr(array, "__dlpack__"):
            raise
        given = np.from_dlpack(array)
    if given.dtype.kind not in "ui" and given.size:
        raise TypeError(
            f"codes are unsigned bytes, not {given.dtype}: give array.view(numpy.uint8), which"
            " shows the codes and not the values"
        )
    flat = given.astype(np.uint8).reshape(-1)
    if flat.size % kind.lanes:
        raise ValueError(f"{flat.size} codes are not a whole number of {kind}: it has {kind.lanes}")
    lanes = np.zeros((-(-flat.size // len(shifts)), len(shifts)), word)
    lanes.reshape(-1)[: flat.size] = flat & np.uint8((1 << kind.bits) - 1)
    words = np.zeros(len(lanes), word)
    for i, shift in enumerate(shifts):
        words |= lanes[:, i] << shift
    packed: npt.NDArray[np.uint8] = np.empty((len(words), nbytes), np.uint8)
    for i in range(nbytes):
        packed[:, i] = (words >> word(8 * i)) & word(255)
    return bytes(packed.reshape(-1)[: kind.nbytes(flat.size // kind.lanes)])


def _groups(dtype: DType) -> tuple[Any, int, npt.NDArray[Any]]:
    """The smallest group of codes that fills whole bytes.

    Gives the integer type to compute in, the bytes of a group, and the shift of
    each code.

    6 bits: 4 codes in 3 bytes. 4 bits: 2 codes in 1 byte.
    """
    import numpy as np

    if not 1 <= dtype.bits < 8 or dtype.lanes == 0:
        raise ValueError(
            f"{dtype} is not a sub-byte type: 1 to 7 bits a lane are packed below a byte"
        )
    common = math.gcd(dtype.bits, 8)
    nbytes = dtype.bits // common
    word: Any = np.uint8 if nbytes == 1 else np.uint64
    return word, nbytes, np.arange(8 // common, dtype=word) * word(dtype.bits)
