"""Copies and fills: by the host where it addresses the memory, by the device elsewhere."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from .host import address_of, read, write
from .library import ffi
from .staging import CHUNK, Part, copy_regions
from .strided import MAX_REGIONS, host_copy, packed_strides, parts, regions, span

if TYPE_CHECKING:
    from .memory import Allocation

__all__ = [
    "copy",
    "copy_strided",
    "fill",
    "from_host",
    "strided_from_host",
    "strided_to_host",
    "to_host",
]

Side = tuple[int, Sequence[int]]
"""Where a region begins (an offset or an address) and its strides in bytes."""


def from_host(target: Allocation, offset: int, source: memoryview) -> None:
    """Copy *source* to *target*: directly where it is mapped, else by the staging ring."""
    if target.mapped:
        target.settle()
        write(target.mapped + offset, source)
    else:
        target.device.staging.upload(target, offset, address_of(source), len(source))


def to_host(source: Allocation, offset: int, into: memoryview) -> None:
    """Copy from *source* to *into*; done on return."""
    if source.cached:
        source.settle()
        read(into, source.mapped + offset)
    else:
        # Mapped memory that the host does not cache is read at a crawl.
        source.device.staging.download(source, offset, address_of(into), len(into))


def copy(target: Allocation, to: int, source: Allocation, start: int, nbytes: int) -> None:
    """Copy *nbytes* bytes from *start* of *source* to *to* of *target*."""
    device = target.device
    if source.device is not device:
        _between(target, to, source, start, nbytes)
    elif source is target and abs(to - start) < nbytes:
        # Regions of one copy must not overlap (vkCmdCopyBuffer): by a detour.
        _by_detour(target, to, source, start, nbytes)
    else:
        region = ffi.new("VkBufferCopy[1]", [(start, to, nbytes)])
        device.submit(lambda c: copy_regions(c, source, target, region), (source, target))


def _by_detour(target: Allocation, to: int, source: Allocation, start: int, nbytes: int) -> None:
    device = target.device
    middle = device.heap.allocate(nbytes, 4)
    try:
        copy(middle, 0, source, start, nbytes)
        copy(target, to, middle, 0, nbytes)
    finally:
        device.heap.free(middle)


def _between(target: Allocation, to: int, source: Allocation, start: int, nbytes: int) -> None:
    """Copy between two devices; through host memory only where neither is mapped."""
    if source.cached:
        source.settle()
        from_host(target, to, _bytes(source.mapped + start, nbytes))
    elif target.mapped:
        target.settle()
        to_host(source, start, _bytes(target.mapped + to, nbytes))
    else:
        middle = memoryview(bytearray(min(nbytes, 2 * CHUNK)))
        for done in range(0, nbytes, len(middle)):
            part = middle[: min(len(middle), nbytes - done)]
            to_host(source, start + done, part)
            from_host(target, to + done, part)


def _bytes(address: int, nbytes: int) -> memoryview:
    return memoryview(ffi.buffer(ffi.cast("char *", address), nbytes))


def fill(target: Allocation, offset: int, nbytes: int, value: int) -> None:
    """Set *nbytes* bytes at *offset* to *value*."""
    device = target.device
    if target.mapped:
        target.settle()
        ctypes.memset(target.mapped + offset, value, nbytes)
        return
    # vkCmdFillBuffer counts in 4 bytes; what is left at both ends is copied.
    low = min(-offset % 4, nbytes)
    high = (nbytes - low) % 4
    middle = nbytes - low - high
    for start, size in ((offset, low), (offset + nbytes - high, high)):
        if size:
            from_host(target, start, memoryview(bytes([value]) * size))
    if middle:
        word = int.from_bytes(bytes([value]) * 4, "little")
        device.submit(
            lambda c: device.lib.vkCmdFillBuffer(c, target.buffer, offset + low, middle, word),
            (target,),
        )


def copy_strided(
    target: Allocation,
    to: Side,
    source: Allocation,
    start: Side,
    shape: Sequence[int],
    run_nbytes: int,
) -> None:
    """Copy a region inside one device: up to `MAX_REGIONS` runs per command."""
    device = target.device
    if source is target and _touch(to, start, shape, run_nbytes):
        packed = packed_strides(shape, run_nbytes)
        size = span(packed, shape, run_nbytes)
        middle = device.heap.allocate(size, 4)
        try:
            copy_strided(middle, (0, packed), source, start, shape, run_nbytes)
            copy_strided(target, to, middle, (0, packed), shape, run_nbytes)
        finally:
            device.heap.free(middle)
        return
    for low, extent in parts(shape, MAX_REGIONS):
        table = regions(_at(start, low), _at(to, low), extent, run_nbytes)
        device.submit(
            lambda c, table=table: copy_regions(c, source, target, table),
            (source, target),
        )


def strided_from_host(
    target: Allocation, to: Side, address: Side, shape: Sequence[int], run_nbytes: int
) -> None:
    """Copy a region of host memory to *target*."""
    if target.mapped:
        target.settle()
        host_copy(address, (target.mapped + to[0], to[1]), shape, run_nbytes)
    elif run_nbytes > CHUNK:
        for low, _ in parts(shape, 1):
            target.device.staging.upload(target, _at(to, low)[0], _at(address, low)[0], run_nbytes)
    else:
        target.device.staging.scatter(target, _staged(address, to, shape, run_nbytes, up=True))


def strided_to_host(
    source: Allocation, start: Side, address: Side, shape: Sequence[int], run_nbytes: int
) -> None:
    """Copy a region of *source* to host memory; done on return."""
    if source.cached:
        source.settle()
        host_copy((source.mapped + start[0], start[1]), address, shape, run_nbytes)
    elif run_nbytes > CHUNK:
        for low, _ in parts(shape, 1):
            source.device.staging.download(
                source, _at(start, low)[0], _at(address, low)[0], run_nbytes
            )
    else:
        source.device.staging.gather(source, _staged(address, start, shape, run_nbytes, up=False))


def _staged(
    host: Side, device: Side, shape: Sequence[int], run_nbytes: int, *, up: bool
) -> Iterator[Part]:
    """Parts that each pass through one slot of the ring, packed there."""
    limit = min(MAX_REGIONS, CHUNK // run_nbytes)
    for low, extent in parts(shape, limit):
        packed = packed_strides(extent, run_nbytes)
        here, there = _at(host, low), _at(device, low)
        yield (
            _mover(here, packed, extent, run_nbytes, up=up),
            regions((0, packed), there, extent, run_nbytes)
            if up
            else regions(there, (0, packed), extent, run_nbytes),
        )


def _mover(
    host: Side, packed: Sequence[int], extent: Sequence[int], run_nbytes: int, *, up: bool
) -> Callable[[int], None]:
    def move_part(slot: int) -> None:
        sides = (host, (slot, packed)) if up else ((slot, packed), host)
        host_copy(*sides, extent, run_nbytes)

    return move_part


def _at(side: Side, low: Sequence[int]) -> Side:
    """The side of the part that begins at index *low*."""
    begin, strides = side
    return begin + sum(i * s for i, s in zip(low, strides, strict=True)), strides


def _touch(a: Side, b: Side, shape: Sequence[int], run_nbytes: int) -> bool:
    """Whether two regions of one buffer may overlap, judged by their ends."""
    (low_a, strides_a), (low_b, strides_b) = a, b
    return low_a < low_b + span(strides_b, shape, run_nbytes) and low_b < low_a + span(
        strides_a, shape, run_nbytes
    )
