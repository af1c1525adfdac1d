"""Strided copies as the fewest calls: boxes, rectangles, and runs where nothing else fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .driver import StreamDriver

__all__ = ["Side", "copy_region"]


class Side(NamedTuple):
    """One side of a strided copy."""

    address: int
    strides: tuple[int, ...]
    """Bytes between runs, outermost first."""
    on_host: bool = False

    def keep(self, axes: Sequence[int], start: int = 0) -> Side:
        """The region with these dimensions only, *start* bytes on."""
        steps = tuple(self.strides[axis] for axis in axes)
        return self._replace(address=self.address + start, strides=steps)


def copy_region(
    driver: StreamDriver,
    target: Side,
    source: Side,
    shape: Sequence[int],
    run_nbytes: int,
    max_pitch: int,
    stream: int,
) -> None:
    """Queue a copy of *shape* runs of *run_nbytes* bytes, in this context.

    One call where the strides form a pitched rectangle or a box; else one call for each slice of
    the shortest dimension, and for each run where runs overlap or lie too far apart.

    Parameters
    ----------
    driver : StreamDriver
        Makes the copies.
    target, source : Side
        The two regions; their strides are positive.
    shape : Sequence[int]
        Number of runs in each strided dimension, outermost first.
    run_nbytes : int
        Contiguous bytes in each run.
    max_pitch : int
        The longest stride that the driver takes (`StreamDriver.max_pitch`).
    stream : int
        Where the copy is queued.
    """
    kept = [axis for axis, extent in enumerate(shape) if extent != 1]
    shape, target, source = [shape[axis] for axis in kept], target.keep(kept), source.keep(kept)
    if not shape:
        driver.copy(target.address, source.address, run_nbytes, stream)
    elif len(shape) == 1 and _is_pitched(target, source, run_nbytes, max_pitch):
        driver.copy_rectangle(target, source, shape[0], run_nbytes, stream)
    elif (
        driver.has_boxes
        and len(shape) == 2
        and _is_pitched(target, source, run_nbytes, max_pitch)
        and _is_boxed(target, source, shape[1])
    ):
        driver.copy_box(target, source, shape[0], shape[1], run_nbytes, stream)
    else:
        axis = shape.index(min(shape))
        left = [*range(axis), *range(axis + 1, len(shape))]
        rest = [shape[each] for each in left], run_nbytes, max_pitch, stream
        for index in range(shape[axis]):
            there, here = (each.keep(left, index * each.strides[axis]) for each in (target, source))
            copy_region(driver, there, here, *rest)


def _is_pitched(target: Side, source: Side, run_nbytes: int, max_pitch: int) -> bool:
    """Whether the innermost strides are pitches: runs do not overlap, and are not too far."""
    return all(run_nbytes <= side.strides[-1] <= max_pitch for side in (target, source))


def _is_boxed(target: Side, source: Side, height: int) -> bool:
    """Whether the outer strides are whole rows, at least as many as the box is high."""
    return all(
        outer % inner == 0 and outer // inner >= height
        for outer, inner in (target.strides, source.strides)
    )
