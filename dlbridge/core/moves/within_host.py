"""Fast copies inside host memory, for all strides.

numpy's own copy is the fastest for nearly all layouts. The exceptions were measured
(``python -m dlbridge bench pack``; the reasons are in ``docs/benchmarks/pack-choices.md``):
elements in another order (``transposed.py``), and two threads for what is large.
"""

from __future__ import annotations

import sys
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from dlbridge.core.implementation_details.handlers import is_from_handler
from dlbridge.core.plugins.cpu import usable_cores

from .transposed import opencv_transpose, pieces, unit_axis, way_to_transpose

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Move = Callable[[Array, Array], None]
    Progress = Callable[[int, int], None]

__all__ = ["copy_host"]

# All sizes in bytes.
_SMALL = 256 << 10  # below it no way but numpy's is worth finding
_SMALL_FOR_OPENCV = 16 << 10
_CHUNK = 64 << 20  # after each, Ctrl-C and progress
_THREADS_FROM = 256 << 20  # two threads, for what memory bandwidth limits
_THREADS_FROM_TRANSPOSED = 8 << 20  # and for what the caches limit
_THREADS = 2


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
    if (nbytes <= _CHUNK and _runs_alike(target, source)) or _is_small(target):
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


def _is_small(target: Array) -> bool:
    """Whether finding a faster way takes longer than it would save."""
    nbytes = target.nbytes
    if nbytes >= _SMALL_FOR_OPENCV and opencv_transpose(target.itemsize) is not None:
        return False
    return nbytes < _SMALL


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
    unit = unit_axis(source)
    transposed = unit is not None and unit != target.ndim - 1
    nbytes = target.nbytes
    large = nbytes >= (_THREADS_FROM_TRANSPOSED if transposed else _THREADS_FROM)
    threads = min(_THREADS, usable_cores()) if large else 1
    if 0 in target.strides:
        threads = 1  # elements written twice: the last one shall win
    if unit is not None and transposed:
        move, target, source, threads = way_to_transpose(target, source, unit, threads)
    limit = _CHUNK if threads == 1 else min(_CHUNK, nbytes // (8 * threads))
    _run(move, deque(pieces(target, source, limit)), nbytes, threads, progress)


def _run(
    move: Move,
    waiting: deque[tuple[Array, Array]],
    total: int,
    threads: int,
    progress: Progress | None,
) -> None:
    """Copy all that are *waiting*, in this thread and *threads* - 1 others."""
    moved: list[int] = []
    errors: list[BaseException] = []
    # Not `threading.Thread`: an exception in its `start` or `join` leaves it running, unknown.
    begun: list[int] = []
    ended: list[None] = []
    news: SimpleQueue[None] = SimpleQueue()

    def help_along() -> None:
        try:
            for nbytes in _move_each(move, waiting):
                moved.append(nbytes)  # noqa: PERF402 - the other threads look at it
        except BaseException as exc:
            errors.append(exc)
        finally:
            ended.append(None)
            news.put(None)

    try:
        if threads > 1 and not sys.is_finalizing():
            _start(help_along, threads - 1, begun)
        for nbytes in _move_each(move, waiting):
            moved.append(nbytes)
            if progress is not None and (waiting or not begun):
                progress(sum(moved), total)
    finally:
        waiting.clear()
        _wait_for_all(begun, ended, news)
    if errors:
        raise errors[0]
    if begun and progress is not None:
        progress(total, total)


def _start(work: Callable[[], None], count: int, begun: list[int]) -> None:
    """Start threads; *begun* has those that run, whatever happens."""
    try:
        begun.extend(map(start_new_thread, [work] * count, [()] * count))
    except RuntimeError as exc:  # the process may start no more (its limit, or its end)
        if is_from_handler(exc.__traceback__):
            raise


def _wait_for_all(begun: list[int], ended: list[None], news: SimpleQueue[None]) -> None:
    """Wait for every thread, also after a Ctrl-C: they still write to the user's memory."""
    interruptions: list[BaseException] = []
    while len(ended) < len(begun):
        try:
            while len(ended) < len(begun):  # here too: a signal handler may raise at its jump
                with suppress(Empty):
                    news.get(timeout=0.05)  # an exception may have come after it, so not for ever
        except BaseException as exc:
            interruptions.append(exc)
    if interruptions:
        raise interruptions.pop()


def _move_each(move: Move, waiting: deque[tuple[Array, Array]]) -> Iterator[int]:
    """Copy what is still *waiting*, one by one; gives the bytes of each."""
    while True:
        try:
            target, source = waiting.popleft()
        except IndexError:
            return
        move(target, source)
        yield target.nbytes
