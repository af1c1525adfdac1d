"""Shapes: tuples of integers, which are Shape objects to the library."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

from .._lib import C, ffi
from ..values.words import HEADER, Handle, Temporaries, untrack
from .elements import build

if TYPE_CHECKING:
    from ..values.words import Packer

__all__ = ["Shape", "shape_of", "shape_rule"]

_SHAPE: Final[int] = C.kTVMFFIShape


class Shape(tuple[int, ...]):
    """The dimensions of a tensor: a tuple, which goes to C as a Shape object.

    Parameters
    ----------
    content : iterable of int
        Integers of 64 bits.

    Raises
    ------
    ValueError
        If one has more bits.

    Examples
    --------
    >>> ffi.Shape((2, 3))
    Shape((2, 3))
    """

    __module__ = "dlbridge.ffi"  # where users and pickles find it

    # The object, once it was passed; a tuple's subclass has no other place for it.
    _object: Handle | None = None

    def __new__(cls, content: Iterable[SupportsIndex] = ()) -> Shape:
        """A Shape of the integers in *content*."""
        shape = super().__new__(cls, map(operator.index, content))
        for size in shape:
            if not -(1 << 63) <= size < 1 << 63:
                raise ValueError(f"a dimension of a Shape is an int of 64 bits; {size} has more")
        return shape

    def __repr__(self) -> str:
        return f"Shape({super().__repr__()})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (tuple(self),)


def _pack_shape(value: Any, keep: Temporaries) -> tuple[int, int]:
    """A Shape, or another tuple of integers, as a Shape object."""
    handle = getattr(value, "_object", None)
    if not isinstance(handle, Handle):
        handle = build("ffi.Shape", tuple(value), keep)
        if isinstance(value, Shape):
            untrack(handle)
            value._object = handle
    keep.append(handle)
    return _SHAPE, handle


def shape_rule(cls: type) -> Packer | None:
    """Packers for Shapes, ours and tvm_ffi's."""
    peer = getattr(sys.modules.get("tvm_ffi"), "Shape", Shape)
    return _pack_shape if issubclass(cls, (Shape, peer)) else None


def shape_of(owned: Handle, _index: int) -> Shape:
    """A Shape object as a tuple, which keeps it and passes it again."""
    cell = ffi.cast("TVMFFIShapeCell *", owned + HEADER)
    shape = tuple.__new__(Shape, ffi.unpack(cell.data, cell.size) if cell.size else ())
    untrack(owned)
    shape._object = owned
    return shape
