"""Conversions by look-up: each code of a source of 16 bits or fewer has its result in a table.

Measured with ``python -m dlbridge bench astype``: a look-up takes 0.8 ns, a conversion
to or from floats of 8 bits and fewer in ml_dtypes 6 to 12 ns.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .ranges import saturation
from .routes import BFLOAT16, BOOL, cast, route

if TYPE_CHECKING:
    import numpy as np

    from dlbridge.core.values.dtypes import DType

    from .routes import Convert

    Array = np.ndarray[Any, Any]

__all__ = ["TABLE16", "by_byte", "by_code", "by_odd_rounding", "convert_once"]

TABLE16 = 1 << 16
"""The entries of a table for 16 bits. It pays for as many elements."""

_RAW = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
"""By bytes: the types that numpy takes from a table as one piece."""


def convert_once(source: Array, start: DType, target: DType, saturate: bool) -> Array:
    """The elements of *source*, of type *start*, as a new array of *target*: without tables."""
    import numpy as np

    found = source
    for kind in route(start, target):
        after = np.empty(found.shape, kind.numpy)
        cast(found, after)
        found = after
    correct = saturation(start, target) if saturate else None
    if correct is not None:
        correct(source, found)
    return found


# The large ones: 64 KiB to 1 MiB each.
@lru_cache(maxsize=16)
def _table16(source: DType, target: DType, saturate: bool) -> Array:
    import numpy as np

    codes = np.arange(TABLE16, dtype="u2").view(source.numpy)
    return _raw(convert_once(codes, source, target, saturate))


@lru_cache(maxsize=256)
def _table8(source: DType, target: DType, saturate: bool) -> Array:
    """256 results; of codes below a byte only the low bits count."""
    import numpy as np

    codes = np.arange(256, dtype="u1") & np.uint8((1 << source.bits) - 1)
    if source is BOOL:
        codes = (codes != 0).view("u1")
    return _raw(convert_once(codes.view(source.numpy), source, target, saturate))


def _raw(array: Array) -> Array:
    array = array.view(_RAW[array.itemsize])
    array.flags.writeable = False
    return array


def by_code(source: DType, target: DType, saturate: bool, length: int) -> Convert:
    """A conversion of at most *length* elements, each of 8 or 16 bits or of one byte."""
    import numpy as np

    table = (_table16 if source.bits == 16 else _table8)(source, target, saturate)
    codes = "u2" if source.bits == 16 else "u1"
    places = np.empty(length, np.intp)  # numpy would convert them itself, with new memory

    def convert(before: Array, after: Array) -> None:
        index = places[: before.size]
        index[...] = before.view(codes)
        # mode="wrap": no copy of the result, as checks of the places would need.
        np.take(table, index, out=after.view(table.dtype), mode="wrap")

    return convert


def by_byte(source: DType, target: DType, saturate: bool, length: int) -> Convert:
    """A conversion of packed elements of 1, 2 or 4 bits: one look-up for each byte."""
    import numpy as np

    count = 8 // source.bits
    single = _table8(source, target, saturate)
    shifts = np.arange(count, dtype="u1") * np.uint8(source.bits)
    codes = np.arange(256, dtype="u1")[:, None] >> shifts & np.uint8((1 << source.bits) - 1)
    table = single[codes]
    places = np.empty(-(-length // count), np.intp)

    def convert(before: Array, after: Array) -> None:
        after = after.view(table.dtype)
        whole, rest = divmod(after.size, count)
        index = places[:whole]
        index[...] = before[:whole]
        groups = after[: whole * count].reshape(whole, count)
        np.take(table, index, axis=0, out=groups, mode="wrap")
        if rest:
            after[whole * count :] = table[before[whole], :rest]

    return convert


def by_odd_rounding(target: DType, saturate: bool, length: int) -> Convert:
    """A conversion of float32 to a float of 8 bits or fewer.

    The upper 16 bits of a float32 are a bfloat16. Its last bit is set if any lower
    bit was ("rounding to odd"), so that a number between two bfloat16 stays between
    them. With 8 significant bits it then rounds to *target*, which has 5 at most,
    as the float32 does.
    """
    import numpy as np

    table = _table16(BFLOAT16, target, saturate)
    words, places = np.empty(length, "u4"), np.empty(length, np.intp)
    low = np.uint32(0xFFFF)

    def convert(before: Array, after: Array) -> None:
        bits = before.view("u4")
        word, index = words[: bits.size], places[: bits.size]
        np.bitwise_and(bits, low, out=word)
        word += low  # carries into bit 16 if one of the lower bits is set
        word |= bits
        word >>= np.uint32(16)
        index[...] = word
        np.take(table, index, out=after.view(table.dtype), mode="wrap")

    return convert
