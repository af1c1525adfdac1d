"""Fast copies inside host memory, for all strides.

numpy's own copy is the fastest for nearly all layouts. It reads a column element by element, and
where that is slow (measured by ``make bench``; docs/benchmarks/pack-choices.md has the tables) the
columns are copied in blocks; what is large is copied by several threads. torch's copy is not used:
under its FakeTensorMode it copies nothing and raises no error.
"""

from __future__ import annotations

import os
import sys
from _queue import Empty, SimpleQueue  # `queue` takes 1.5 ms of the first call
from _thread import start_new_thread
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from math import gcd
from typing import TYPE_CHECKING, Any

from dlbridge.core.implementation_details.handlers import unless_handler
from dlbridge.core.plugins.cpu import usable_cores
from dlbridge.core.public import for_guests

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Move = Callable[[Array, Array], None]
    Progress = Callable[[int, int], None]

# All sizes in bytes, if not said otherwise.
_SMALL = 256 << 10  # below it no way but numpy's is worth finding
_CHUNK = 64 << 20  # after each, Ctrl-C and progress
_THREADED = 128 << 20  # from here on in threads, what the memory's speed limits
_THREADED_STRIDED = 8 << 20  # and what the caches limit
_THREADS = 4
_PAGE = 4 << 10
_TLB = 1024  # pages whose addresses the processor remembers
_BLOCK = 256 << 10  # of the target: its columns lie on few pages
_CACHE_WAY = 128 << 10  # what lies a multiple of this apart shares a set of the L2
_CACHE_REACH = 256 << 10  # of columns; longer ones evict their own lines
_LEAST_CONFLICT = 512  # power of two between rows; below it numpy is faster
_LINE = 64
_STRIP = 4 * _LINE
_BUFFER = 512 << 10  # half of an L2
_LARGE = 16  # elements that make no use of a line's neighbours
_SHORT_COLUMN = 32  # elements
_LONG_STRIP = 256  # elements of each column: 64 KiB
_SHORT_RUN = 32


@for_guests
def copy_array(target: Array, source: Array, progress: Progress | None = None) -> None:
    """Copy the bytes of one numpy array to another one, whatever their types are.

    Transposed arrays of rows that are a power of two long take half to a third of the time of
    ``numpy.copyto`` (2-byte and 8-byte elements, 512 and 256 squared), others about as much.

    Parameters
    ----------
    target, source : numpy.ndarray
        Of equal shape and size of elements, any strides; elements of *source* may be read many
        times (stride 0). They may overlap.
    progress : callable, optional
        Called in this thread with ``(done, total)``, in bytes, after each piece of at most 64 MiB;
        between them Ctrl-C works.

    Raises
    ------
    ValueError
        If shapes or sizes differ, or *target* is read-only.
    TypeError
        If they hold Python objects.

    Examples
    --------
    >>> from dlbridge.extending import copy_array
    >>> new = np.zeros((2, 2), "uint16")
    >>> copy_array(new, np.arange(4, dtype="int16").reshape(2, 2).T)
    >>> new.tolist()
    [[0, 2], [1, 3]]
    """
    import numpy as np

    if target.shape != source.shape:
        raise ValueError(
            f"copy_array: the target's shape is {target.shape}, the source's {source.shape}"
        )
    kind = target.dtype
    if kind is not source.dtype or kind.kind not in "biufc":
        if target.itemsize != source.itemsize:
            raise ValueError(
                f"copy_array: elements of {target.itemsize} and {source.itemsize} bytes cannot "
                "be copied without a conversion"
            )
        target, source = _raw(target), _raw(source)
    nbytes = target.nbytes
    direct = _CHUNK if target.strides == source.strides else _THREADED_STRIDED
    if nbytes < _SMALL or (nbytes <= direct and _runs_alike(target, source)):
        if target.strides != source.strides and np.may_share_memory(target, source):
            source = source.copy()  # numpy has written elements before it read them
        target[...] = source  # a third of the time of copyto, whose dispatch is slow
        if progress is not None:
            progress(nbytes, nbytes)
        return
    if not target.flags.writeable:
        raise ValueError("copy_array: the target is read-only")
    if np.may_share_memory(target, source) and _overlap(target, source):
        aside = np.empty(source.shape, source.dtype)
        copy_array(aside, source)
        source = aside
    target, source = _arrange(target, source)
    move = _fastest(target, source)
    threads = _count_threads(move, target, source)
    limit = _CHUNK if threads == 1 else min(_CHUNK, nbytes // (4 * threads))
    _copy_pieces(move, list(_pieces(target, source, limit)), threads, progress)


def _count_threads(move: Move, target: Array, source: Array) -> int:
    """In how many threads to copy arranged arrays."""
    least = _THREADED if target.strides == source.strides else _THREADED_STRIDED
    # Short strips would wait for the GIL. Of elements that are written twice the last one shall
    # win. A thread that begins while Python ends does nothing.
    short = isinstance(move, partial) and target.shape[-1] < _LONG_STRIP
    if target.nbytes < least or short or 0 in target.strides or sys.is_finalizing():
        return 1
    return min(_THREADS, usable_cores())


def _copy_pieces(
    move: Move, pieces: list[tuple[Array, Array]], threads: int, progress: Progress | None
) -> None:
    """Copy all *pieces*, in this thread and in others, which have ended when this returns."""
    total, told = sum(target.nbytes for target, _ in pieces), [0]
    everything, process = pieces.copy(), os.getpid()
    waiting = iter(pieces)  # each piece is taken by one step of C
    moved: list[int] = []
    errors: list[BaseException] = []
    begun: list[int] = []
    ended: list[None] = []
    news: SimpleQueue[None] = SimpleQueue()

    def move_all(some: Iterable[tuple[Array, Array]], tell: Progress | None = None) -> None:
        for target, source in some:
            move(target, source)
            moved.append(target.nbytes)
            if tell is not None:
                told.append(sum(moved))
                tell(told[-1], total)

    def help_along() -> None:
        try:
            move_all(waiting)  # whose frame keeps no array when the end is noted
        except BaseException as exc:
            errors.append(exc)
        finally:
            ended.append(None)
            news.put(None)

    def end() -> None:
        pieces.clear()  # which ends the iterator
        if os.getpid() == process:  # no thread is in a forked child
            _wait_for_all(begun, ended, news)

    try:
        _start(begun, [help_along] * (threads - 1))
        move_all(waiting, progress)
        end()
    except BaseException:  # that of a signal handler may have cut off the end, or come before it
        end()
        raise
    if os.getpid() != process:  # *progress* or a signal handler has forked: what others had begun
        move_all(everything)
    if errors:
        raise errors.pop()  # its traceback would keep it in the list
    if progress is not None and told[-1] != total:
        progress(total, total)


def _start(begun: list[int], functions: list[Callable[[], None]]) -> None:
    """Start a thread for each, as far as the process may, and note it in *begun*."""
    # Not `threading.Thread`: an exception in its `start` or `join` leaves it running, unknown.
    try:
        begun.extend(map(start_new_thread, functions, [()] * len(functions)))
    except unless_handler(RuntimeError):  # the process may start no more: its limit, or its end
        pass


def _wait_for_all(begun: list[int], ended: list[None], news: SimpleQueue[None]) -> None:
    """Wait for every thread, also after a Ctrl-C: they still write to the user's memory."""
    try:
        while len(ended) < len(begun):
            with suppress(Empty):  # an exception may have come after it, so not for ever
                news.get(timeout=0.05)
    except BaseException:
        _wait_for_all(begun, ended, news)
        raise


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
        raise TypeError(f"copy_array moves plain bytes, not Python objects (dtype {kind})")
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


def _fastest(target: Array, source: Array) -> Move:
    """The way to copy arranged arrays without overlap."""
    import numpy as np

    steps = [abs(step) for step in source.strides]
    unit = steps.index(source.itemsize) if source.itemsize in steps else target.ndim - 1
    if unit == target.ndim - 1:
        return np.copyto
    column, step, itemsize = target.shape[-1], steps[-1], target.itemsize
    if itemsize <= 4 and column * itemsize <= _SHORT_RUN:
        return _copy_by_element
    apart = gcd(step, _CACHE_WAY)
    is_long = step and column >= _SHORT_COLUMN and column * apart >= _CACHE_REACH
    if is_long and itemsize <= _LARGE and apart >= max(_LEAST_CONFLICT, 2 * _LINE * itemsize):
        return partial(_copy_strips, unit)
    on_many_pages = column * min(step, _PAGE) >= _TLB * _PAGE
    return _copy_blocks if on_many_pages else np.copyto


def _copy_by_element(target: Array, source: Array) -> None:
    """Copy one element of every run after the other, within the cache: channels last."""
    import numpy as np

    for piece, its_source in _pieces(target, source, _BUFFER):
        for index in range(piece.shape[-1]):
            np.copyto(piece[..., index], its_source[..., index])


def _copy_blocks(target: Array, source: Array) -> None:
    """Copy one block after the other, so that the columns of each lie on few pages."""
    import numpy as np

    for piece, its_source in _pieces(target, source, _BLOCK):
        np.copyto(piece, its_source)


def _copy_strips(unit: int, target: Array, source: Array) -> None:
    """Copy by strips along the axis *unit*, on which *source*'s elements are neighbours.

    Its rows are a power of two apart, so that a column falls into a few sets of the cache. A strip
    of it is read row by row into a buffer, where columns are close together.
    """
    import numpy as np

    width, columns = max(1, _STRIP // target.itemsize), _BUFFER // _STRIP
    buffer = np.empty((columns, width + _LINE // target.itemsize), target.dtype)
    targets, sources = np.moveaxis(target, unit, -2), np.moveaxis(source, unit, -2)
    for outer in np.ndindex(targets.shape[:-2]):
        plane, rows = targets[outer], sources[outer].T
        for first in range(0, rows.shape[0], columns):
            for start in range(0, rows.shape[1], width):
                where = slice(first, first + columns), slice(start, start + width)
                part = rows[where]
                strip = buffer[: part.shape[0], : part.shape[1]]
                np.copyto(strip, part)
                np.copyto(plane[where[::-1]], strip.T)


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
