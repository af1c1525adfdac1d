"""SupportsStridedCopy: regions of up to two strided dimensions, as rectangle copies have."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from .memory import Memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.protocol import Region, Span

__all__ = ["StridedCopies"]


class StridedCopies(Memory):
    """Each call checks both spans as a whole, then enqueues the copy run by run."""

    max_strided_ndim = 2

    def copy_strided(
        self,
        target: Span,
        target_region: Region,
        source: Span,
        source_region: Region,
        stream: int,
    ) -> None:
        """Enqueue a strided copy inside one device."""
        into, taken = self.bytes_of(target, write=True), self.bytes_of(source)
        work = _runs(into, target_region, taken, source_region)
        self.stream(target.device_id, stream).enqueue(work)

    def copy_strided_from_host(
        self,
        target: Span,
        target_region: Region,
        source: memoryview,
        source_region: Region,
        stream: int,
    ) -> None:
        """Enqueue a strided copy from the host."""
        work = _runs(self.bytes_of(target, write=True), target_region, source, source_region)
        self.stream(target.device_id, stream).enqueue(work)

    def copy_strided_to_host(
        self,
        source: Span,
        source_region: Region,
        into: memoryview,
        into_region: Region,
        stream: int,
    ) -> None:
        """Enqueue a strided copy to the host."""
        work = _runs(into, into_region, self.bytes_of(source), source_region)
        self.stream(source.device_id, stream).enqueue(work)


def _runs(
    into: memoryview, into_region: Region, source: memoryview, source_region: Region
) -> Callable[[], None]:
    """The work of copying a region."""
    shape, strides, run_nbytes = into_region

    def work() -> None:
        taken = bytes(source)  # the host's side may be a view of the device's
        for index in itertools.product(*map(range, shape)):
            to = sum(map(int.__mul__, index, strides))
            at = sum(map(int.__mul__, index, source_region.strides))
            into[to : to + run_nbytes] = taken[at : at + run_nbytes]

    return work
