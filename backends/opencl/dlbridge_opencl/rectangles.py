"""Cut a strided region into rectangles that OpenCL copies in one command each."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Rectangle", "rectangles"]


class Rectangle(NamedTuple):
    """A rectangle on both sides of a copy; bytes, and (row, slice) pitches."""

    starts: tuple[int, int]
    region: tuple[int, int, int]
    pitches: tuple[tuple[int, int], tuple[int, int]]


class _Loop(NamedTuple):
    entries: int
    strides: tuple[int, int]


def rectangles(
    shape: Sequence[int], run_nbytes: int, strides: Sequence[int], other: Sequence[int]
) -> list[Rectangle]:
    """The region as rectangles, with *strides* on one side and *other* on the other side."""
    loops = [
        _Loop(count, (at, to))
        for count, at, to in zip(shape, strides, other, strict=True)
        if count != 1
    ]
    return list(_cut(loops, run_nbytes, (0, 0)))


def _cut(loops: list[_Loop], run_nbytes: int, starts: tuple[int, int]) -> Iterator[Rectangle]:
    for order in itertools.permutations(loops):
        if all(_fits(order, run_nbytes, side) for side in (0, 1)):
            yield _rectangle(order, run_nbytes, starts)
            return
    # No order of the loops has growing pitches: one rectangle for each entry of the shortest.
    shortest = min(loops, key=lambda loop: loop.entries)
    rest = [loop for loop in loops if loop is not shortest]
    for i in range(shortest.entries):
        first, second = (start + i * at for start, at in zip(starts, shortest.strides, strict=True))
        yield from _cut(rest, run_nbytes, (first, second))


def _fits(order: Sequence[_Loop], run_nbytes: int, side: int) -> bool:
    """Whether clEnqueueCopyBufferRect accepts these pitches (OpenCL 3.0, 5.2.4)."""
    least, unit = run_nbytes, 1
    for loop in reversed(order):
        pitch = loop.strides[side]
        if pitch < least or pitch % unit:
            return False
        least, unit = loop.entries * pitch, pitch
    return True


def _rectangle(order: Sequence[_Loop], run_nbytes: int, starts: tuple[int, int]) -> Rectangle:
    rows, slices = [*reversed(order), _Loop(1, (0, 0)), _Loop(1, (0, 0))][:2]
    first, second = zip(rows.strides, slices.strides, strict=True)
    return Rectangle(starts, (run_nbytes, rows.entries, slices.entries), (first, second))
