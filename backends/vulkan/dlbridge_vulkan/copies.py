"""Copies and fills: by the host where it addresses the memory, by the device elsewhere.

Memory that the host does not address is copied through slots of host memory, so that the host
fills or empties one while the device copies others.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from dlbridge.protocol import Region

from .device import CHUNK, SLOTS
from .library import ffi
from .memory import Buffer

MAX_REGIONS = 16384
"""Regions of one submission: 24 bytes each on the host and in its command buffer."""

DENSE = 1 << 10
"""Bytes that come to the host in the time of one region."""

IN_COMMAND = 64
"""Regions of one vkCmdCopyBuffer: the validation layer compares each with each. 16,000 runs of a
byte took a minute under it as one command, and 0.9 s as 250; without it, as long either way."""

HOLD_GIL = 64 << 10
"""Bytes up to which a copy keeps the GIL: ffi.memmove keeps it and takes 0.3 us
for 4 KiB, ctypes.memmove drops it and takes 0.5 us."""

# Looking a type up by name costs as much as the cast.
CHARS, REGION = ffi.typeof("char *"), ffi.typeof("VkBufferCopy[1]")

UNITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

Side = tuple[int, Sequence[int]]
"""Where a region begins (an offset or an address) and its strides, in bytes."""


def address_of(memory: memoryview) -> int:
    """The address of *memory*'s first byte; *memory* stays the caller's to keep."""
    return int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))


def write(address: int, source: memoryview) -> None:
    """Copy the bytes of *source* to *address*."""
    nbytes = source.nbytes
    if nbytes <= HOLD_GIL:
        ffi.memmove(ffi.cast(CHARS, address), source, nbytes)
    else:
        ctypes.memmove(address, address_of(source), nbytes)


def write_first(target: Buffer, source: memoryview) -> None:
    """Copy *source*, as long as *target*, to its mapped memory, which no work uses yet."""
    if target.nbytes <= HOLD_GIL:  # the field is read in half of the time of a cast
        ffi.memmove(target.descriptor.mapped, source, target.nbytes)
    else:
        write(target.mapped, source)


def from_host(target: Buffer, offset: int, source: memoryview) -> None:
    """Copy *source* to *target*: directly where it is mapped, else by slots."""
    if target.mapped:
        target.settle()
        write(target.mapped + offset, source)
    else:
        _upload(target, (offset, ()), (address_of(source), ()), (), source.nbytes)


def to_host(source: Buffer, offset: int, into: memoryview) -> None:
    """Copy from *source* to *into*; done on return."""
    nbytes = into.nbytes
    if not source.cached:  # the host reads mapped memory that it does not cache very slowly
        _download(source, (offset, ()), (address_of(into), ()), (), nbytes)
        return
    source.settle()
    if nbytes <= HOLD_GIL:
        ffi.memmove(into, ffi.cast(CHARS, source.mapped + offset), nbytes)
    else:
        ctypes.memmove(address_of(into), source.mapped + offset, nbytes)


def copy(target: Buffer, to: int, source: Buffer, start: int, nbytes: int) -> None:
    """Copy *nbytes* bytes from *start* of *source* to *to* of *target*, inside one device."""
    _copy_regions(target, source, 1, ffi.new(REGION, ((start, to, nbytes),)))


def fill(target: Buffer, offset: int, nbytes: int, value: int) -> None:
    """Set *nbytes* bytes at *offset* to *value*."""
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
        run, there = target.device.lib.vkCmdFillBuffer, target.buffer
        target.queue.submit(
            lambda commands: run(commands, there, offset + low, middle, word), (target,)
        )


def copy_strided(
    target: Buffer, to: int, into: Region, source: Buffer, start: int, taken: Region
) -> None:
    """Copy a region inside one device: each run is a region of a command.

    Where these are very many, the host is faster (measured on lavapipe: a million runs of 4 bytes
    take 390 ms as regions, and 17 ms by way of the host).
    """
    shape, _, run = taken
    if source.cached and target.cached:
        source.settle()
        target.settle()
        here, there = source.mapped + start, target.mapped + to
        _host_copy((there, into.strides), (here, taken.strides), shape, run)
    elif prod(shape) > MAX_REGIONS and into.extent == prod(shape) * run:
        host = memoryview(bytearray(into.extent))
        strided_to_host(source, start, taken, host, into)
        from_host(target, to, host)
    else:
        for low, extent in _parts(shape, MAX_REGIONS):
            sides = _at((start, taken.strides), low), _at((to, into.strides), low)
            _copy_regions(target, source, prod(extent), _regions(*sides, extent, run))


def strided_from_host(
    target: Buffer, offset: int, into: Region, source: memoryview, taken: Region
) -> None:
    """Copy a region of host memory to *target*."""
    shape, steps, run = into
    here = address_of(source), taken.strides
    if target.cached:  # uncached memory is written at full speed in long runs only
        target.settle()
        _host_copy((target.mapped + offset, steps), here, shape, run)
    else:
        _upload(target, (offset, steps), here, shape, run)


def strided_to_host(
    source: Buffer, offset: int, taken: Region, into: memoryview, region: Region
) -> None:
    """Copy a region of *source* to host memory; done on return."""
    shape, steps, run = taken
    there = address_of(into), region.strides
    if source.cached:
        source.settle()
        _host_copy(there, (source.mapped + offset, steps), shape, run)
    elif taken.extent <= DENSE * prod(shape):  # all that lies between them takes less time
        whole = memoryview(bytearray(taken.extent))
        to_host(source, offset, whole)
        _host_copy(there, (address_of(whole), steps), shape, run)
    else:
        _download(source, (offset, steps), there, shape, run)


# Through slots ----------------------------------------------------------------------


class _Part(NamedTuple):
    """A part of a copy that fits a slot, where it is packed."""

    device: Side
    host: Side
    packed: Side
    shape: Sequence[int]
    run: int


def _upload(target: Buffer, device: Side, host: Side, shape: Sequence[int], run: int) -> None:
    """For each part: fill a slot, then submit the device's copy from it."""
    values: deque[int] = deque()
    for part in _slot_parts(device, host, shape, run):
        if len(values) == SLOTS:
            target.queue.wait(values.popleft())
        owner = target.device.allocate(CHUNK, 4096, is_slot=True)
        slot = owner.resource[0]
        _host_copy(_in(slot, part), part.host, part.shape, part.run)
        regions = _regions(part.packed, part.device, part.shape, part.run)
        values.append(_copy_regions(target, slot, prod(part.shape), regions))


def _download(source: Buffer, device: Side, host: Side, shape: Sequence[int], run: int) -> None:
    """For each part: submit the device's copy into a slot, then empty the slot."""
    coming: deque[tuple[Any, int, _Part]] = deque()
    for part in _slot_parts(device, host, shape, run):
        if len(coming) == SLOTS:
            _receive(*coming.popleft())
        owner = source.device.allocate(CHUNK, 4096, is_slot=True)
        regions = _regions(part.device, part.packed, part.shape, part.run)
        value = _copy_regions(owner.resource[0], source, prod(part.shape), regions)
        coming.append((owner, value, part))
    while coming:
        _receive(*coming.popleft())


def _receive(owner: Any, value: int, part: _Part) -> None:
    slot = owner.resource[0]
    slot.queue.wait(value)
    _host_copy(part.host, _in(slot, part), part.shape, part.run)


def _in(slot: Buffer, part: _Part) -> Side:
    return slot.mapped, part.packed[1]


def _slot_parts(device: Side, host: Side, shape: Sequence[int], run: int) -> Iterator[_Part]:
    """The parts of a region that each pass through one slot."""
    if run > CHUNK:  # a dimension more, and what is left of each run
        (start, steps), (address, strides) = device, host
        whole = run // CHUNK * CHUNK
        inner = (start, (*steps, CHUNK)), (address, (*strides, CHUNK))
        yield from _slot_parts(*inner, (*shape, whole // CHUNK), CHUNK)
        if run > whole:
            outer = (start + whole, steps), (address + whole, strides)
            yield from _slot_parts(*outer, shape, run - whole)
        return
    for low, extent in _parts(shape, min(MAX_REGIONS, CHUNK // run)):
        packed = tuple(run * prod(extent[axis + 1 :]) for axis in range(len(extent)))
        yield _Part(_at(device, low), _at(host, low), (0, packed), extent, run)


def _parts(shape: Sequence[int], limit: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Cut *shape* into ``(start, shape)`` of at most *limit* runs each, in C order."""
    if not shape:
        yield (), ()
        return
    axis = next((a for a in range(len(shape)) if prod(shape[a + 1 :]) <= limit), len(shape) - 1)
    step = max(1, limit // prod(shape[axis + 1 :]))
    inner = tuple(shape[axis + 1 :])
    for outer in product(*map(range, shape[:axis])):
        for low in range(0, shape[axis], step):
            start = (*outer, low, *(0 for _ in inner))
            yield start, (*(1 for _ in outer), min(step, shape[axis] - low), *inner)


def _at(side: Side, low: Sequence[int]) -> Side:
    """The side of the part that begins at index *low*."""
    begin, strides = side
    return begin + sum(i * s for i, s in zip(low, strides, strict=True)), strides


# By the device, and by the host -----------------------------------------------------


def _copy_regions(target: Buffer, source: Buffer, count: int, regions: Any) -> int:
    """Submit a copy of *count* *regions* (a C array of VkBufferCopy)."""
    run, there, here = target.device.lib.vkCmdCopyBuffer, target.buffer, source.buffer

    def record(commands: Any) -> None:
        for first in range(0, count, IN_COMMAND):
            run(commands, here, there, min(IN_COMMAND, count - first), regions + first)

    return target.queue.submit(record, (source, target))


def _regions(source: Side, target: Side, shape: Sequence[int], run: int) -> Any:
    """A C array of VkBufferCopy, one per run."""
    table: Any = np.empty((prod(shape), 3), np.uint64)
    for column, (offset, strides) in enumerate((source, target)):
        offsets: Any = np.uint64(offset)
        for extent, step in zip(shape, strides, strict=True):
            offsets = np.add.outer(offsets, np.arange(extent, dtype=np.uint64) * np.uint64(step))
        table[:, column] = np.ravel(offsets)
    table[:, 2] = run
    return ffi.from_buffer("VkBufferCopy[]", table)


def _host_copy(target: Side, source: Side, shape: Sequence[int], run: int) -> None:
    """Copy a region between two host addresses."""
    np.copyto(_view(target, shape, run), _view(source, shape, run))


def _view(side: Side, shape: Sequence[int], run: int) -> Any:
    address, strides = side
    # A run of 1, 2, 4 or 8 bytes is one element, and much faster than its bytes.
    unit = np.dtype(UNITS.get(run, np.uint8))
    memory = _bytes(address, Region(tuple(shape), tuple(strides), run).extent)
    shape, strides = (*shape, run // unit.itemsize), (*strides, unit.itemsize)
    return np.ndarray(shape, unit, buffer=memory, strides=strides)


def _bytes(address: int, nbytes: int) -> memoryview:
    return memoryview(ffi.buffer(ffi.cast(CHARS, address), nbytes))
