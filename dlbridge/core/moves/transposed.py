"""Copies inside host memory whose elements lie in another order: the fastest way for each.

numpy reads a column element by element, and is the fastest where a column is short or stays in
the caches. Where it is not (measured; docs/benchmarks/pack-choices.md has the tables):

* OpenCV, where the script has imported it: its transpose of elements of up to 4 bytes.
* Few elements in a run of the target (channels last): one pass for each.
* Rows that are a power of two apart: each column falls into a few cache sets, and a cache line is
  fetched again for each of its elements. These are copied in strips of one or two cache lines
  through a small buffer.
* Columns that lie on more pages than the TLB holds: the address of each element that numpy reads
  is looked up anew. These are copied in blocks.

torch's copy is not used: under its FakeTensorMode it copies nothing and raises no error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from math import gcd
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Move = Callable[[Array, Array], None]

__all__ = ["opencv_transpose", "pieces", "unit_axis", "way_to_transpose"]

# In bytes, if not said otherwise.
_PAGE = 4 << 10
_TLB = 1024  # pages whose addresses the processor remembers
_BLOCK = 256 << 10  # of the target: its columns lie on few pages

_CACHE_WAY = 128 << 10  # what lies a multiple of this apart shares a set of the L2
_CACHE_REACH = 256 << 10  # of columns; longer ones evict their own lines
_LEAST_CONFLICT = 512  # power of two between rows; below it numpy is faster
_LINE = 64
_BUFFER = 512 << 10  # of a strip at most, half of an L2
_STRIP_AT_LEAST = 16 << 10  # else Python's overhead shows
_PLANE_FOR_THREADS = 2 << 20  # elements; with strips of smaller ones threads wait for the GIL
_SHORT_RUN = 32
_LARGE = 16  # elements that make no use of a line's neighbours
_SHORT_COLUMN = 32  # elements
_OPENCV_NAMES = {1: "u1", 2: "i2", 4: "i4"}  # larger elements it moves no faster than numpy
_OPENCV_PLANE = 4 << 10  # below it the call takes longer than the copy
_OPENCV_STEP = 1 << 31  # between rows: from here on it crashes, or reads and writes elsewhere


def unit_axis(source: Array) -> int | None:
    """The axis along which *source*'s elements are neighbours."""
    steps = [abs(step) for step in source.strides]
    return steps.index(source.itemsize) if source.itemsize in steps else None


def opencv_transpose(itemsize: int) -> Callable[[Array, Array], Array] | None:
    """OpenCV's ``cv2.transpose(source, target)``, if it is faster for elements of this size.

    And where the script has imported it: a look into the module's dict imports nothing.
    """
    module = sys.modules.get("cv2")
    if itemsize not in _OPENCV_NAMES or not isinstance(module, ModuleType):
        return None
    transpose = ModuleType.__getattribute__(module, "__dict__").get("transpose")
    return transpose if callable(transpose) else None


def _planes(unit: int, target: Array, source: Array) -> Iterator[tuple[Array, Array]]:
    """Each plane of *target*, and the rows of *source* that are its columns."""
    import numpy as np

    targets, sources = np.moveaxis(target, unit, -2), np.moveaxis(source, unit, -2)
    for outer in np.ndindex(targets.shape[:-2]):
        yield targets[outer], sources[outer].T


def way_to_transpose(
    target: Array, source: Array, unit: int, threads: int
) -> tuple[Move, Array, Array, int]:
    """A function that copies, the two views that it takes, and how many threads shall call it.

    Both have their axes in the order of the target's memory. *unit* is the axis along which
    *source*'s elements are neighbours; it is not the last. *threads* is the most there may be.
    """
    import numpy as np

    if source.strides[unit] < 0:
        back = (slice(None),) * unit + (slice(None, None, -1),)
        target, source = target[back], source[back]
    move: Move = np.copyto
    transpose = opencv_transpose(target.itemsize)
    strip = _strip_nbytes(target, source, unit)
    small_planes = target.shape[unit] * target.shape[-1] < _PLANE_FOR_THREADS
    if transpose is not None and _opencv_takes(target, source, unit):
        move = partial(_copy_by_opencv, transpose, unit)
    elif target.itemsize <= 4 and target.shape[-1] * target.itemsize <= _SHORT_RUN:
        move = _copy_by_element
    elif strip and small_planes and threads > 1 and target.itemsize > 4:
        pass  # numpy's copy in two threads is faster than strips in one
    elif strip:
        move = partial(_copy_strips, unit, strip // target.itemsize)
        threads = 1 if small_planes else threads
    elif _pages_of_column(target, source) >= _TLB:
        move = _copy_blocks
    return move, target, source, threads


def _opencv_takes(target: Array, source: Array, unit: int) -> bool:
    """Whether the planes of both are matrices as OpenCV has them: rows of neighbours."""
    itemsize, rows, columns = target.itemsize, target.shape[unit], target.shape[-1]
    return (
        rows * columns * itemsize >= _OPENCV_PLANE
        and target.strides[-1] == itemsize
        and columns * itemsize <= target.strides[unit] < _OPENCV_STEP
        and rows * itemsize <= source.strides[-1] < _OPENCV_STEP
        and target.flags.aligned
        and source.flags.aligned
    )


def _copy_by_opencv(
    transpose: Callable[[Array, Array], Array], unit: int, target: Array, source: Array
) -> None:
    """Copy plane by plane: OpenCV's matrices have two dimensions."""
    import numpy as np

    name = _OPENCV_NAMES[target.itemsize]
    for plane, rows in _planes(unit, target.view(name), source.view(name)):
        if transpose(rows, plane) is not plane:
            np.copyto(plane, rows.T)  # the result lies in memory of its own


def _strip_nbytes(target: Array, source: Array, unit: int) -> int:
    """The width of strips, along the axis *unit* of the source; 0: numpy's copy is faster."""
    column, step = target.shape[-1], source.strides[-1]
    apart = gcd(step, _CACHE_WAY)
    if column < _SHORT_COLUMN or not step or column * apart < _CACHE_REACH:
        return 0
    if apart < max(_LEAST_CONFLICT, 2 * _LINE * target.itemsize) or target.itemsize > _LARGE:
        return 0
    # Two lines, one for small elements: a strip's columns stay in the L1.
    width = _LINE if target.itemsize <= 2 else 2 * _LINE
    width = max(width, _STRIP_AT_LEAST // column // _LINE * _LINE)
    return width if target.shape[unit] * target.itemsize >= width else 0


def _copy_strips(unit: int, width: int, target: Array, source: Array) -> None:
    """Copy by strips of *width* elements along axis *unit*, which is contiguous in *source*.

    A strip is read row by row into a buffer, whose columns are then close together.
    """
    import numpy as np

    columns = min(target.shape[-1], _BUFFER // (width * target.itemsize))
    pad = _LINE // target.itemsize  # so that wide strips' rows are not a power of two apart
    buffer = np.empty((columns, width + pad), target.dtype)[:, :width]
    for plane, rows in _planes(unit, target, source):
        for start in range(0, rows.shape[0], columns):
            _copy_plane(plane[:, start : start + columns], rows[start : start + columns], buffer)


def _copy_plane(plane: Array, rows: Array, buffer: Array) -> None:
    """``plane[...] = rows.T``, through *buffer*."""
    import numpy as np

    count, width = len(rows), buffer.shape[1]
    whole = rows.shape[1] // width * width
    # A row of the strip as one element: numpy moves it in one go.
    element = f"V{width * rows.itemsize}"
    strips, strip = rows[:, :whole].view(element), buffer.view(element)[:count, 0]
    column = buffer[:count].T
    for index in range(strips.shape[1]):
        np.copyto(strip, strips[:, index])
        np.copyto(plane[index * width : (index + 1) * width], column)
    np.copyto(plane[whole:], rows[:, whole:].T)


def _pages_of_column(target: Array, source: Array) -> int:
    """On how many pages the elements of *source* lie that become a run of *target*."""
    return int(target.shape[-1] * min(abs(source.strides[-1]), _PAGE) // _PAGE)


def _copy_blocks(target: Array, source: Array) -> None:
    """Copy one block after the other, so that the columns of each lie on few pages."""
    import numpy as np

    for piece, its_source in pieces(target, source, _BLOCK):
        np.copyto(piece, its_source)


def _copy_by_element(target: Array, source: Array) -> None:
    """Copy one element of every run of *target* after the other, within the cache."""
    import numpy as np

    for piece, its_source in pieces(target, source, _BUFFER):
        for index in range(piece.shape[-1]):
            np.copyto(piece[..., index], its_source[..., index])


def pieces(target: Array, source: Array, limit: int) -> Iterator[tuple[Array, Array]]:
    """Split both into corresponding parts of at most *limit* bytes, along the longest axis."""
    if target.nbytes <= limit or target.size == 1:
        yield target, source
        return
    axis = max(range(target.ndim), key=target.shape.__getitem__)
    half = target.shape[axis] // 2
    half -= half % 128 if half > 128 else 0  # whole cache lines, and whole strips
    for part in (slice(half), slice(half, None)):
        where = (*(slice(None),) * axis, part)
        yield from pieces(target[where], source[where], limit)
