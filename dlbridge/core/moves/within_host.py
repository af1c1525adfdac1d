"""Fast copies inside host memory, for all strides.

numpy's own copy is the fastest for nearly all layouts. This module finds the
exceptions (measured by ``python -m dlbridge bench pack``; the reasons are in
``docs/benchmarks/pack-choices.md``):

* Transposed pairs whose rows are a power of two apart: each column that numpy
  reads falls into a few cache sets, and a cache line is fetched again for each
  of its elements. These are copied in strips of one or two cache lines through a
  small buffer.
* Transposed pairs whose columns lie on more pages than the TLB holds: the address
  of each element that numpy reads is looked up anew. These are copied in blocks.
* Few elements in a run of the target (channels last): one pass for each.
* Large transposed pairs, and anything of 256 MiB: two threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from math import gcd
from typing import TYPE_CHECKING, Any

from dlbridge.core.plugins.cpu import usable_cores

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Move = Callable[[Array, Array], None]
    Progress = Callable[[int, int], None]

__all__ = ["copy_host"]

# All sizes in bytes.
_SMALL = 256 << 10  # below it nothing pays for its own overhead
_CHUNK = 64 << 20  # after each, Ctrl-C and progress
_THREADS_FROM = 256 << 20  # two threads, for what memory bandwidth limits
_THREADS_FROM_TRANSPOSED = 16 << 20  # and for what the caches limit
_THREADS = 2

_PAGE = 4 << 10
_TLB = 1024  # pages whose addresses the processor remembers
_BLOCK = 256 << 10  # of the target: its columns lie on few pages

_CACHE_WAY = 128 << 10  # what lies a multiple of this apart shares a set of the L2
_CACHE_REACH = 256 << 10  # of columns; longer ones evict their own lines
_LEAST_CONFLICT = 512  # power of two between rows; below it numpy is faster
_LINE = 64
_BUFFER = 512 << 10  # of a strip at most, half of an L2
_STRIP_AT_LEAST = 16 << 10  # else Python's overhead shows
_SHORT_RUN = 32
_LARGE = 16  # elements that make no use of a line's neighbours
_SHORT_COLUMN = 32  # elements


def copy_host(target: Array, source: Array, progress: Progress | None = None) -> None:
    """Copy the bytes of *source* to *target*: same shape, same item size, any strides.

    Nothing is converted, whatever the two dtypes are. The arrays may overlap; an
    element of *source* may be read many times (stride 0). The GIL is released.
    Between chunks of at most 64 MiB Ctrl-C works, and ``progress(done, total)`` is
    called in this thread, in bytes.

    ValueError for other shapes or item sizes and for a read-only target, TypeError
    for Python objects.
    """
    import numpy as np

    if target.shape != source.shape:
        raise ValueError(
            f"copy_host: the target's shape is {target.shape}, the source's {source.shape}"
        )
    kind = target.dtype
    if kind is not source.dtype or kind.kind not in "biufc":
        if target.itemsize != source.itemsize:
            raise ValueError(
                f"copy_host: elements of {target.itemsize} and {source.itemsize} bytes cannot "
                "be copied without a conversion"
            )
        target, source = _raw(target), _raw(source)
    nbytes = target.nbytes
    if nbytes < _SMALL or (nbytes <= _CHUNK and _runs_alike(target, source)):
        if target.strides != source.strides and np.may_share_memory(target, source):
            source = source.copy()  # numpy's copyto has written elements before it read them
        np.copyto(target, source)
        if progress is not None:
            progress(nbytes, nbytes)
        return
    if not target.flags.writeable:
        raise ValueError("copy_host: the target is read-only")
    if np.may_share_memory(target, source) and _overlap(target, source):
        aside = np.empty(source.shape, source.dtype)
        copy_host(aside, source)
        source = aside
    _copy_large(*_arrange(target, source), progress)


def _runs_alike(target: Array, source: Array) -> bool:
    """Whether both plainly lie in runs along the last axis, where numpy's copy is best."""
    itemsize = target.itemsize
    return target.ndim < 2 or (
        target.shape[-1] > 1 and target.strides[-1] == source.strides[-1] == itemsize
    )


def _raw(array: Array) -> Array:
    """*array* as elements that numpy copies without looking at their values."""
    kind = array.dtype
    if kind.hasobject:
        raise TypeError(f"copy_host moves plain bytes, not Python objects (dtype {kind})")
    # Of 16 bytes, numpy moves a complex128 as fast as two integers, a void slowly.
    name = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}.get(kind.itemsize, f"V{kind.itemsize}")
    return array.view(name)


def _overlap(target: Array, source: Array) -> bool:
    """Whether they share a byte; True also where the exact answer would take long."""
    import numpy as np

    try:
        # numpy's stub knows two values only; any bound on the work is one.
        return np.shares_memory(target, source, max_work=1000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _arrange(target: Array, source: Array) -> tuple[Array, Array]:
    """Views of both, axes in the order of the target's memory, neighbours merged."""
    flips = (slice(None, None, -1 if step < 0 else 1) for step in target.strides)
    forward: Any = (*flips, ...)
    target, source = target[forward], source[forward]
    order = sorted(range(target.ndim), key=lambda axis: -target.strides[axis])
    target, source = target.transpose(order), source.transpose(order)
    shape: list[int] = []
    outer = 0, 0
    for axis, extent in enumerate(target.shape):
        steps = target.strides[axis], source.strides[axis]
        if extent == 1:
            continue
        if shape and outer == (steps[0] * extent, steps[1] * extent):
            shape[-1] *= extent
        else:
            shape.append(extent)
        outer = steps
    return target.reshape(shape, copy=False), source.reshape(shape, copy=False)


def _copy_large(target: Array, source: Array, progress: Progress | None) -> None:
    """Choose the method and the number of threads, for arranged arrays without overlap."""
    import numpy as np

    move: Move = np.copyto
    threads_from = _THREADS_FROM
    unit = _unit_axis(source)
    if unit is not None and unit != target.ndim - 1:
        threads_from = _THREADS_FROM_TRANSPOSED
        strip = _strip_nbytes(target, source, unit)
        if target.itemsize <= 4 and target.shape[-1] * target.itemsize <= _SHORT_RUN:
            move = _copy_by_element
        elif strip:
            if source.strides[unit] < 0:
                back = (slice(None),) * unit + (slice(None, None, -1),)
                target, source = target[back], source[back]
            move = partial(_copy_strips, unit, strip // target.itemsize)
        elif _pages_of_column(target, source) >= _TLB:
            move = _copy_blocks
    nbytes = target.nbytes
    threads = min(_THREADS, usable_cores()) if nbytes >= threads_from else 1
    if 0 in target.strides:
        threads = 1  # elements written twice: the last one shall win
    limit = _CHUNK if threads == 1 else min(_CHUNK, nbytes // (8 * threads))
    _run(move, deque(_pieces(target, source, limit)), nbytes, threads, progress)


def _unit_axis(source: Array) -> int | None:
    """The axis along which *source*'s elements are neighbours."""
    steps = [abs(step) for step in source.strides]
    return steps.index(source.itemsize) if source.itemsize in steps else None


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

    targets, sources = np.moveaxis(target, unit, -2), np.moveaxis(source, unit, -2)
    columns = min(target.shape[-1], _BUFFER // (width * target.itemsize))
    pad = _LINE // target.itemsize  # so that wide strips' rows are not a power of two apart
    buffer = np.empty((columns, width + pad), target.dtype)[:, :width]
    for outer in np.ndindex(targets.shape[:-2]):
        plane, rows = targets[outer], sources[outer].T
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

    for piece, its_source in _pieces(target, source, _BLOCK):
        np.copyto(piece, its_source)


def _copy_by_element(target: Array, source: Array) -> None:
    """Copy one element of every run of *target* after the other, within the cache."""
    import numpy as np

    for piece, its_source in _pieces(target, source, _BUFFER):
        for index in range(piece.shape[-1]):
            np.copyto(piece[..., index], its_source[..., index])


def _pieces(target: Array, source: Array, limit: int) -> Iterator[tuple[Array, Array]]:
    """Split both into corresponding parts of at most *limit* bytes, along the longest axis."""
    if target.nbytes <= limit or target.size == 1:
        yield target, source
        return
    axis = max(range(target.ndim), key=target.shape.__getitem__)
    half = target.shape[axis] // 2
    half -= half % 128 if half > 128 else 0  # whole cache lines, and whole strips
    for part in (slice(half), slice(half, None)):
        where = (*(slice(None),) * axis, part)
        yield from _pieces(target[where], source[where], limit)


def _run(
    move: Move,
    pieces: deque[tuple[Array, Array]],
    total: int,
    threads: int,
    progress: Progress | None,
) -> None:
    """Copy all *pieces*, in this thread and *threads* - 1 others."""
    moved: list[int] = []
    errors: list[BaseException] = []

    def help_along() -> None:
        try:
            for nbytes in _move_each(move, pieces):
                moved.append(nbytes)  # noqa: PERF402 - the other threads look at it
        except BaseException as exc:
            errors.append(exc)

    helpers = []
    try:
        for _ in range(threads - 1):
            helper = threading.Thread(target=help_along, name="dlbridge copy")
            try:
                helper.start()
            except RuntimeError:
                break  # the process may start no more (its limit, or its end): without help
            helpers.append(helper)
        for nbytes in _move_each(move, pieces):
            moved.append(nbytes)
            if progress is not None and (pieces or not helpers):
                progress(sum(moved), total)
    finally:
        pieces.clear()
        for helper in helpers:
            helper.join()
    if errors:
        raise errors[0]
    if helpers and progress is not None:
        progress(total, total)


def _move_each(move: Move, pieces: deque[tuple[Array, Array]]) -> Iterator[int]:
    """Copy the remaining *pieces* one by one; gives the bytes of each."""
    while True:
        try:
            target, source = pieces.popleft()
        except IndexError:
            return
        move(target, source)
        yield target.nbytes
