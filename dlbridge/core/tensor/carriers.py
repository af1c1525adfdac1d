"""Carriers: the private numpy arrays that hold a tensor's shape, strides and memory.

If the host may read the memory, the carrier is a view of it. Otherwise the
carrier has an address that is never read, and numpy only computes views and
strides, and makes the capsules in C (``core/dlpack/exports.py`` says why). The
chain of a carrier's bases ends at the `Memory`.
"""

from __future__ import annotations

import ctypes
import operator
from functools import cache
from typing import TYPE_CHECKING, Any

from dlbridge.core.values.dtypes import DType, fill_numpy_dtypes
from dlbridge.core.values.layout import MAX_NBYTES, compact_strides

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from .memory import Memory


# The address of carriers of memory that the host cannot read: aligned, and never
# dereferenced.
NOWHERE = 1 << 40


class CarrierBase:
    """The object that numpy takes a carrier from, and keeps as its base."""

    __slots__ = ()

    memory: Memory
    parent: np.ndarray[Any, Any] | None
    """The carrier that it is a view of: the block of a host view counts who refers to that."""


class _Interface(CarrierBase):
    """What describes any carrier. Numpy takes a microsecond to read it."""

    __slots__ = ("__array_interface__", "memory", "parent")

    __array_interface__: dict[str, Any]


class _Buffer(CarrierBase, ctypes.c_ubyte * MAX_NBYTES):  # type: ignore[misc]  # a class that is made
    """All memory from an address on, which numpy may write to. It takes a quarter of that time."""

    __slots__ = ("memory", "parent")


_buffer_at: Callable[[int], _Buffer] = _Buffer.from_address


def carrier(
    memory: Memory,
    byte_offset: int,
    dtype: DType,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    readonly: bool,
    parent: np.ndarray[Any, Any] | None = None,
) -> np.ndarray[Any, Any]:
    """A new carrier of the type `carrier_dtype`; *strides* in elements, None for compact."""
    made: np.ndarray[Any, Any]
    numpy, kind, itemsize = _makers[dtype] if dtype in _makers else _maker(dtype)
    # The address of an empty tensor means nothing: it may be NULL, or no address.
    readable = memory.device.is_host and 0 not in shape
    data = memory.data + byte_offset if readable else NOWHERE
    steps = strides and tuple([step * itemsize for step in strides])
    if not readonly:  # who has a view of a buffer could make it writable again
        buffer = _buffer_at(data)
        buffer.memory = memory
        buffer.parent = parent
        try:
            made = numpy.ndarray(shape, kind, buffer, 0, steps)
            return made
        except (OverflowError, TypeError, ValueError):
            pass  # elements before the first one, or extents that nothing has
    holder = _Interface()
    holder.memory = memory
    holder.parent = parent
    holder.__array_interface__ = {
        "version": 3,
        "data": (data, readonly),
        "shape": shape,
        "typestr": kind.str,
        "strides": steps,
    }
    try:
        made = numpy.asarray(holder)
        return made
    except OverflowError:
        # A stride that is never used (one element, or none) may be any number.
        step = compact_strides(shape)
        taken = [shape[i] > 1 and 0 not in shape for i in range(len(shape))]
        tame = tuple(s if t else c for s, t, c in zip(strides or step, taken, step, strict=True))
        if tame == strides:
            raise
        return carrier(memory, byte_offset, dtype, shape, tame, readonly, parent)


@cache
def carrier_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy dtype of carriers for *dtype*: one that numpy exports.

    For a type without a numpy dtype of its size (packed sub-byte types, three
    lanes) the carrier counts elements, a byte for each.
    """
    import numpy as np

    own = {ours: theirs for theirs, ours in native_dtypes().items()}
    return own.get(dtype) or np.dtype(_CARRIERS.get(dtype.bits * dtype.lanes, "uint8"))


def _maker(dtype: DType) -> tuple[Any, np.dtype[Any], int]:
    """How carriers for *dtype* are made: numpy, and their type and its size."""
    import numpy as np

    kind = carrier_dtype(dtype)
    made = _makers[dtype] = np, kind, kind.itemsize
    return made


def native_dtypes() -> dict[np.dtype[Any], DType]:
    """The dtypes that numpy has and exports by itself."""
    if not NATIVE_DTYPES:
        found = fill_numpy_dtypes().copy()
        NATIVE_DTYPES.update({their: ours for their, ours in found.items() if their.isbuiltin == 1})
    return NATIVE_DTYPES


_CARRIERS = {8: "uint8", 16: "uint16", 32: "uint32", 64: "uint64", 128: "complex128"}
_makers: dict[DType, tuple[Any, np.dtype[Any], int]] = {}
"""What `_maker` has found: to ask numpy for it takes as long as to make the carrier."""

NATIVE_DTYPES: dict[np.dtype[Any], DType] = {}
"""Filled by `native_dtypes`, for callers that cannot afford a call."""


def counts_elements(dtype: DType) -> bool:
    """Whether carriers for *dtype* have one byte per element, whatever its size."""
    return dtype.bits * dtype.lanes not in _CARRIERS


def basic_index(index: Any) -> tuple[Any, ...]:
    """*index* in a form that is safe for numpy: int, slice, None and Ellipsis.

    Other indices would make numpy read the carrier, whose address may not be
    memory. They raise TypeError or IndexError.
    """
    if type(index) is slice:
        return index, Ellipsis
    given = index if isinstance(index, tuple) else (index,)
    parts = tuple(map(_part, given))
    if Ellipsis not in parts:
        parts = (*parts, Ellipsis)  # numpy then gives an array and never reads an element
    return parts


def _part(part: Any) -> Any:
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    try:
        if not isinstance(part, bool):
            index = operator.index(part)
            if not -(1 << 63) <= index < 1 << 63:
                raise IndexError(f"index {index} is out of bounds: no dimension is as long")
            return index
    except TypeError:
        pass
    raise TypeError(
        "a Tensor is indexed by int, slice, None and Ellipsis, not "
        f"{type(part).__name__}; use the array library's own indexing on like='numpy' or "
        "like='torch'"
    )
