"""The fastest conversion for a pair of dtypes, as a function of one chunk."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dlbridge.core.values.subbyte import unpack_bits

from .packing import packer
from .ranges import saturation
from .routes import BFLOAT16, BOOL, FLOAT16, FLOAT32, cast, is_small_float, part, route
from .tables import TABLE16, by_byte, by_code, by_odd_rounding

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from dlbridge.core.values.dtypes import DType

    from .routes import Convert

    Array = np.ndarray[Any, Any]
    ConvertChunk = Callable[[Array, Array, int], None]

__all__ = ["converter", "is_direct"]


@lru_cache(maxsize=2048)
def is_direct(source: DType, target: DType) -> bool:
    """Whether one call of numpy or ml_dtypes is the fastest way, without saturation."""
    whole = source.bits >= 8 and target.bits >= 8
    return whole and not _is_slow(source, target) and len(route(source, target)) == 1


def converter(
    source: DType, target: DType, *, padded: bool, saturate: bool, count: int, length: int
) -> ConvertChunk:
    """A function that converts a chunk of *source* into a chunk of *target*.

    Both have one lane. Types of whole bytes come as arrays of their numpy type,
    others as bytes: packed, or one for each code of *source* if *padded*. *count*
    elements are converted in all, *length* at most in a call. The function keeps
    temporary arrays, so it is for one thread.
    """
    packed = source.bits < 8 and not padded
    if packed and 8 % source.bits == 0:
        convert = by_byte(source, target, saturate, length)
    elif source.bits < 8:
        convert = by_code(source, target, saturate, length)
    else:
        convert = _whole_bytes(source, target, saturate, count, length)
    if packed and 8 % source.bits:
        convert = _unpack_first(source, convert)
    if target.bits < 8:
        return _pack_after(target, convert, length)
    return lambda before, after, _count: convert(before, after)


def _whole_bytes(source: DType, target: DType, saturate: bool, count: int, length: int) -> Convert:
    """The conversion of elements of one byte and more."""
    slow = _is_slow(source, target)
    if source.bits == 8 and (slow or saturate):
        return by_code(source, target, saturate, length)
    if source.bits == 16 and count >= TABLE16 and (slow or saturate):
        return by_code(source, target, saturate, length)
    steps = _steps(source, target, saturate, count, length)
    correct = saturation(source, target) if saturate else None
    if correct is None or (is_small_float(target) and count >= TABLE16):
        return steps  # the table for the last step saturates

    def convert(before: Array, after: Array) -> None:
        steps(before, after)
        correct(before, after)

    return convert


def _is_slow(source: DType, target: DType) -> bool:
    """Whether a look-up is better than the conversion of numpy or ml_dtypes (measured)."""
    if is_small_float(source) or is_small_float(target):
        return True
    if source is BOOL:
        # A byte that is neither 0 nor 1 is true for numpy; ml_dtypes takes it as a number.
        return target.numpy.isbuiltin != 1
    if source is FLOAT16:
        return target.bits <= 32 and target is not FLOAT16
    return part(target) is FLOAT16 and source is not BFLOAT16


def _steps(source: DType, target: DType, saturate: bool, count: int, length: int) -> Convert:
    """The conversions of `route`, one after the other."""
    import numpy as np

    kinds = route(source, target)
    steps: list[tuple[Convert, Array | None]] = []
    start = source
    for kind in kinds:
        step: Convert = cast
        if is_small_float(kind) and start is FLOAT32 and count >= TABLE16:
            step = by_odd_rounding(kind, saturate, length)
        room = None if len(steps) == len(kinds) - 1 else np.empty(length, kind.numpy)
        steps.append((step, room))
        start = kind
    if len(steps) == 1:
        return steps[0][0]

    def convert(before: Array, after: Array) -> None:
        for step, room in steps:
            result = after if room is None else room[: before.size]
            step(before, result)
            before = result

    return convert


def _unpack_first(source: DType, convert: Convert) -> Convert:
    def unpack(before: Array, after: Array) -> None:
        convert(unpack_bits(before.data, source, after.size), after)

    return unpack


def _pack_after(target: DType, convert: Convert, length: int) -> ConvertChunk:
    """*convert*, and then its codes packed into whole bytes."""
    import numpy as np

    # Packed in groups of 8 codes: those after the last one are zero.
    codes = np.zeros(-(-length // 8) * 8, "u1")
    groups = np.empty(codes.size // 8 * target.bits, "u1")
    elements = codes.view(target.numpy)
    pack = packer(target, codes.size)

    def convert_and_pack(before: Array, after: Array, count: int) -> None:
        convert(before, elements[:count])
        whole = -(-count // 8) * 8
        codes[count:whole] = 0
        if after.size * 8 == whole * target.bits:
            pack(codes[:whole], after)
            return
        packed = groups[: whole // 8 * target.bits]
        pack(codes[:whole], packed)
        after[...] = packed[: after.size]

    return convert_and_pack
