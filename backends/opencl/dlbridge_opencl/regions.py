"""Strided copies: rows and slices by clEnqueueReadBufferRect and its like.

OpenCL's rectangles want pitches that grow and divide each other. What has no
such pitches, an overlapping source say, is copied as several rectangles.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import pyopencl as cl

from dlbridge.errors import ExchangeError

from .commands import Commands
from .copies import mapped
from .memory import buffer_of
from .queues import synchronize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["copy_strided", "copy_strided_from_host", "copy_strided_to_host", "max_strided_ndim"]

max_strided_ndim = 2
"""Rows and slices, beside the bytes of a row."""


def copy_strided(
    device_id: int,
    data: int,
    offset: int,
    strides: Sequence[int],
    source: int,
    source_offset: int,
    source_strides: Sequence[int],
    shape: Sequence[int],
    run_nbytes: int,
    stream: int,
) -> None:
    """Enqueue rectangles inside a context, or copy them from another through the host."""
    target = buffer_of(data, offset, _extent(shape, strides, run_nbytes))
    origin = buffer_of(source, source_offset, _extent(shape, source_strides, run_nbytes))
    if target.context != origin.context:
        synchronize(device_id, stream)  # what orders the source's work before the copy
        extent = _extent(shape, source_strides, run_nbytes)
        with (
            Commands(device_id, 0, "copying a region between contexts", origin) as reading,
            mapped(reading, origin, source_offset, extent) as bytes_,
        ):
            copy_strided_from_host(
                device_id, data, offset, strides, bytes_, source_strides, shape, run_nbytes, stream
            )
        return
    with Commands(device_id, stream, "copying a region on the device", target, origin) as queue:
        for at in _rectangles(shape, run_nbytes, strides, source_strides):
            cl.enqueue_copy(
                queue,
                target,
                origin,
                dst_origin=(offset + at.starts[0], 0, 0),
                src_origin=(source_offset + at.starts[1], 0, 0),
                region=at.region,
                dst_pitches=at.pitches[0],
                src_pitches=at.pitches[1],
            )


def copy_strided_from_host(
    device_id: int,
    data: int,
    offset: int,
    strides: Sequence[int],
    source: memoryview,
    source_strides: Sequence[int],
    shape: Sequence[int],
    run_nbytes: int,
    stream: int,
) -> None:
    """Copy rectangles from the host; done on return."""
    target = buffer_of(data, offset, _extent(shape, strides, run_nbytes))
    _check_host(source, _extent(shape, source_strides, run_nbytes))
    with Commands(device_id, stream, "copying a region from the host", target) as queue:
        for at in _rectangles(shape, run_nbytes, strides, source_strides):
            cl.enqueue_copy(
                queue,
                target,
                source,
                buffer_origin=(offset + at.starts[0], 0, 0),
                host_origin=(at.starts[1], 0, 0),
                region=at.region,
                buffer_pitches=at.pitches[0],
                host_pitches=at.pitches[1],
                is_blocking=True,
            )


def copy_strided_to_host(
    device_id: int,
    data: int,
    offset: int,
    strides: Sequence[int],
    into: memoryview,
    into_strides: Sequence[int],
    shape: Sequence[int],
    run_nbytes: int,
    stream: int,
) -> None:
    """Copy rectangles to the host; done on return."""
    origin = buffer_of(data, offset, _extent(shape, strides, run_nbytes))
    _check_host(into, _extent(shape, into_strides, run_nbytes))
    with Commands(device_id, stream, "copying a region to the host", origin) as queue:
        for at in _rectangles(shape, run_nbytes, strides, into_strides):
            cl.enqueue_copy(
                queue,
                into,
                origin,
                buffer_origin=(offset + at.starts[0], 0, 0),
                host_origin=(at.starts[1], 0, 0),
                region=at.region,
                buffer_pitches=at.pitches[0],
                host_pitches=at.pitches[1],
                is_blocking=True,
            )


class _Rectangle(NamedTuple):
    """A rectangle on both sides of a copy; bytes, and (row, slice) pitches."""

    starts: tuple[int, int]
    region: tuple[int, int, int]
    pitches: tuple[tuple[int, int], tuple[int, int]]


class _Loop(NamedTuple):
    entries: int
    strides: tuple[int, int]


def _rectangles(
    shape: Sequence[int], run_nbytes: int, strides: Sequence[int], other: Sequence[int]
) -> Iterator[_Rectangle]:
    """The region as rectangles of *strides* on one side, *other* on the other."""
    loops = [
        _Loop(count, (at, to))
        for count, at, to in zip(shape, strides, other, strict=True)
        if count != 1
    ]
    return _cut(loops, run_nbytes, (0, 0))


def _cut(loops: list[_Loop], run_nbytes: int, starts: tuple[int, int]) -> Iterator[_Rectangle]:
    for order in itertools.permutations(loops):
        if all(_fits(order, run_nbytes, side) for side in (0, 1)):
            yield _rectangle(order, run_nbytes, starts)
            return
    # No order of the loops has growing pitches: one by one along the shortest.
    shortest = min(loops, key=lambda loop: loop.entries)
    rest = [loop for loop in loops if loop is not shortest]
    for i in range(shortest.entries):
        first, second = (start + i * at for start, at in zip(starts, shortest.strides, strict=True))
        yield from _cut(rest, run_nbytes, (first, second))


def _fits(order: Sequence[_Loop], run_nbytes: int, side: int) -> bool:
    """Whether clEnqueueCopyBufferRect takes these pitches (OpenCL 3.0, 5.2.4)."""
    least, unit = run_nbytes, 1
    for loop in reversed(order):
        pitch = loop.strides[side]
        if pitch < least or pitch % unit:
            return False
        least, unit = loop.entries * pitch, pitch
    return True


def _rectangle(order: Sequence[_Loop], run_nbytes: int, starts: tuple[int, int]) -> _Rectangle:
    rows, slices = [*reversed(order), _Loop(1, (0, 0)), _Loop(1, (0, 0))][:2]
    first, second = zip(rows.strides, slices.strides, strict=True)
    return _Rectangle(starts, (run_nbytes, rows.entries, slices.entries), (first, second))


def _extent(shape: Sequence[int], strides: Sequence[int], run_nbytes: int) -> int:
    """Bytes from the first to the last of a region."""
    return sum((n - 1) * at for n, at in zip(shape, strides, strict=True)) + run_nbytes


def _check_host(memory: memoryview, nbytes: int) -> None:
    if nbytes > memory.nbytes:
        raise ExchangeError(
            f"opencl: a region of {nbytes} bytes reaches outside the host's {memory.nbytes}"
        )
