"""Copies and fills: by the host where it addresses the memory, by the device elsewhere."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence

from .buffer import Buffer
from .hostcopy import address_of, read, write
from .library import ffi
from .memory import Allocation
from .staging import CHUNK, Part, copy_regions
from .strided import MAX_REGIONS, Side, at, host_copy, packed_strides, parts, regions, span
from .strided_kernel import kernel_takes, strided_copy

__all__ = [
    "copy",
    "copy_strided",
    "fill",
    "from_host",
    "strided_from_host",
    "strided_to_host",
    "to_host",
]


def from_host(target: Buffer, offset: int, source: memoryview) -> None:
    """Copy *source* to *target*: directly where it is mapped, else by the staging ring."""
    if target.mapped:
        target.settle()
        write(target.mapped + offset, source)
    else:
        target.device.staging.upload(target, offset, address_of(source), len(source))


def to_host(source: Buffer, offset: int, into: memoryview) -> None:
    """Copy from *source* to *into*; done on return."""
    if source.cached:
        source.settle()
        read(into, source.mapped + offset)
    else:
        # The host reads mapped memory that it does not cache very slowly.
        source.device.staging.download(source, offset, address_of(into), len(into))


def copy(target: Buffer, to: int, source: Buffer, start: int, nbytes: int) -> None:
    """Copy *nbytes* bytes from *start* of *source* to *to* of *target*."""
    device = target.device
    if source.device is not device:
        _between(target, to, source, start, nbytes)
    elif source is target and abs(to - start) < nbytes:
        # Regions of one copy must not overlap (vkCmdCopyBuffer): by a detour.
        _by_detour(target, to, source, start, nbytes)
    else:
        region = ffi.new("VkBufferCopy[1]", [(start, to, nbytes)])
        copy_regions(device.queue, source, target, 1, region)


def _by_detour(target: Buffer, to: int, source: Buffer, start: int, nbytes: int) -> None:
    middle = Buffer.new(target.device, nbytes, 4)
    try:
        copy(middle, 0, source, start, nbytes)
        copy(target, to, middle, 0, nbytes)
    finally:
        middle.release()


def _between(target: Buffer, to: int, source: Buffer, start: int, nbytes: int) -> None:
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


def fill(target: Buffer, offset: int, nbytes: int, value: int) -> None:
    """Set *nbytes* bytes at *offset* to *value*."""
    device = target.device
    if target.cached:  # byte by byte, uncached memory is written very slowly
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
        device.queue.submit(
            lambda c: device.lib.vkCmdFillBuffer(c, target.buffer, offset + low, middle, word),
            (target,),
        )


def copy_strided(
    target: Buffer,
    to: Side,
    source: Buffer,
    start: Side,
    shape: Sequence[int],
    run_nbytes: int,
) -> None:
    """Copy a region inside one device: short runs by a shader, others as regions of commands."""
    if source is target and _touch(to, start, shape, run_nbytes):
        packed = packed_strides(shape, run_nbytes)
        size = span(packed, shape, run_nbytes)
        middle = Buffer.new(target.device, size, 4)
        try:
            copy_strided(middle, (0, packed), source, start, shape, run_nbytes)
            copy_strided(target, to, middle, (0, packed), shape, run_nbytes)
        finally:
            middle.release()
    elif kernel_takes(source, start, target, to, shape, run_nbytes):
        strided_copy(target.device, source, start, target, to, shape, run_nbytes)
    else:
        for low, extent in parts(shape, MAX_REGIONS):
            table = regions(at(start, low), at(to, low), extent, run_nbytes)
            copy_regions(target.queue, source, target, len(table), table)


def strided_from_host(
    target: Buffer, to: Side, address: Side, shape: Sequence[int], run_nbytes: int
) -> None:
    """Copy a region of host memory to *target*."""
    if target.cached:  # uncached memory is written at full speed in long runs only
        target.settle()
        host_copy(address, (target.mapped + to[0], to[1]), shape, run_nbytes)
    elif run_nbytes > CHUNK:
        for low, _ in parts(shape, 1):
            target.device.staging.upload(target, at(to, low)[0], at(address, low)[0], run_nbytes)
    else:
        target.device.staging.scatter(_staged(target, address, to, shape, run_nbytes, up=True))


def strided_to_host(
    source: Buffer, start: Side, address: Side, shape: Sequence[int], run_nbytes: int
) -> None:
    """Copy a region of *source* to host memory; done on return."""
    if source.cached:
        source.settle()
        host_copy((source.mapped + start[0], start[1]), address, shape, run_nbytes)
    elif run_nbytes > CHUNK:
        for low, _ in parts(shape, 1):
            source.device.staging.download(
                source, at(start, low)[0], at(address, low)[0], run_nbytes
            )
    else:
        source.device.staging.gather(_staged(source, address, start, shape, run_nbytes, up=False))


def _staged(
    buffer: Buffer, host: Side, device: Side, shape: Sequence[int], run_nbytes: int, *, up: bool
) -> Iterator[Part]:
    """Parts that each pass through one slot of the ring, packed there."""
    limit = CHUNK // run_nbytes
    ends = parts(shape, limit)
    first = next(ends)[1]
    packed = packed_strides(first, run_nbytes)
    # Judged by the first and largest part, with the ring's slot as a buffer like any other.
    if not kernel_takes(buffer, device, buffer, (0, packed), first, run_nbytes):
        limit = min(MAX_REGIONS, limit)
    for low, extent in parts(shape, limit):
        packed = packed_strides(extent, run_nbytes)
        yield (
            _mover(at(host, low), packed, extent, run_nbytes, up=up),
            _sender(buffer, at(device, low), packed, extent, run_nbytes, up=up),
        )


def _sender(
    buffer: Buffer,
    device: Side,
    packed: Sequence[int],
    extent: Sequence[int],
    run_nbytes: int,
    *,
    up: bool,
) -> Callable[[Allocation], int]:
    def send(slot: Allocation) -> int:
        source, start, target, to = slot, (0, packed), buffer, device
        if not up:
            source, start, target, to = target, to, source, start
        if kernel_takes(source, start, target, to, extent, run_nbytes):
            return strided_copy(buffer.device, source, start, target, to, extent, run_nbytes)
        table = regions(start, to, extent, run_nbytes)
        return copy_regions(buffer.queue, source, target, len(table), table)

    return send


def _mover(
    host: Side, packed: Sequence[int], extent: Sequence[int], run_nbytes: int, *, up: bool
) -> Callable[[int], None]:
    def move_part(slot: int) -> None:
        sides = (host, (slot, packed)) if up else ((slot, packed), host)
        host_copy(*sides, extent, run_nbytes)

    return move_part


def _touch(a: Side, b: Side, shape: Sequence[int], run_nbytes: int) -> bool:
    """Whether two regions of one buffer may overlap, judged by their ends."""
    (low_a, strides_a), (low_b, strides_b) = a, b
    return low_a < low_b + span(strides_b, shape, run_nbytes) and low_b < low_a + span(
        strides_a, shape, run_nbytes
    )
