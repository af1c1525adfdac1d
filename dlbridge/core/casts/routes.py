"""The conversions of numpy and ml_dtypes, and the way through other types where they have none."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dlbridge.core.values.dtypes import DLDataTypeCode, DType
from dlbridge.errors import ExchangeError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    Array = np.ndarray[Any, Any]
    Convert = Callable[[Array, Array], None]

__all__ = [
    "BFLOAT16",
    "BOOL",
    "FLOAT16",
    "FLOAT32",
    "cast",
    "is_complex",
    "is_small_float",
    "part",
    "require",
    "route",
]

BFLOAT16 = DType.of(DLDataTypeCode.kDLBfloat, 16)
FLOAT16 = DType.of(DLDataTypeCode.kDLFloat, 16)
FLOAT32 = DType.of(DLDataTypeCode.kDLFloat, 32)
BOOL = DType.of(DLDataTypeCode.kDLBool, 8)
_COMPLEX32 = DType.of(DLDataTypeCode.kDLComplex, 32)
_COMPLEX64 = DType.of(DLDataTypeCode.kDLComplex, 64)
_INT8 = DType.of(DLDataTypeCode.kDLInt, 8)
_INT32 = DType.of(DLDataTypeCode.kDLInt, 32)
_INTEGERS = (DLDataTypeCode.kDLInt, DLDataTypeCode.kDLUInt)


def is_complex(dtype: DType) -> bool:
    """Whether an element is two floats."""
    return dtype.code == DLDataTypeCode.kDLComplex


def is_small_float(dtype: DType) -> bool:
    """Whether it is a float of 8 bits or fewer."""
    return dtype.code >= DLDataTypeCode.kDLFloat8_e3m4


def part(dtype: DType) -> DType:
    """The type of the real part: of a float or an integer, the type itself."""
    return DType.of(DLDataTypeCode.kDLFloat, dtype.bits // 2) if is_complex(dtype) else dtype


def require(dtype: DType) -> None:
    """ExchangeError, with the reason, if neither numpy nor ml_dtypes has *dtype*."""
    try:
        _ = dtype.numpy
    except ExchangeError as exc:
        raise ExchangeError(
            f"astype converts the types of numpy and ml_dtypes, and {dtype} is none: {exc}"
        ) from exc


def cast(source: Array, target: Array) -> None:
    """Convert the elements as numpy or ml_dtypes does; of complex ones maybe the real part."""
    import numpy as np

    if source.dtype.kind == "c" and target.dtype.kind in "iuf":
        source = source.real
    np.copyto(target, source, casting="unsafe")


@lru_cache(maxsize=2048)
def route(source: DType, target: DType) -> tuple[DType, ...]:
    """The types that elements of *source* become one after the other; *target* is the last.

    Each step is a conversion of numpy or of ml_dtypes. There are steps where
    neither has the conversion, and where two fast ones give the same bits as a slow
    one.
    """
    through = _first(source, target)
    return (target,) if through is None else (through, *route(through, target))


def _first(source: DType, target: DType) -> DType | None:
    """The type on the way from *source* to *target*; None if there is none."""
    if source is _COMPLEX32 is not target:
        return _COMPLEX64  # ml_dtypes converts others through Python objects, 1 us each
    if is_complex(source) and not is_complex(target) and target is not BOOL:
        return None if part(source) is target else part(source)
    if is_small_float(target) and source.bits > 16 and source is not FLOAT32:
        return None if is_complex(source) else FLOAT32  # as ml_dtypes does itself
    if target.bits < 8 and target.code in _INTEGERS and _is_wide_float(source):
        return _INT32  # both steps use vector instructions
    if _has_cast(source, target):
        return None
    integers = source.code in _INTEGERS and target.code in _INTEGERS
    return _INT8 if integers else FLOAT32


def _is_wide_float(dtype: DType) -> bool:
    return dtype.code == DLDataTypeCode.kDLFloat and dtype.bits >= 32


def _has_cast(source: DType, target: DType) -> bool:
    """Whether one call converts: ml_dtypes has no int4 to uint4, for example."""
    import numpy as np

    try:
        np.copyto(np.empty(0, target.numpy), np.empty(0, source.numpy), casting="unsafe")
    except TypeError:
        return False
    return True
