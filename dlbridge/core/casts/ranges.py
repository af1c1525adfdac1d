"""The finite range of a dtype, and what `saturate` does with values outside of it."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dlbridge.core.values.dtypes import DLDataTypeCode, DType

from .routes import FLOAT32, cast, is_complex, is_small_float, part

if TYPE_CHECKING:
    import numpy as np

    from .routes import Convert

    Array = np.ndarray[Any, Any]

__all__ = ["saturation"]

_INT16 = DType.of(DLDataTypeCode.kDLInt, 16)


@lru_cache(maxsize=64)
def _finite_range(dtype: DType) -> tuple[float, float]:
    """The lowest and the highest finite value: of integers as int, which is exact."""
    if dtype.code == DLDataTypeCode.kDLUInt:
        return 0, (1 << dtype.bits) - 1
    if dtype.code == DLDataTypeCode.kDLInt:
        return -(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1
    import numpy as np

    info: Any
    if dtype.numpy.isbuiltin == 1:
        info = np.finfo(dtype.numpy)
    else:
        import ml_dtypes

        info = ml_dtypes.finfo(dtype.numpy)
    return float(info.min), float(info.max)


def _has_nan(dtype: DType) -> bool:
    """Whether it can hold NaN: integers cannot, nor floats below 8 bits."""
    is_float = dtype.code not in (DLDataTypeCode.kDLInt, DLDataTypeCode.kDLUInt)
    return is_float and dtype.bits >= 8


def saturation(source: DType, target: DType) -> Convert | None:
    """A function that corrects converted elements whose source is out of range; None if none is.

    It takes the elements before and after. Out of range is what is above the highest
    or below the lowest finite value of *target*: infinities, too. NaN becomes 0
    where *target* has no NaN.
    """
    if target.code == DLDataTypeCode.kDLBool:
        return None  # whether a number is 0: there is no range
    real, result = part(source), part(target)
    compared = _comparable(real)
    correct = _correction(compared, result)
    if correct is None:
        return None

    def saturate(before: Array, after: Array) -> None:
        parts = _parts(before, source, compared)
        both = is_complex(source) and is_complex(target)
        if is_complex(source) and not both:
            parts = parts[::2]
        after = after.view(result.numpy)
        correct(parts, after[::2] if is_complex(target) and not both else after)

    return saturate


def _comparable(real: DType) -> DType:
    """A type of numpy that holds all values of *real*, so that they can be compared fast."""
    if real.code in (DLDataTypeCode.kDLInt, DLDataTypeCode.kDLUInt):
        return real if real.bits >= 8 else _INT16
    if real.code == DLDataTypeCode.kDLBool:
        return _INT16
    return FLOAT32 if is_small_float(real) or real.bits == 16 else real


def _parts(elements: Array, dtype: DType, compared: DType) -> Array:
    """The numbers of *elements* as *compared*; of complex ones both parts."""
    import numpy as np

    numbers = elements.view(part(dtype).numpy)
    if numbers.dtype == compared.numpy:
        return numbers
    found = np.empty(numbers.shape, compared.numpy)
    cast(numbers, found)
    return found


def _correction(source: DType, target: DType) -> Convert | None:
    """`saturation` for real numbers, *source* being of numpy."""
    import numpy as np

    low, high = _finite_range(target)
    least, most = _bounds(source, low, high)
    can_be_nan = source.numpy.kind == "f" and not _has_nan(target)
    if least is None and most is None and not can_be_nan:
        return None
    lowest, highest = (np.array(value).astype(target.numpy) for value in (low, high))
    nothing = np.array(0, "u1").astype(target.numpy)

    def correct(before: Array, after: Array) -> None:
        if most is not None:
            _put(after, before > most, highest)
        if least is not None:
            _put(after, before < least, lowest)
        if can_be_nan:
            _put(after, before != before, nothing)  # NaN

    return correct


def _put(after: Array, mask: Array, value: Array) -> None:
    if mask.any():
        after[mask] = value


def _bounds(source: DType, low: float, high: float) -> tuple[Any, Any]:
    """The least and the greatest number of *source* in the range; None where all others are."""
    import numpy as np

    kind = source.numpy.type
    if source.numpy.kind != "f":
        lowest, highest = _finite_range(source)
        least, most = math.ceil(low), math.floor(high)
        return (
            kind(least) if least > lowest else None,
            kind(most) if most < highest else None,
        )
    with np.errstate(over="ignore", under="ignore"):
        least, most = kind(low), kind(high)
        if float(least) < low:
            least = np.nextafter(least, kind(np.inf))
        if float(most) > high:
            most = np.nextafter(most, kind(-np.inf))
    return least, most
