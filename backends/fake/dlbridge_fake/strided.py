"""SupportsStridedCopy: regions of up to two strided dimensions, as rectangle copies have."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from .memory import Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["StridedCopies"]


class StridedCopies(Memory):
    """Each call checks both regions as a whole, then enqueues the copy run by run."""

    max_strided_ndim = 2

    def copy_strided(
        self,
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
        """Enqueue a strided copy inside one device."""
        into = self.region(device_id, data, offset, _span(shape, strides, run_nbytes), write=True)
        nbytes = _span(shape, source_strides, run_nbytes)
        origin = self.region(device_id, source, source_offset, nbytes)
        work = _runs(into, strides, origin, source_strides, shape, run_nbytes)
        self.stream(device_id, stream).enqueue(work)

    def copy_strided_from_host(
        self,
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
        """Enqueue a strided copy from the host."""
        into = self.region(device_id, data, offset, _span(shape, strides, run_nbytes), write=True)
        work = _runs(into, strides, source, source_strides, shape, run_nbytes)
        self.stream(device_id, stream).enqueue(work)

    def copy_strided_to_host(
        self,
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
        """Enqueue a strided copy to the host."""
        origin = self.region(device_id, data, offset, _span(shape, strides, run_nbytes))
        work = _runs(into, into_strides, origin, strides, shape, run_nbytes)
        self.stream(device_id, stream).enqueue(work)


def _span(shape: Sequence[int], strides: Sequence[int], run_nbytes: int) -> int:
    """Bytes from the first to the last of a region."""
    return sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + run_nbytes


def _runs(
    into: memoryview,
    into_strides: Sequence[int],
    source: memoryview,
    source_strides: Sequence[int],
    shape: Sequence[int],
    run_nbytes: int,
) -> Callable[[], None]:
    """The work of copying a region."""

    def work() -> None:
        for index in itertools.product(*map(range, shape)):
            to = sum(map(int.__mul__, index, into_strides))
            at = sum(map(int.__mul__, index, source_strides))
            into[to : to + run_nbytes] = source[at : at + run_nbytes]

    return work
