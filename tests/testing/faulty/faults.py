"""The table of faults: each breaks one rule of the contract, and names the test that finds it.

A fault is the simulated device of dlbridge-fake with one mistake of an author: the docstring
says which. ``@breaks("fill", "test_fill")`` is one in a member: the function gets the backend, the
sound member and its arguments, and stands for the member. Where that is one expression, it is one of
`ROWS`. ``@found_by("test_fork")`` is one that needs a class. `FAULTS` has them all.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import itertools
import logging
import mmap
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections import deque
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from weakref import WeakValueDictionary

import numpy as np
from dlbridge_fake import Array, Fake, Stream, shared
from dlbridge_fake.memory import FakeMemory
from dlbridge_fake.stream import _Event, by_handle

import dlbridge
from dlbridge.core.plugins.cpu import CPU
from dlbridge.errors import (
    BackendUnavailable,
    DeviceError,
    DeviceLost,
    DeviceMemoryError,
    ExchangeError,
)
from dlbridge.kit.limits import pool_limit
from dlbridge.kit.resources import recall
from dlbridge.protocol import PlainAllocation, Region, Span
from tests.support.exporting_backend import Exporting as FilesOfTheSystem

IN_CHILD = "DLBRIDGE_TEST_CHILD" in os.environ
"""Whether the kit has started this process for one scene."""

PROCESS = os.getpid()

DRIVER_TIME = 0.0002
"""In seconds: as long as the call of a driver, so that other threads run."""

FAULTS = {}
"""The classes, by name."""


# Sound ones


class Sound(Fake):
    """No fault."""

    name = "faulty"
    late = False  # whether work is done in the streams' threads, after the call
    both = False  # whether host and device share memory
    patience = 120
    hangs = False  # whether the test does not end, so that the kit has to end the process
    ends = False  # whether it, or the kit, ends the process of pytest
    says = ""  # what the failure's first line has
    capacity = 1 << 33

    def __init__(self):
        super().__init__()
        if "DLBRIDGE_TEST_MISSING" in os.environ:
            self.be_missing()
        if sys.modules.get("package_of_faulty", self) is None:
            self.lack_package()
        self.shared = self.shared or self.both

    def be_missing(self):
        raise BackendUnavailable("faulty: the driver is missing; install it")

    def lack_package(self):
        raise BackendUnavailable("faulty: no package: pip install package-of-faulty")

    def allocate(self, device_id, nbytes, alignment, stream, content=None):
        if nbytes < 1 << 26 or nbytes > self.capacity:
            return super().allocate(device_id, nbytes, alignment, stream)
        self.stream(device_id, stream)
        pages = memoryview(mmap.mmap(-1, nbytes))  # of which only those are there that are used
        return self.enter(FakeMemory(next(self.handles), nbytes, device_id, pages, stream))

    def move(self, stream, into, source):
        if len(into) < 1 << 26:
            super().move(stream, into, source)
        else:
            stream.enqueue(lambda: move_what_differs(into, source))

    def fill(self, target, value, stream):
        if target.nbytes < 1 << 26:
            super().fill(target, value, stream)
            return
        into, queue = self.bytes_of(target, write=True), self.stream(target.device_id, stream)
        one = memoryview(bytes([value]) * STEP)
        queue.enqueue(lambda: [move_what_differs(part, one[: len(part)]) for part in parts(into)])


STEP = 1 << 20


def parts(content):
    return (content[at : at + STEP] for at in range(0, len(content), STEP))


def move_what_differs(into, source):
    """Move bytes, and have no page of zeros for zeros that are there already."""
    for to, at in zip(parts(into), parts(source), strict=True):
        if not np.array_equal(np.frombuffer(to, "u1"), np.frombuffer(at, "u1")):
            to[:] = at


class Late(Sound):
    """No fault; work is done late."""

    late = True


class Shared(Sound):
    """No fault; host and device use each other's memory."""

    both = True


class LateShared(Late, Shared):
    """No fault; both of them."""


class TakesMore(Sound):
    """No fault: a member has a parameter of its own, with a default."""

    def fill(self, target, value, stream, pattern=None):
        super().fill(target, value, stream)


class RefusesOverlaps(Sound):
    """No fault: the driver does not copy within overlapping memory, nor runs that overlap."""

    def copy(self, target, source, stream):
        if target[:2] == source[:2] and abs(target.offset - source.offset) < target.nbytes:
            raise DeviceError("the driver refuses overlapping regions")
        super().copy(target, source, stream)

    def copy_strided(self, target, target_region, source, source_region, stream):
        nested(target_region), nested(source_region)
        super().copy_strided(target, target_region, source, source_region, stream)

    def copy_strided_from_host(self, target, target_region, source, source_region, stream):
        nested(target_region), nested(source_region)
        super().copy_strided_from_host(target, target_region, source, source_region, stream)

    def copy_strided_to_host(self, source, source_region, into, into_region, stream):
        nested(source_region), nested(into_region)
        super().copy_strided_to_host(source, source_region, into, into_region, stream)


def nested(region):
    extent = region.run_nbytes
    for count, stride in reversed(list(zip(region.shape, region.strides, strict=True))):
        if stride < extent:
            raise DeviceError(f"the driver refuses runs that overlap: {region}")
        extent += (count - 1) * stride


class LosesBoth(Sound):
    """No fault: the devices have one context, and are lost together."""

    together = frozenset({0, 1})

    def lose(self, device_id):
        for each in self.together:
            super().lose(each)


class RenewsStreams(Sound):
    """No fault: the default stream has a handle, which ends with the device."""

    def __init__(self):
        super().__init__()
        self.renewed = 0

    def current_stream(self, device_id):
        self.check_device(device_id)
        return 1000 + self.renewed

    def stream(self, device_id, handle):
        if 1000 <= handle < 1000 + self.renewed:
            raise DeviceLost(f"stream {handle} has ended with faulty:{device_id}")
        return super().stream(device_id, 0 if handle == 1000 + self.renewed else handle)

    def reopen(self, device_id):
        self.renewed += bool(self.lost.get(device_id))
        super().reopen(device_id)


class Ending(FakeMemory):
    """Memory whose end calls a function."""

    __slots__ = ("at_end",)

    def __del__(self):
        self.at_end(self)


class Ends(Sound):
    """No fault: the end of memory calls `at_end`, as if the driver had to be told."""

    def allocate(self, device_id, nbytes, alignment, stream, content=None):
        return self.ending(super().allocate(device_id, nbytes, alignment, stream))

    def ending(self, made):
        memory = Ending(made.data, made.nbytes, made.device_id, made.content, made.stream)
        memory.at_end = self.at_end
        return self.enter(memory)

    def at_end(self, memory):
        """Nothing: Python frees it."""


class LateEnds(Late, Ends):
    """No fault; work is done late."""


class SharedEnds(Shared, Ends):
    """No fault; host and device use each other's memory."""


class Pooled(Ends):
    """No fault: freed memory is kept for the next request of its size, behind its stream."""

    capacity = 1 << 29

    def __init__(self):
        super().__init__()
        self.kept = [], []
        self.limit = pool_limit(1 << 24)

    def allocate(self, device_id, nbytes, alignment, stream, content=None):
        self.reopen(device_id)
        self.stream(device_id, stream)
        kept = self.kept[device_id]
        for index, (content, of) in enumerate(kept):
            if len(content) == nbytes and of == stream:
                kept.pop(index)
                made = FakeMemory(next(self.handles), nbytes, device_id, content, stream)
                return self.ending(made)
        if self.used(device_id) + nbytes > self.capacity:
            self.make_room(device_id)
        if self.used(device_id) + nbytes > self.capacity:
            raise DeviceMemoryError(f"faulty:{device_id}: no room for {nbytes} bytes")
        return super().allocate(device_id, nbytes, alignment, stream)

    def make_room(self, device_id):
        self.kept[device_id].clear()

    def at_end(self, memory):
        if os.getpid() != PROCESS:  # the memory is the parent's, and so is this object
            return
        kept = self.kept[memory.device_id]
        size = sum(len(content) for content, _ in kept)
        if size + memory.nbytes <= self.limit and memory.device_id not in self.lost:
            kept.append((memory.content, self.behind(memory)))

    def behind(self, memory):
        """The stream whose later work may use it again."""
        return memory.stream

    def trim(self, device_id):
        self.check_device(device_id)
        self.kept[device_id].clear()

    def used(self, device_id):
        live = sum(each.nbytes for each in self.live() if each.device_id == device_id)
        return live + sum(len(content) for content, _ in self.kept[device_id])

    def device_info(self, device_id):
        known = super().device_info(device_id)
        return {**known, "memory": self.capacity, "memory_used": self.used(device_id)}


class LatePooled(Late, Pooled):
    """No fault; work is done late."""


class Slabs(LateEnds):
    """No fault: memory of one size comes from slabs, and what was freed first is used again first.

    It is used again behind the work on the stream that it was last used on.
    """

    def __init__(self):
        super().__init__()
        self.waiting = {}  # device and size -> memory and the stream that it is used behind

    def allocate(self, device_id, nbytes, alignment, stream, content=None):
        if nbytes > 1 << 20:
            return super().allocate(device_id, nbytes, alignment, stream)
        self.reopen(device_id)
        queue = self.stream(device_id, stream)
        waiting = self.waiting.setdefault((device_id, nbytes), deque())
        if not waiting:
            waiting.extend((memoryview(bytearray(nbytes)), None) for _ in range(self.slab))
        content, of = waiting.popleft()
        if of is not None:
            queue.wait(of)
        made = FakeMemory(next(self.handles), nbytes, device_id, content, stream)
        memory = self.ending(made)
        memory.owner = stream  # the one that it was made on
        return memory

    slab = 12

    def at_end(self, memory):
        if os.getpid() != PROCESS or memory.nbytes > 1 << 20:
            return
        handle = self.behind(memory)
        if handle and handle not in by_handle:
            Stream.finish_ended(handle)
            handle = None
        stream = self.default_streams[memory.device_id] if handle == 0 else by_handle.get(handle)
        self.waiting[memory.device_id, memory.nbytes].append((memory.content, stream))

    def behind(self, memory):
        """The stream whose later work may use it again; None: at once."""
        return memory.stream


class WithContent(Sound):
    """No fault: memory is made together with its content."""

    content_limit = 4096

    def allocate(self, device_id, nbytes, alignment, stream, content=None):
        made = super().allocate(device_id, nbytes, alignment, stream)
        if content is not None:
            self.copy_from_host(Span(device_id, made.data, 0, nbytes), content, stream)
        return made


class Exporting(Sound, FilesOfTheSystem):
    """No fault: other processes can have its memory."""


class LateExporting(Late, Exporting):
    """No fault; work is done late, and the end of what was opened waits for it."""

    def import_memory(self, device_id, memory, stream):
        made = super().import_memory(device_id, memory, stream)
        opened = Ending(made.data, made.nbytes, device_id, made.content, stream)
        opened.owner, opened.offset, opened.at_end = made.owner, made.offset, self.end_opened
        return self.enter(opened)

    def end_opened(self, opened):
        self.finish(opened.device_id, opened.stream)


class ExportingAtTheBeginning(Exporting):
    """No fault: what is made for other processes begins where its file does."""

    def allocate_exportable(self, device_id, nbytes, stream):
        made = super().allocate_exportable(device_id, nbytes, stream)
        return self.entered(device_id, made.owner, 0)

    def export_memory(self, device_id, data):
        return super().export_memory(device_id, data)._replace(offset=0)


class Addresses(CPU):
    """No fault: ``data`` is an address."""

    name, late, patience, hangs, says, capacity = "cpu", False, 120, False, "", 1 << 33
    ends = False


SOUND = [
    *(Sound, Late, Shared, LateShared, TakesMore, RefusesOverlaps, LosesBoth, RenewsStreams),
    *(Ends, Pooled, LatePooled, Slabs, WithContent, Exporting, LateExporting),
    *(ExportingAtTheBeginning, Addresses),
]


# The table


def found_by(test):
    """Enter a class with a fault, which *test* finds."""

    def enter(cls):
        cls.test = test
        assert FAULTS.setdefault(cls.__name__, cls) is cls
        return cls

    return enter


def breaks(member, test, base=Sound, says=""):
    """Enter a fault in one *member* of *base*, which *test* finds; what its first line *says*."""

    def enter(function):
        def instead(self, *given, **named):
            return function(self, getattr(super(cls, self), member), *given, **named)

        own = {member: instead, "__doc__": function.__doc__, "__module__": __name__}
        own |= {"says": says} if says else {}
        cls = type(function.__name__, (base,), own)
        found_by(test)(cls)
        return function

    return enter


def cut(fake, span, bits):
    """The span with an offset that fits into so many bits."""
    fake.bytes_of(span)
    return span._replace(offset=span.offset & (1 << bits) - 1)


def again(fake, data):
    """The first bytes of memory, as the driver sees them."""
    return recall(fake.table, data).content


# Bytes


@breaks("copy_from_host", "test_round_trip")
def head_and_tail_lost(fake, real, target, source, stream):
    """The driver writes whole words, and the rest of the first and the last is not kept."""
    start, end = target.offset & ~3, (target.offset + target.nbytes + 3) & ~3
    end = min(end, len(again(fake, target.data)))
    words = bytearray(end - start)
    words[target.offset - start : target.offset - start + target.nbytes] = source
    real(target._replace(offset=start, nbytes=end - start), memoryview(words), stream)


@breaks("copy_from_host", "test_neighbouring_bytes")
def unlocked_read_modify_write(fake, real, target, source, stream):
    """The driver writes whole words; their other bytes are read before, without a lock."""
    start, end = target.offset & ~3, (target.offset + target.nbytes + 3) & ~3
    end = min(end, len(again(fake, target.data)))
    whole = target._replace(offset=start, nbytes=end - start)
    words = bytearray(fake.bytes_of(whole))
    time.sleep(DRIVER_TIME)
    words[target.offset - start : target.offset - start + target.nbytes] = source
    real(whole, memoryview(words), stream)


@breaks("copy_from_host", "test_neighbouring_elements")
def writes_it_all(fake, real, target, source, stream):
    """The same with all bytes of the memory."""
    whole = target._replace(offset=0, nbytes=len(again(fake, target.data)))
    content = bytearray(fake.bytes_of(whole))
    time.sleep(10 * DRIVER_TIME)
    content[target.offset : target.offset + target.nbytes] = source
    real(whole, memoryview(content), stream)


@breaks("copy_to_host", "test_offsets_of_views")
def download_forgets_small_offset(fake, real, source, into, stream):
    """Bytes to the host come from the beginning where the offset is small."""
    real(cut(fake, source, 0) if source.offset < 4 else source, into, stream)


@breaks("copy", "test_copy_inside")
def copy_swaps_offsets(fake, real, target, source, stream):
    """The offsets of target and source are taken for each other."""
    to, at = target.offset, source.offset
    real(target._replace(offset=at), source._replace(offset=to), stream)


@breaks("copy", "test_copy_inside_a_tensor")
def copy_within_swaps_offsets(fake, real, target, source, stream):
    """The same inside one memory."""
    to, at = (target.offset, source.offset) if target.data == source.data else (0, 0)
    if to or at:
        target, source = target._replace(offset=at), source._replace(offset=to)
    real(target, source, stream)


@breaks("copy", "test_copy_within_one_buffer")
def same_buffer_copy_refused(fake, real, target, source, stream):
    """The driver does not copy inside one buffer (WebGPU), and is asked to all the same."""
    if target.data == source.data:
        raise DeviceError("the driver refuses to copy from a buffer to itself")
    real(target, source, stream)


@breaks("copy", "test_copy_between_devices")
def peer_copy_forgets_offset(fake, real, target, source, stream):
    """A copy from the other device begins at the beginning of its memory."""
    if target.device_id != source.device_id:
        source = source._replace(offset=0)
    real(target, source, stream)


@breaks("copy", "test_between_devices")
def peer_copy_does_nothing(fake, real, target, source, stream):
    """A copy from the other device is forgotten."""
    if target.device_id == source.device_id:
        real(target, source, stream)


def offset_of_bits(name, member, bits, test, base=Sound, sides=(0,)):
    """A fault: the offset of one member is cut; *sides* says where it is among the arguments."""

    def member_of_bits(fake, real, *given):
        cuts = [
            cut(fake, part, bits) if index in sides else part for index, part in enumerate(given)
        ]
        return real(*cuts)

    member_of_bits.__name__ = name
    member_of_bits.__doc__ = f"An offset of {member} is cut to {bits} bits."
    breaks(member, test, base)(member_of_bits)


offset_of_bits("upload_offset_of_16_bits", "copy_from_host", 16, "test_round_trip")
offset_of_bits("download_offset_of_16_bits", "copy_to_host", 16, "test_round_trip")
offset_of_bits("copy_offset_of_16_bits", "copy", 16, "test_copy_inside", sides=(0, 1))
offset_of_bits("fill_offset_of_16_bits", "fill", 16, "test_fill")
offset_of_bits("strided_offset_of_16_bits", "copy_strided", 16, "test_strided_copies")
offset_of_bits("view_offset_of_16_bits", "host_view", 16, "test_host_views", base=Shared)
offset_of_bits("upload_offset_of_20_bits", "copy_from_host", 20, "test_offsets_are_not_cut")
offset_of_bits("download_offset_of_24_bits", "copy_to_host", 24, "test_offsets_are_not_cut")
offset_of_bits("copy_offset_of_24_bits", "copy", 24, "test_offsets_are_not_cut", sides=(1,))
offset_of_bits("fill_offset_of_20_bits", "fill", 20, "test_offsets_are_not_cut")
offset_of_bits(
    "strided_offset_of_24_bits", "copy_strided", 24, "test_offsets_are_not_cut", sides=(2,)
)
offset_of_bits("upload_offset_of_30_bits", "copy_from_host", 30, "test_offsets_are_not_cut")
offset_of_bits("copy_offset_of_32_bits", "copy", 32, "test_offsets_are_not_cut", sides=(0,))


def all_offsets(name, bits, test):
    """A fault: what was written at a cut offset is read again from there."""

    def all_of_bits(fake, real, span, **write):
        real(span, **write)
        return real(span._replace(offset=span.offset & (1 << bits) - 1), **write)

    all_of_bits.__name__, all_of_bits.__doc__ = name, f"All offsets are cut to {bits} bits."
    breaks("bytes_of", test)(all_of_bits)


all_offsets("offsets_of_16_bits", 16, "test_round_trip")
all_offsets("offsets_of_24_bits", 24, "test_offsets_are_not_cut")
all_offsets("offsets_of_30_bits", 30, "test_offsets_are_not_cut")
all_offsets("offsets_of_32_bits", 32, "test_offsets_are_not_cut")

CHUNK = 1 << 16
MOST = 128 << 20


@breaks("copy_from_host", "test_round_trip")
def second_chunk_is_the_first(fake, real, target, source, stream):
    """Larger uploads are cut into chunks, and the second repeats the first."""
    for number, start in enumerate(range(0, target.nbytes, CHUNK)):
        piece = source[start : start + CHUNK]
        if number == 1:
            piece = source[: len(piece)]
        part = target._replace(offset=target.offset + start, nbytes=len(piece))
        real(part, piece, stream)


@breaks("copy_to_host", "test_round_trip")
def last_chunk_is_rounded(fake, real, source, into, stream):
    """Larger downloads are cut into chunks, and the last is rounded down to whole words."""
    for start in range(0, source.nbytes, CHUNK):
        nbytes = min(CHUNK, source.nbytes - start)
        nbytes = nbytes & ~3 if source.nbytes > CHUNK else nbytes
        part = source._replace(offset=source.offset + start, nbytes=nbytes)
        real(part, into[start : start + nbytes], stream)


@breaks("copy_from_host", "test_large_round_trip")
def upload_stops_after_8_mib(fake, real, target, source, stream):
    """The staging ring of a large upload is used once, and not again."""
    most = min(8 << 20, target.nbytes)
    real(target._replace(nbytes=most), source[:most], stream)


@breaks("copy_from_host", "test_to_device_and_back")
def pieces_in_the_wrong_place(fake, real, target, source, stream):
    """A piece of a larger upload goes to the beginning."""
    for at in range(0, len(source), 4096):
        piece = source[at : at + 4096]
        to = target._replace(offset=0 if at == 8192 else target.offset + at, nbytes=len(piece))
        real(to, piece, stream)


@breaks("fill", "test_fill")
def fill_stops_after_a_chunk(fake, real, target, value, stream):
    """A larger fill is cut into chunks, and only the first is filled."""
    fake.bytes_of(target)
    real(target._replace(nbytes=min(target.nbytes, 2 << 20)), value, stream)


@breaks("copy", "test_copy_between_devices")
def second_chunk_from_a_peer_is_the_first(fake, real, target, source, stream):
    """Larger copies from the other device are cut into chunks, each read from the beginning."""
    if target.device_id == source.device_id:
        return real(target, source, stream)
    for start in range(0, target.nbytes, CHUNK):
        nbytes = min(CHUNK, target.nbytes - start)
        to = target._replace(offset=target.offset + start, nbytes=nbytes)
        real(to, source._replace(nbytes=nbytes), stream)
    return None


@breaks("copy", "test_copy_inside")
def chunks_of_copies_overlap(fake, real, target, source, stream):
    """Larger copies on the device are cut into chunks, each placed one byte too early."""
    for number, start in enumerate(range(0, target.nbytes, CHUNK)):
        nbytes = min(CHUNK, target.nbytes - start)
        to = target._replace(offset=target.offset + start - (number > 0), nbytes=nbytes)
        real(to, source._replace(offset=source.offset + start, nbytes=nbytes), stream)


def without_rows(region):
    """The region where a dimension of one row is dropped, and its stride is not."""
    shape, strides, run_nbytes = region
    if len(shape) == 2 and shape[0] == 1:
        return Region((shape[1],), strides[:1], run_nbytes)
    return region


@breaks("copy_strided_to_host", "test_strided_copies")
def one_row_has_its_own_stride(fake, real, source, source_region, into, into_region, stream):
    """One row is copied with the stride of the rows."""
    real(source, without_rows(source_region), into, without_rows(into_region), stream)


@breaks("copy_strided", "test_strides_are_not_cut")
def strides_of_31_bits(fake, real, target, target_region, source, source_region, stream):
    """A stride is an int."""
    cut_ones = (
        each._replace(strides=tuple(stride & (1 << 31) - 1 for stride in each.strides))
        for each in (target_region, source_region)
    )
    to, at = cut_ones
    real(target, to, source, at, stream)


# Over memory that the host has, too: it goes piece by piece, and each piece overwrites the next.
OVERLAPPING = 7
"""Bytes of a piece."""


@breaks("copy_strided_to_host", "test_strided_copies_are_not_cut")
def many_runs_with_their_gaps(fake, real, source, source_region, into, into_region, stream):
    """Many runs to the host, of equal strides, come as one piece: the gaps too."""
    if source_region == into_region and into_region.shape[0] > 64:
        return fake.copy_to_host(source, into, stream)
    return real(source, source_region, into, into_region, stream)


@breaks("copy_strided_from_host", "test_strided_copies_are_not_cut")
def many_bytes_in_pairs(fake, real, target, target_region, source, source_region, stream):
    """More than 1,000 single bytes go in pairs, and the last one is left out."""
    if target_region.run_nbytes == 1 and target_region.shape[-1] > 1000:
        shape = *target_region.shape[:-1], target_region.shape[-1] & ~1
        target_region = target_region._replace(shape=shape)
        source_region = source_region._replace(shape=shape)
    real(target, target_region, source, source_region, stream)


@breaks("copy_from_host", "test_long_overlaps", base=Shared)
def long_uploads_overwrite_what_they_read(fake, real, target, source, stream):
    """An upload goes in pieces of 4 KiB, also where the host's bytes are the device's own."""
    for start in range(0, target.nbytes, 4096):
        part = source[start : start + 4096]
        real(target._replace(offset=target.offset + start, nbytes=len(part)), part, stream)


@breaks("copy_strided", "test_overlaps")
def strided_copies_of_parts_begin_early(
    fake, real, target, target_region, source, source_region, stream
):
    """A strided copy on the device begins at the beginning."""
    real(cut(fake, target, 0), target_region, source, source_region, stream)


@breaks("copy_from_host", "test_overlaps_in_memory_of_others", base=Shared)
def uploads_overwrite_what_they_read(fake, real, target, source, stream):
    """An upload goes in pieces, also where the host's bytes are the device's own."""
    for start in range(0, target.nbytes, OVERLAPPING):
        part = source[start : start + OVERLAPPING]
        real(target._replace(offset=target.offset + start, nbytes=len(part)), part, stream)


@breaks("copy_to_host", "test_overlaps_in_host_memory_in_place", base=Shared)
def downloads_overwrite_what_they_read(fake, real, source, into, stream):
    """A download goes in pieces, also where the host's bytes are the device's own."""
    for start in range(0, source.nbytes, OVERLAPPING):
        part = into[start : start + OVERLAPPING]
        real(source._replace(offset=source.offset + start, nbytes=len(part)), part, stream)


@breaks("copy_strided_from_host", "test_overlap_in_several_calls", base=Shared)
def strided_uploads_of_shared_memory_begin_early(
    fake, real, target, target_region, source, source_region, stream
):
    """A strided upload begins at the beginning."""
    real(cut(fake, target, 0), target_region, source, source_region, stream)


@breaks("copy", "test_large_copies_are_not_cut")
def copies_above_128_mib_are_cut(fake, real, target, source, stream):
    """The driver's limit of one copy is not looked at."""
    nbytes = min(target.nbytes, MOST)
    real(target._replace(nbytes=nbytes), source._replace(nbytes=nbytes), stream)


@breaks("copy_from_host", "test_large_copies_are_not_cut")
def uploads_above_128_mib_are_cut(fake, real, target, source, stream):
    """The same for uploads."""
    nbytes = min(target.nbytes, MOST)
    real(target._replace(nbytes=nbytes), source[:nbytes], stream)


@breaks("copy_to_host", "test_large_copies_are_not_cut")
def downloads_above_128_mib_are_cut(fake, real, source, into, stream):
    """The same for downloads."""
    nbytes = min(source.nbytes, MOST)
    real(source._replace(nbytes=nbytes), into[:nbytes], stream)


@breaks("fill", "test_large_copies_are_not_cut")
def fills_above_128_mib_are_cut(fake, real, target, value, stream):
    """The same for fills."""
    real(target._replace(nbytes=min(target.nbytes, MOST)), value, stream)


@breaks("copy", "test_large_copies_are_not_cut")
def copies_above_192_mib_are_cut(fake, real, target, source, stream):
    """Two pieces are copied, and larger copies need a third."""
    nbytes = min(target.nbytes, 192 << 20)
    real(target._replace(nbytes=nbytes), source._replace(nbytes=nbytes), stream)


@breaks("copy", "test_large_copies_are_not_cut")
def second_piece_of_a_long_copy_is_lost(fake, real, target, source, stream):
    """Of a copy in three pieces of 96 MiB the second is forgotten."""
    for start in range(0, target.nbytes, 96 << 20):
        nbytes = min(96 << 20, target.nbytes - start)
        if start != 96 << 20 or target.nbytes < 192 << 20:
            to = target._replace(offset=target.offset + start, nbytes=nbytes)
            real(to, source._replace(offset=source.offset + start, nbytes=nbytes), stream)


def length_of_31_bits(name, member, cut_to):
    """A fault: the length of one member is an int of C."""

    def takes_an_int(fake, real, *given):
        length = given[0].nbytes
        return real(*given) if length < 1 << 31 else cut_to(real, length & (1 << 31) - 1, *given)

    takes_an_int.__name__, takes_an_int.__doc__ = name, f"The length of {member} has 31 bits."
    breaks(member, "test_large_copies_are_not_cut")(takes_an_int)


length_of_31_bits(
    "copies_of_31_bits", "copy",
    lambda real, n, to, at, stream: real(to._replace(nbytes=n), at._replace(nbytes=n), stream),
)  # fmt: skip
length_of_31_bits(
    "uploads_of_31_bits", "copy_from_host",
    lambda real, n, to, source, stream: real(to._replace(nbytes=n), source[:n], stream),
)  # fmt: skip
length_of_31_bits(
    "downloads_of_31_bits", "copy_to_host",
    lambda real, n, at, into, stream: real(at._replace(nbytes=n), into[:n], stream),
)  # fmt: skip
length_of_31_bits(
    "fills_of_31_bits", "fill",
    lambda real, n, to, value, stream: real(to._replace(nbytes=n), value, stream),
)  # fmt: skip


@breaks("copy_to_host", "test_source_and_target_may_lie_anywhere")
def download_rounds_up(fake, real, source, into, stream):
    """Bytes of the host behind the target are overwritten, up to the next whole word."""
    real(source, into, stream)
    behind = np.frombuffer(into, "u1").ctypes.data + len(into)
    ctypes.memset(behind, 0xCC, -len(into) % 4)


@breaks("copy_from_host", "test_source_and_target_may_lie_anywhere")
def upload_spoils_its_source(fake, real, target, source, stream):
    """The bytes are swapped in place for the driver, and not swapped back."""
    real(target, source, stream)
    if not source.readonly:
        source[:] = bytes(source)[::-1]


@breaks("copy_from_host", "test_source_and_target_may_lie_anywhere")
def needs_a_writable_source(fake, real, target, source, stream):
    """The address of the source is taken in a way that read-only memory does not have."""
    ctypes.c_char.from_buffer(source)
    real(target, source, stream)


@breaks("copy_from_host", "test_bytes_around_a_copy_stay")
def one_byte_too_many(fake, real, target, source, stream):
    """The byte behind the target changes."""
    real(target, source, stream)
    content, end = again(fake, target.data), target.offset + target.nbytes
    if end < len(content):
        content[end] ^= 0xFF


@breaks("copy_to_host", "test_to_device_and_back")
def loses_the_last_byte(fake, real, source, into, stream):
    """One byte of a download is not written."""
    if source.nbytes > 1:
        real(source._replace(nbytes=source.nbytes - 1), into[:-1], stream)


@breaks("copy_to_host", "test_export_to_the_host")
def flips_a_bit(fake, real, source, into, stream):
    """A download is nearly right."""
    real(source, into, stream)
    into[0] ^= 1


@breaks("copy_from_host", "test_types_that_numpy_has_not")
def uploads_of_14_bytes_are_swapped(fake, real, target, source, stream):
    """As if elements of two bytes had another order on the device."""
    swapped = np.frombuffer(source, "u2").byteswap().view("u1") if len(source) == 14 else source
    real(target, memoryview(swapped), stream)


@breaks("copy_from_host", "test_elements_below_a_byte")
def one_byte_too_many_of_packed(fake, real, *given):
    """The same where elements are smaller than a byte."""
    one_byte_too_many(fake, real, *given)


@breaks("fill", "test_fill")
def fills_whole_words(fake, real, target, value, stream):
    """A fill is rounded up to whole words."""
    size = len(again(fake, target.data))
    start, end = target.offset & ~3, min((target.offset + target.nbytes + 3) & ~3, size)
    real(target._replace(offset=start, nbytes=end - start), value, stream)


@breaks("copy_strided_to_host", "test_strided_copies")
def strides_forgotten(fake, real, source, source_region, into, into_region, stream):
    """A strided download uses the innermost stride of the host in every dimension."""
    innermost = into_region.strides[-1:] * len(into_region.strides)
    real(source, source_region, into, into_region._replace(strides=innermost), stream)


@breaks("copy_strided_from_host", "test_strided_copies")
def strided_offset_forgotten(fake, real, target, target_region, source, source_region, stream):
    """A strided upload begins at the beginning."""
    real(cut(fake, target, 0), target_region, source, source_region, stream)


@found_by("test_strided_copies")
class MostDimensionsWrong(Sound):
    """A region with as many dimensions as it can have loses the last of them."""

    max_strided_ndim = 7

    def copy_strided(self, target, target_region, source, source_region, stream):
        if len(target_region.shape) == self.max_strided_ndim:
            shape = (*target_region.shape[:-1], 1)
            target_region = target_region._replace(shape=shape)
        super().copy_strided(target, target_region, source, source_region, stream)


def gaps_are_copied(name, member, flat):
    """A fault: with equal strides on both sides all is copied, from the first byte to the last."""

    def copies_the_gaps(fake, real, to, region, at, other_region, stream):
        if region.strides == other_region.strides:
            return getattr(fake, flat)(to, at, stream)
        return real(to, region, at, other_region, stream)

    copies_the_gaps.__name__ = name
    copies_the_gaps.__doc__ = f"Where both sides of {member} have equal strides, gaps are copied."
    breaks(member, "test_strided_copies")(copies_the_gaps)


gaps_are_copied("gaps_are_copied_inside", "copy_strided", "copy")
gaps_are_copied("gaps_are_copied_from_the_host", "copy_strided_from_host", "copy_from_host")
gaps_are_copied("gaps_are_copied_to_the_host", "copy_strided_to_host", "copy_to_host")


@breaks("copy_strided", "test_strided_copies_are_not_cut")
def long_runs_are_cut(fake, real, target, target_region, source, source_region, stream):
    """A run of more than 64 KiB is cut."""
    most = min(target_region.run_nbytes, CHUNK)
    real(target, target_region._replace(run_nbytes=most), source, source_region, stream)


@breaks("copy_strided", "test_strided_copies_are_not_cut")
def pitches_above_1_mib_are_cut(fake, real, target, target_region, source, source_region, stream):
    """The driver's largest pitch is taken where a stride is larger."""
    strides = tuple(min(stride, 1 << 20) for stride in source_region.strides)
    real(target, target_region, source, source_region._replace(strides=strides), stream)


@breaks("copy_strided_from_host", "test_more_runs_than_a_grid_has")
def more_runs_than_a_grid_has(fake, real, target, target_region, source, source_region, stream):
    """A kernel takes the runs of a dimension, and a grid has 65,535 places in it."""
    shape = tuple(min(extent, (1 << 16) - 1) for extent in target_region.shape)
    given = target_region._replace(shape=shape), source, source_region._replace(shape=shape)
    real(target, *given, stream)


@breaks("copy_from_host", "test_host_memory_at_any_address")
def uploads_begin_at_whole_words(fake, real, target, source, stream):
    """The device reads the host's memory by whole words: low bits of the address are dropped."""
    address = np.frombuffer(source, "u1").ctypes.data
    if odd := address % 4:
        source = memoryview(ctypes.string_at(address - odd, len(source)))
    real(target, source, stream)


# Memory, and what a backend must refuse


@found_by("test_out_of_bounds_is_refused")
class NoBounds(Sound):
    """The driver copies what fits, and nobody looks at the sizes before."""

    def bytes_of(self, span, write=False):
        return again(self, span.data)[max(span.offset, 0) :][: span.nbytes]

    def move(self, stream, into, source):
        nbytes = min(len(into), len(source))
        super().move(stream, into[:nbytes], source[:nbytes])


@breaks("fill", "test_out_of_bounds_is_refused")
def no_bounds_in_fill(fake, real, target, value, stream):
    """Copies look at the sizes, and fills do not."""
    region = again(fake, target.data)[max(target.offset, 0) :][: target.nbytes]
    fake.move(fake.stream(target.device_id, stream), region, bytes([value]) * len(region))


@breaks("bytes_of", "test_out_of_bounds_is_refused")
def errors_of_the_table(fake, real, span, **write):
    """What the backend's own table raises leaves the backend as it is."""
    try:
        return real(span, **write)
    except ExchangeError as exc:
        raise IndexError(str(exc)) from None


@breaks("bytes_of", "test_memory_of_another_device_is_refused")
def handles_of_the_other_device(fake, real, span, **write):
    """The handle is looked up, and not whose it is."""
    if span.data in fake.table and 0 <= span.device_id < 2:
        span = span._replace(device_id=recall(fake.table, span.data).device_id)
    return real(span, **write)


@breaks("bytes_of", "test_unknown_device_is_refused_by_copies")
def copies_on_no_device_fail(fake, real, span, **write):
    """The driver reports an error for a device that does not exist."""
    if not 0 <= span.device_id < 2:
        raise DeviceError("driver: status -33")
    return real(span, **write)


@found_by("test_contract")
class NeedsMore(Sound):
    """A member needs a parameter that dlbridge does not give."""

    def import_data(self, device_id, data, module, owner):
        return super().import_data(device_id, data, module)


@found_by("test_no_capability_is_half_there")
class HalfACapability(Sound):
    """A member of a capability is misspelt."""

    memory_import_refusal = Exporting.memory_import_refusal


@found_by("test_contract")
class AnotherVersion(Sound):
    """It was written for another contract."""

    api = 1


@found_by("test_contract")
class AnotherType(Sound):
    """A device type that DLPack gives to another name."""

    device_type = 4


@breaks("device_info", "test_device_info_is_of_now")
def asks_once(fake, real, device_id):
    """What the driver says of a device is kept for ever."""
    known = vars(fake).setdefault("known", {})
    if device_id not in known:
        known[device_id] = real(device_id)
    return known[device_id]


@breaks("device_info", "test_device_info_is_of_now", says="counts on device 1, too")
def memory_used_of_all_devices(fake, real, device_id):
    """The bytes in use are those of the process, on whatever device."""
    return {**real(device_id), "memory_used": sum(each.nbytes for each in fake.live())}


@breaks("device_info", "test_unknown_device_is_refused")
def info_of_no_device(fake, real, device_id):
    """A device that does not exist is described all the same."""
    return real(device_id % 2)


@breaks("check_device", "test_unknown_device_is_refused_by_imports", base=Shared)
def counts_from_the_end(fake, real, device_id):
    """The number of a device that does not exist is only looked at from above."""
    if device_id >= 2:
        real(device_id)


@breaks("allocate", "test_errors_leave_all_in_order")
def lack_of_memory_is_another_error(fake, real, device_id, nbytes, *given):
    """No room is an error of the driver like any other."""
    if nbytes > 1 << 40:
        raise DeviceError(f"driver: status -4, {nbytes} bytes")
    return real(device_id, nbytes, *given)


@breaks("synchronize", "test_unknown_device_is_refused")
def synchronizes_no_device(fake, real, device_id, stream):
    """There is nothing to wait for on a device that does not exist."""
    if 0 <= device_id < 2:
        real(device_id, stream)


@breaks("wait", "test_unknown_device_is_refused")
def waits_on_no_device(fake, real, device_id, stream, on):
    """The same for a stream that waits for another."""
    if stream != on:
        real(device_id, stream, on)


@breaks("allocate", "test_too_much_is_refused")
def lack_of_memory_unmapped(fake, real, device_id, nbytes, *given):
    """The driver's error for too large a request leaves the backend as it is."""
    if nbytes > 1 << 40:
        raise RuntimeError(f"driver: status -4, {nbytes} bytes")
    return real(device_id, nbytes, *given)


@breaks("allocate", "test_too_much_is_refused", says="bytes were given: the driver has got")
def sizes_of_32_bits(fake, real, device_id, nbytes, *given):
    """The size is cut to what the driver takes."""
    return real(device_id, max(nbytes & 0xFFFFFFFF, 1) if nbytes > 1 << 40 else nbytes, *given)


ALL = memoryview(bytearray(1 << 24))


def of_all(fake, made):
    """The memory that every allocation gets."""
    made.content = ALL[: made.nbytes]
    return made


@breaks("allocate", "test_round_trip_on_every_device")
def one_memory_for_both_devices(fake, real, device_id, nbytes, *given):
    """The first allocations of the devices are the same memory."""
    made = real(device_id, nbytes, *given)
    return of_all(fake, made) if nbytes == 1000 else made


@breaks("allocate", "test_free_and_reuse")
def large_memory_is_one(fake, real, device_id, nbytes, *given):
    """Memory that is used again still has a user."""
    made = real(device_id, nbytes, *given)
    return of_all(fake, made) if nbytes == 4096 else made


@breaks("allocate", "test_a_copy_is_one")
def copies_of_tensors_are_one(fake, real, device_id, nbytes, *given):
    """New memory is that of before."""
    made = real(device_id, nbytes, *given)
    return of_all(fake, made) if nbytes == 400 else made


@breaks("allocate", "test_free_waits_for_queued_work")
def kept_memory_is_one(fake, real, device_id, nbytes, *given):
    """The same while work is queued."""
    made = real(device_id, nbytes, *given)
    return of_all(fake, made) if nbytes == 1 << 20 else made


@breaks("allocate", "test_new_memory_is_of_its_stream", base=Late)
def memory_is_of_stream_0(fake, real, device_id, nbytes, alignment, stream, *content):
    """The stream that memory is asked for on is not noted."""
    made = real(device_id, nbytes, alignment, stream, *content)
    made.stream = 0
    return made


@breaks("allocate", "test_alignment", base=Addresses)
def misaligned(fake, real, device_id, nbytes, alignment, stream, content=None):
    """The alignment of the driver has to do."""
    made = real(device_id, nbytes + 32, 32, stream)
    return PlainAllocation(made.data + 32, nbytes, stream, owner=made)


@found_by("test_handles_do_not_come_again")
class HandlesOf16Bits(Sound):
    """The numbers of memory begin again after 65,536, whether they are in use or not."""

    def __init__(self):
        super().__init__()
        first = next(self.handles)
        self.handles = itertools.cycle(range(first, first + (1 << 16)))


@found_by("test_reads_are_of_now")
class KeepsWhatWasRead(Sound):
    """Few bytes that were read are kept for the next read, until something is uploaded."""

    def __init__(self):
        super().__init__()
        self.read = {}

    def copy_from_host(self, *given):
        self.read.clear()
        super().copy_from_host(*given)

    def copy_to_host(self, source, into, stream):
        self.bytes_of(source)
        if source in self.read:
            into[:] = self.read[source]
            return
        super().copy_to_host(source, into, stream)
        if source.nbytes <= 64:
            self.synchronize(source.device_id, stream)
            self.read[source] = bytes(into)


@found_by("test_too_much_is_refused")
class RefusedRequestsCount(Sound):
    """The bytes of a request are counted before it is refused, and not taken back."""

    refused = 0

    def allocate(self, device_id, nbytes, alignment, stream, content=None):
        if self.refused > 1 << 32:
            raise DeviceMemoryError(f"faulty:{device_id}: no room for {nbytes} bytes")
        try:
            return super().allocate(device_id, nbytes, alignment, stream)
        except DeviceMemoryError:
            self.refused += min(nbytes, 1 << 30)
            raise


# Leaks


def keeping(name, member, test, what=lambda given: bytearray(4096), base=Sound):
    """A fault: the *member* keeps something for ever."""

    def keeps(fake, real, *given):
        vars(fake).setdefault("forgotten", []).append(what(given))
        return real(*given)

    keeps.__name__, keeps.__doc__ = name, f"Each {member} keeps something for ever."
    breaks(member, test, base)(keeps)


keeping("copy_leaks", "copy", "test_work_leaks_nothing")
keeping("fill_leaks", "fill", "test_work_leaks_nothing")
keeping("wait_leaks", "wait", "test_work_leaks_nothing")
keeping("sources_are_kept", "copy_from_host", "test_host_memory_is_let_go", lambda it: it[1])
keeping("targets_are_kept", "copy_to_host", "test_host_memory_is_let_go", lambda it: it[1])
keeping("streams_are_kept", "normalize_stream", "test_streams_are_let_go", lambda it: it[1], Late)


@found_by("test_many_allocations_leak_nothing")
class StagingOfEachThread(Sound):
    """Each thread has a staging buffer, which stays when the thread has ended."""

    says = "bytes stay after each turn"

    def __init__(self):
        super().__init__()
        self.staging = {}

    def copy_from_host(self, target, source, stream):
        self.staging.setdefault(threading.current_thread(), bytearray(1 << 18))
        super().copy_from_host(target, source, stream)


@breaks("allocate", "test_refusals_leak_nothing")
def memory_for_no_stream_is_kept(fake, real, device_id, nbytes, alignment, stream, content=None):
    """The memory is taken before the stream is looked at."""
    taken = bytearray(nbytes if nbytes < 1 << 40 else 0)
    try:
        return real(device_id, nbytes, alignment, stream)
    except ValueError:
        vars(fake).setdefault("taken", []).append(taken)
        raise


@breaks("allocate", "test_lost_device", says="freed by the garbage collector alone")
def memory_in_a_cycle(fake, real, *given):
    """Memory refers to itself, and goes when the collector comes."""
    made = real(*given)
    made.owner = made
    return made


keeping("owners_are_kept", "to_native", "test_native_keeps_its_owner", lambda it: it[0].owner)
keeping(
    "ends_leak_a_little",
    "at_end",
    "test_many_allocations_leak_nothing",
    lambda it: bytearray(1024),
    Ends,
)


@breaks("allocate", "test_many_allocations_leak_nothing")
def allocations_leak(fake, real, *given):
    """What is dropped is not given back."""
    made = real(*given)
    vars(fake).setdefault("kept", []).append(made)
    return made


@breaks("allocate", "test_many_moves_leak_nothing")
def memory_of_tensors_leaks(fake, real, device_id, nbytes, *given):
    """The same for 4096 bytes, of a tensor."""
    made = real(device_id, nbytes, *given)
    if nbytes == 4096:
        vars(fake).setdefault("kept", []).append(made)
    return made


@breaks("at_end", "test_many_allocations_leak_nothing", base=Ends)
def kept_by_other_threads(fake, real, memory):
    """Memory goes back in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        vars(fake).setdefault("kept", []).append(memory.content)


@found_by("test_many_allocations_leak_nothing")
class FilesLeak(Sound):
    """Each tenth allocation opens a file that is not closed before the backend goes."""

    def __init__(self):
        super().__init__()
        self.count, self.files = itertools.count(), []

    def allocate(self, *given):
        if next(self.count) % 10 == 0 and len(self.files) < 200:
            self.files.append(Path(os.devnull).open())  # noqa: SIM115 - the fault
        return super().allocate(*given)


@breaks("bytes_of", "test_refusals_leak_nothing")
def refused_copies_leak(fake, real, span, **write):
    """A refused copy forgets its staging buffer."""
    try:
        return real(span, **write)
    except ExchangeError:
        vars(fake).setdefault("forgotten", []).append(bytearray(4096))
        raise


@breaks("bytes_of", "test_refusals_leak_nothing")
def refused_copies_leak_an_allocation(fake, real, span, **write):
    """A refused copy forgets its staging buffer, which is counted."""
    try:
        return real(span, **write)
    except ExchangeError:
        vars(fake).setdefault("kept", []).append(fake.allocate(0, 1 << 16, 1, 0))
        raise


@breaks("allocate", "test_refusals_leak_nothing")
def refused_allocations_leak(fake, real, device_id, *given):
    """The handle of an allocation for which there was no room stays in the table."""
    try:
        return real(device_id, *given)
    except DeviceMemoryError:
        vars(fake).setdefault("kept", []).append(fake.allocate(device_id, 1, 1, 0))
        raise


@breaks("allocate", "test_what_is_dropped_is_given_back")
def cycles_hold_memory(fake, real, *given):
    """The owner is in a cycle that the collector may not see."""
    made = real(*given)
    made.owner = made
    vars(fake).setdefault("kept", []).append(made)
    return made


@breaks("import_host", "test_refusals_keep_nothing", base=Shared)
def refused_imports_are_kept(fake, real, device_id, address, nbytes, readonly, stream):
    """The error of a refused import stays, with the frames of those who asked."""
    try:
        return real(device_id, address, nbytes, readonly, stream)
    except ExchangeError as exc:
        vars(fake).setdefault("errors", []).append(exc)
        raise


@breaks("from_native", "test_refusals_keep_nothing")
def strangers_are_remembered(fake, real, obj):
    """What was found for an object is noted, also that it is no native one."""
    asked = vars(fake).setdefault("asked", {})
    asked[id(obj)] = obj, real(obj)
    return asked[id(obj)][1]


@breaks("to_native", "test_refusals_keep_nothing")
def refused_objects_are_kept(fake, real, array):
    """An array that cannot be given stays in a table of requests."""
    if array.readonly:
        vars(fake).setdefault("refused", []).append(array)
        raise ExchangeError("the ecosystem has no arrays that are read-only")
    return real(array)


# Threads


@breaks("copy_from_host", "test_threads")
def staging_is_shared(fake, real, target, source, stream):
    """All threads stage their bytes in one buffer."""
    ALL[: len(source)] = source
    time.sleep(DRIVER_TIME)
    real(target, ALL[: len(source)], stream)


@breaks("copy_from_host", "test_threads_move_tensors")
def staging_of_tensors_is_shared(fake, real, target, source, stream):
    """The same for what is longer than 100 bytes."""
    if len(source) > 100:
        ALL[: len(source)] = source
        time.sleep(DRIVER_TIME)
        source = ALL[: len(source)]
    real(target, source, stream)


@breaks("copy", "test_threads")
def bounce_is_shared(fake, real, target, source, stream):
    """Copies on the device of all threads go through one buffer."""
    into, taken = fake.bytes_of(target, write=True), fake.bytes_of(source)
    ALL[: len(taken)] = taken
    time.sleep(DRIVER_TIME)
    into[:] = ALL[: len(into)]


@breaks("fill", "test_threads")
def fill_value_is_shared(fake, real, target, value, stream):
    """The value of a fill lies in one place for all threads."""
    fake.value = value
    time.sleep(DRIVER_TIME)
    real(target, fake.value, stream)


class Locked(Ends):
    """A plain lock, which the end of memory takes."""

    patience = 8

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def at_end(self, memory):
        with self.lock:
            super().at_end(memory)


@breaks("enter", "test_free_anywhere_in_a_call", base=Locked)
def locked_table(fake, real, memory):
    """`allocate` takes the lock that the end of memory takes, in a finalizer inside of it."""
    with fake.lock:
        return real(memory)


@found_by("test_free_anywhere_in_a_call")
class LockedEndsOfImports(Shared):
    """A download takes the lock that the end of an import takes, in a finalizer inside of it."""

    patience = 20

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def copy_to_host(self, source, into, stream):
        with self.lock:
            super().copy_to_host(source, into, stream)

    def _end(self, imported):
        with self.lock:
            return super()._end(imported)


@found_by("test_free_anywhere_in_a_call")
class LockedEndsOfOpenedMemory(LateExporting):
    """`synchronize` takes the lock that the end of opened memory takes."""

    patience, says = 20, "deadlock: a finalizer waits for a lock of its own thread"

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def synchronize(self, device_id, stream):
        with self.lock:
            super().synchronize(device_id, stream)

    def end_opened(self, opened):
        with self.lock:
            super().end_opened(opened)


@found_by("test_a_thread_that_waits_holds_up_no_other")
class OneThreadWaits(Late):
    """Threads that wait for streams do so one after another."""

    def __init__(self):
        super().__init__()
        self.lock = threading.RLock()

    def synchronize(self, device_id, stream):
        with self.lock:
            super().synchronize(device_id, stream)


@found_by("test_each_member_beside_other_threads")
class CountsWhileOthersAllocate(Sound):
    """What is alive is counted in a table that other threads change meanwhile."""

    def live(self):
        found = []
        for known in self.table.values():
            found.append(known())
            time.sleep(0)  # the driver is asked about it
        return [memory for memory in found if memory is not None]


@found_by("test_threads_copy_between_devices")
class LocksOfTwoDevices(Sound):
    """A copy between two devices locks the target's, then the source's."""

    patience, says = 5, "deadlock: threads that copy between two devices"

    def __init__(self):
        super().__init__()
        self.locks = threading.RLock(), threading.RLock()

    def copy(self, target, source, stream):
        with self.locks[target.device_id]:
            if target.device_id != source.device_id:
                time.sleep(DRIVER_TIME)
            with self.locks[source.device_id]:
                super().copy(target, source, stream)


@found_by("test_threads_copy_between_devices")
class StagingBetweenDevices(Late):
    """Long copies between two devices go through one buffer, whoever uses it."""

    def copy(self, target, source, stream):
        if target.device_id == source.device_id or target.nbytes <= 1 << 16:
            super().copy(target, source, stream)
            return
        into, queue = self.bytes_of(target, write=True), self.stream(target.device_id, stream)
        ALL[: target.nbytes] = self.bytes_of(source)
        time.sleep(DRIVER_TIME)
        self.move(queue, into, ALL[: target.nbytes])


@breaks("copy_from_host", "test_free_anywhere_in_a_call", base=Locked)
def locked_upload(fake, real, *given):
    """The same in an upload."""
    with fake.lock:
        real(*given)


@breaks("synchronize", "test_free_anywhere_in_a_call", base=Locked)
def locked_wait(fake, real, *given):
    """The same while the host waits, where no objects are made: a signal handler frees memory."""
    real(*given)
    with fake.lock:
        time.sleep(DRIVER_TIME)


@breaks("bytes_of", "test_free_anywhere_in_a_call", base=Locked)
def locked_lookup(fake, real, span, **write):
    """The same where the table is searched."""
    with fake.lock:
        fake.wanted = [{span.data} for _ in range(5)]  # as any table makes objects
    return real(span, **write)


@found_by("test_free_in_a_finalizer")
class LocksItselfOut(Ends):
    """Whoever comes in while another call is on waits, if only for itself."""

    patience = 2

    def __init__(self):
        super().__init__()
        self.busy = False

    def copy_from_host(self, *given):
        self.busy = True
        [[] for _ in range(1000)]  # the collector has work to do
        super().copy_from_host(*given)
        self.busy = False

    def at_end(self, memory):
        if self.busy:
            time.sleep(0.2)


@found_by("test_signals_anywhere_in_a_call")
class BareAcquire(Sound):
    """A lock is taken and given back by two calls, and an exception comes between them."""

    patience, says = 8, "a lock is still held after the exception of a signal handler"

    def __init__(self):
        super().__init__()
        self.lock = threading.RLock()

    def copy_from_host(self, *given):
        self.lock.acquire()
        super().copy_from_host(*given)
        time.sleep(DRIVER_TIME)
        self.lock.release()


@breaks(
    "allocate",
    "test_signals_anywhere_in_a_call",
    says="are lost after the exceptions of a signal handler",
)
def lost_between_two_statements(fake, real, *given):
    """What the driver gave is noted in the next statement, or not."""
    kept = vars(fake).setdefault("kept", {})
    made = real(*given)
    kept[made.data] = made
    time.sleep(DRIVER_TIME)
    return kept.pop(made.data)


@found_by("test_signals_anywhere_in_a_call")
class InterruptedAllocationsAreLost(Ends):
    """What the driver gave is not known to the backend, if an exception comes right then."""

    says = "bytes of the driver are lost after the exceptions of a signal handler"

    def __init__(self):
        super().__init__()
        self.given = {}

    def allocate(self, device_id, nbytes, alignment, stream, content=None):
        made = super().allocate(device_id, nbytes, alignment, stream)
        self.given[made.data] = nbytes
        made.at_end = lambda memory: None  # the driver has given it, and nobody gives it back
        time.sleep(DRIVER_TIME)
        made.at_end = lambda memory: self.given.pop(memory.data, None)
        return made

    def device_info(self, device_id):
        used = sum(self.given.copy().values())
        return {**super().device_info(device_id), "memory_used": used}


def of_the_first_thread(name, member):
    """A fault: what one member needs is there in the thread that has opened the driver alone."""

    def instead(fake, real, *given):
        if threading.current_thread() is not threading.main_thread():
            raise DeviceError(f"{member}: the thread has no context")
        return real(*given)

    instead.__name__, instead.__doc__ = name, f"{member} fails in other threads than the first."
    base = Shared if member in ("host_view", "import_host") else Sound
    breaks(member, "test_each_member_in_another_thread", base)(instead)


of_the_first_thread("regions_in_the_first_thread", "copy_strided")
of_the_first_thread("region_uploads_in_the_first_thread", "copy_strided_from_host")
of_the_first_thread("views_in_the_first_thread", "host_view")
of_the_first_thread("imports_in_the_first_thread", "import_host")
of_the_first_thread("native_in_the_first_thread", "to_native")
of_the_first_thread("information_in_the_first_thread", "device_info")


@found_by("test_first_use_in_threads")
class OneWaits(Late):
    """While a thread waits for a stream, others who wait for it come back at once."""

    def __init__(self):
        super().__init__()
        self.waiting = set()

    def synchronize(self, device_id, stream):
        self.stream(device_id, stream)
        if (device_id, stream) in self.waiting:
            return
        self.waiting.add((device_id, stream))
        try:
            super().synchronize(device_id, stream)
        finally:
            self.waiting.discard((device_id, stream))


@found_by("test_first_use_in_threads")
class DriverEndsWithItsThread(Sound):
    """The driver belongs to the thread that opened it, and ends with it."""

    def __init__(self):
        super().__init__()
        self.opener = threading.current_thread()

    def stream(self, device_id, handle):
        if not self.opener.is_alive() and self.opener is not threading.main_thread():
            raise DeviceError("the driver was closed by the end of its thread")
        return super().stream(device_id, handle)


# Streams


def on_default_stream(name, member):
    """A fault: the work of one member goes to the default stream, whatever the stream."""

    def instead(fake, real, *given):
        fake.stream(given[0].device_id, given[-1])
        real(*given[:-1], 0)

    instead.__name__, instead.__doc__ = name, f"{member} goes to the default stream."
    breaks(member, "test_work_is_on_its_stream", Late)(instead)


on_default_stream("upload_on_default_stream", "copy_from_host")
on_default_stream("download_on_default_stream", "copy_to_host")
on_default_stream("copy_on_default_stream", "copy")
on_default_stream("fill_on_default_stream", "fill")
on_default_stream("strided_on_default_stream", "copy_strided")
on_default_stream("strided_upload_on_default_stream", "copy_strided_from_host")
on_default_stream("strided_download_on_default_stream", "copy_strided_to_host")


@breaks("copy_from_host", "test_work_is_on_its_stream", base=Late)
def large_uploads_on_the_default_stream(fake, real, target, source, stream):
    """What is too large for a command goes through a staging buffer, which has its own stream."""
    return real(target, source, stream if len(source) < 1 << 22 else 0)


@breaks("copy", "test_work_is_on_its_stream", base=Late, says="from another device")
def peer_copies_on_the_sources_default_stream(fake, real, target, source, stream):
    """A copy between devices is queued on the default stream of the other one."""
    if stream or target.device_id == source.device_id:
        return real(target, source, stream)
    into, taken = fake.bytes_of(target, write=True), fake.bytes_of(source)
    return fake.move(fake.stream(source.device_id, 0), into, taken)


@breaks("copy", "test_work_is_on_its_stream", base=Late)
def peer_copy_on_its_sources_stream(fake, real, target, source, stream):
    """A copy between devices goes to the default stream of the device of its source."""
    if target.device_id == source.device_id:
        return real(target, source, stream)
    into, taken = fake.bytes_of(target, write=True), fake.bytes_of(source)
    return fake.move(fake.default_streams[source.device_id], into, taken)


@breaks("copy_from_host", "test_small_uploads_are_in_order", base=Late)
def small_uploads_are_at_once(fake, real, target, source, stream):
    """Few bytes are written by the host, before the work that is queued."""
    if len(source) >= 64:
        return real(target, source, stream)
    fake.stream(target.device_id, stream)
    fake.bytes_of(target, write=True)[:] = source
    return None


@found_by("test_work_on_one_stream_is_in_order")
class OneBehind(Sound):
    """Each upload takes the source of the one before."""

    waiting = None

    def copy_from_host(self, target, source, stream):
        passing = self.waiting if self.waiting and len(self.waiting) == len(source) else source
        self.waiting = source
        super().copy_from_host(target, passing, stream)


@found_by("test_two_streams_at_once")
class StagingOfTwoStreams(Late):
    """One staging buffer for all streams; only who uses it twice waits."""

    user = None

    def copy_from_host(self, target, source, stream):
        into, queue = self.bytes_of(target, write=True), self.stream(target.device_id, stream)
        if queue is self.user:
            queue.synchronize()
        ALL[: len(source)], self.user = source, queue
        self.move(queue, into, ALL[: len(source)])


@breaks("synchronize", "test_synchronize_waits_for_long_work", base=Late)
def synchronize_gives_up(fake, real, device_id, stream):
    """After half a second the wait ends, whatever is left to do."""
    waits = threading.Thread(target=real, args=(device_id, stream), daemon=True)
    waits.start()
    waits.join(0.5)  # no verdict: it is the fault


@breaks("synchronize", "test_synchronize_alone_waits", base=Late)
def synchronize_forgets_default_stream(fake, real, device_id, stream):
    """0 counts as no stream, and so there is nothing to wait for."""
    fake.stream(device_id, stream)
    if stream:
        real(device_id, stream)


@breaks("synchronize", "test_the_source_may_change_after_synchronize", base=Late)
def synchronize_forgets_other_streams(fake, real, device_id, stream):
    """Only the default stream is waited for."""
    fake.stream(device_id, stream)
    if not stream:
        real(device_id, stream)


@breaks("wait", "test_wait_orders_two_streams", base=Late)
def wait_does_nothing(fake, real, device_id, stream, on):
    """`wait` is ``pass``."""
    fake.stream(device_id, stream), fake.stream(device_id, on)


@breaks("wait", "test_consumers_stream_waits", base=Late)
def wait_is_forgotten(fake, real, device_id, stream, on):
    """The same, as consumers see it."""
    fake.stream(device_id, stream), fake.stream(device_id, on)


@breaks("wait", "test_wait_orders_two_streams", base=Late)
def wait_forgets_default_stream(fake, real, device_id, stream, on):
    """0 counts as no stream where a stream waits for another."""
    fake.stream(device_id, stream), fake.stream(device_id, on)
    if stream and on:
        real(device_id, stream, on)


@breaks("wait", "test_wait_orders_two_streams", base=Late)
def wait_works_once(fake, real, device_id, stream, on):
    """Two streams that have been ordered once count as ordered."""
    ordered = vars(fake).setdefault("ordered", set())
    if (stream, on) not in ordered:
        real(device_id, stream, on)
    ordered.add((stream, on))


@breaks("wait", "test_wait_for_work_that_runs", base=Late)
def wait_looks_at_the_queue(fake, real, device_id, stream, on):
    """No work waits in the queue, so that there is nothing to wait for; but one piece runs."""
    if not fake.stream(device_id, on)._work.empty():
        real(device_id, stream, on)


@found_by("test_wait_for_work_that_runs")
class WaitsForItsOwnWork(Late):
    """Nothing was queued by the backend since the last `synchronize`, but a kernel by its user."""

    def __init__(self):
        super().__init__()
        self.idle = set()

    def stream(self, device_id, handle):
        self.idle.discard((device_id, handle))
        return super().stream(device_id, handle)

    def synchronize(self, device_id, stream):
        super().synchronize(device_id, stream)
        self.idle.add((device_id, stream))

    def wait(self, device_id, stream, on):
        if (device_id, on) not in self.idle:
            super().wait(device_id, stream, on)


@found_by("test_wait_for_work_that_runs")
class WaitsOfWaits(Late):
    """A stream that has no work but a wait for another one is not waited for."""

    def __init__(self):
        super().__init__()
        self.waiting = set()

    def stream(self, device_id, handle):
        self.waiting.discard((device_id, handle))
        return super().stream(device_id, handle)

    def wait(self, device_id, stream, on):
        if (device_id, on) not in self.waiting:
            super().wait(device_id, stream, on)
            self.waiting.add((device_id, stream))


@found_by("test_a_stream_waits_for_several")
class OneSemaphore(Late):
    """A stream has one semaphore for its next work: a second wait takes the first one's place."""

    def __init__(self):
        super().__init__()
        self.semaphores = {}

    def stream(self, device_id, handle):
        stream = super().stream(device_id, handle)
        semaphore = self.semaphores.pop((device_id, handle), None)
        if semaphore is not None:
            stream.enqueue(semaphore.get)
        return stream

    def wait(self, device_id, stream, on):
        super().stream(device_id, stream)
        if stream != on:
            semaphore = _Event()
            self.stream(device_id, on).enqueue(semaphore.set)
            self.semaphores[device_id, stream] = semaphore


@breaks("wait", "test_wait_on_itself_is_nothing", base=Late)
def wait_on_itself_fails(fake, real, device_id, stream, on):
    """A stream that waits for itself is an error of the driver."""
    if stream == on:
        raise RuntimeError("event recorded twice")
    real(device_id, stream, on)


@breaks("wait", "test_a_wait_holds_beside_many_others", base=Late)
def events_are_used_in_turn(fake, real, device_id, stream, on):
    """There are 256 events, and each is used again whether its wait is over or not."""
    events = kept_by(fake, "events")
    event = events.setdefault(events.setdefault("turn", 0) % 256, SimpleQueue())
    events["turn"] += 1
    fake.stream(device_id, on).enqueue(lambda: event.put(None))
    fake.stream(device_id, stream).enqueue(event.get)


@found_by("test_current_stream_is_the_threads_own")
class CurrentStreamIsShared(Late):
    """The current stream is one for all threads."""

    def __init__(self):
        super().__init__()
        self.last = {}

    def current_stream(self, device_id):
        found = super().current_stream(device_id)
        if found:
            self.last[device_id] = found
        return found or self.last.get(device_id, 0)


@found_by("test_current_stream_is_the_threads_own")
class CurrentStreamStays(Late):
    """The last current stream of a thread is still its current one after the block."""

    def __init__(self):
        super().__init__()
        self.of_thread = threading.local()

    def current_stream(self, device_id):
        found, last = super().current_stream(device_id), vars(self.of_thread)
        if found:
            last[device_id] = found
        return last.get(device_id, 0)


class Staying(Stream):
    """A stream that is current, for its backend, after a block that an exception has left."""

    def __exit__(self, *exc):
        super().__exit__(*exc)
        if exc[0] is not None:
            self.stays.stream = self


@found_by("test_current_stream_is_the_threads_own")
class CurrentStreamStaysAfterAnException(Late):
    """A block that an exception leaves does not set the stream of before."""

    def __init__(self):
        super().__init__()
        self.stays = threading.local()

    def new_stream(self, device_id):
        made = Staying(device_id)
        made.stays = self.stays
        return made

    def current_stream(self, device_id):
        stays = getattr(self.stays, "stream", None)
        found = super().current_stream(device_id)
        return stays.handle if not found and stays and stays.device_id == device_id else found


@breaks("normalize_stream", "test_streams_of_other_devices", base=Late)
def streams_of_other_devices_are_0(fake, real, device_id, stream):
    """A stream of another device is taken for the default stream."""
    try:
        return real(device_id, stream)
    except ValueError:
        if isinstance(stream, Stream):
            return 0
        raise


@breaks("normalize_stream", "test_unknown_streams")
def unknown_streams_are_0(fake, real, device_id, stream):
    """A number that is not known is taken for the default stream."""
    try:
        return real(device_id, stream)
    except ValueError:
        if isinstance(stream, int) and stream > 0:
            return 0
        raise


@breaks("normalize_stream", "test_unknown_streams")
def unknown_streams_are_told_by_their_number(fake, real, device_id, stream):
    """The error says neither which device was meant nor what may be passed."""
    try:
        return real(device_id, stream)
    except ValueError:
        raise ValueError(f"{stream:#x} is no stream") from None


@breaks("normalize_stream", "test_no_stream_at_all")
def bools_are_streams(fake, real, device_id, stream):
    """True is taken for the stream 1."""
    return 0 if isinstance(stream, bool) else real(device_id, stream)


@breaks("normalize_stream", "test_none_is_the_default_stream", base=Late)
def none_is_the_current_stream(fake, real, device_id, stream):
    """None is the stream that is current in the thread."""
    return fake.current_stream(device_id) if stream is None else real(device_id, stream)


@breaks("normalize_stream", "test_forbidden_streams")
def negative_streams_are_0(fake, real, device_id, stream):
    """Each negative number is as good as -1."""
    return -1 if isinstance(stream, int) and stream < 0 else real(device_id, stream)


@found_by("test_host_copies_block_as_declared")
class ClaimsToBlock(Late):
    """It declares that copies with the host block, and they do not."""

    host_copies_block = True


@found_by("test_host_copies_block_as_declared")
class ClaimsThatSmallCopiesBlock(ClaimsToBlock):
    """Larger copies with the host block, as declared, and small ones do not."""

    def copy_from_host(self, target, source, stream):
        super().copy_from_host(target, source, stream)
        if len(source) >= CHUNK:
            self.synchronize(target.device_id, stream)

    def copy_to_host(self, source, into, stream):
        super().copy_to_host(source, into, stream)
        if len(into) >= CHUNK:
            self.synchronize(source.device_id, stream)


@found_by("test_host_copies_block_as_declared")
class ClaimsThatStridedCopiesBlock(ClaimsToBlock):
    """Copies with the host block, as declared, and strided ones do not."""

    def copy_from_host(self, target, source, stream):
        super().copy_from_host(target, source, stream)
        self.synchronize(target.device_id, stream)

    def copy_to_host(self, source, into, stream):
        super().copy_to_host(source, into, stream)
        self.synchronize(source.device_id, stream)


@breaks("at_end", "test_free_waits_for_queued_downloads", base=LateEnds)
def early_destroy(fake, real, memory):
    """The end of memory destroys what queued work still uses."""
    memory.content[:] = bytes(len(memory.content))


@breaks("at_end", "test_memory_may_outlive_its_stream", base=LateEnds)
def ends_ask_for_their_stream(fake, real, memory):
    """The end of memory is put behind its stream, which is not there any more."""
    fake.stream(memory.device_id, memory.stream)


@breaks("_end", "test_memory_may_outlive_its_stream", base=LateShared)
def ends_of_imports_ask_for_their_stream(fake, real, imported):
    """The same for the end of an import."""
    fake.stream(imported.device_id, imported.stream)
    return real(imported)


@breaks("_end", "test_end_of_an_import_waits", base=LateShared)
def ends_of_imports_wait_for_the_first_device(fake, real, imported):
    """A stream is looked up on device 0, whose default stream has the same number."""
    imported.device_id = 0
    return real(imported)


@breaks("finish", "test_memory_may_outlive_its_stream", base=LateShared)
def ends_of_imports_do_not_wait_for_a_stream_that_is_gone(fake, real, device_id, handle):
    """The end of an import waits for a stream that is there, and for no work of one before."""
    if not handle or handle in by_handle:
        real(device_id, handle)


@found_by("test_a_stream_is_the_same_in_each_thread")
class DefaultStreamOfEachThread(Late):
    """The driver has a default stream for each thread."""

    @property
    def default_streams(self):
        own = vars(self).setdefault("own", threading.local())
        if not hasattr(own, "streams"):
            own.streams = [Stream(0), Stream(1)]
        return own.streams

    @default_streams.setter
    def default_streams(self, streams):
        pass


@found_by("test_consumers_stream_waits")
class WaitsForLaterWork(Late):
    """What a stream waits for is asked when it comes to the wait, with all the work of then."""

    patience, hangs = 4, True

    def wait(self, device_id, stream, on):
        mine, other = self.stream(device_id, stream), self.stream(device_id, on)
        if mine is not other:
            mine.enqueue(other._drain)


# Errors of queued work


@breaks("synchronize", "test_failed_work_is_said_once", base=Late)
def errors_are_swallowed(fake, real, *given):
    """The status of queued work is not looked at."""
    with suppress(DeviceError):
        real(*given)


@found_by("test_failed_work_is_said_once")
class ErrorsForEver(Late):
    """The driver keeps an error, and nobody takes it back."""

    error = None

    def synchronize(self, device_id, stream):
        if self.error is not None:
            raise DeviceError(self.error)
        try:
            super().synchronize(device_id, stream)
        except DeviceError as exc:
            self.error = str(exc)
            raise


@breaks("copy_strided", "test_work_is_on_its_stream", base=Late)
def strided_copies_on_the_first_stream(
    fake, real, target, target_region, source, source_region, stream
):
    """A strided copy goes to the stream that its target was made on."""
    made = recall(fake.table, target.data)
    real(target, target_region, source, source_region, made.stream)


@breaks("copy_from_host", "test_work_is_on_its_stream", base=Late)
def halves_of_long_uploads_at_once(fake, real, target, source, stream):
    """The second half of an upload of 4 MiB is made by another engine, which does not wait."""
    half = target.nbytes // 2 if target.nbytes >= 4 << 20 else target.nbytes
    real(target._replace(nbytes=half), source[:half], stream)
    fake.bytes_of(target, write=True)[half:] = source[half:]


@breaks("synchronize", "test_failed_work_is_of_its_stream", base=Late)
def errors_of_any_stream(fake, real, device_id, stream):
    """Whoever waits next gets the error."""
    for each in list(by_handle.values()):
        each.synchronize()
    real(device_id, stream)


@found_by("test_failed_work_is_said_once")
class ErrorsEndTheThread(Late):
    """The thread that does the work of a stream ends with the first error."""

    patience, hangs = 2, True

    def synchronize(self, device_id, stream):
        queue = self.stream(device_id, stream)
        queue._drain()
        while queue._errors:
            time.sleep(1)


@breaks("behind", "test_free_waits_for_queued_downloads", base=Slabs)
def slabs_behind_stream_0(fake, real, memory):
    """Memory is used again behind stream 0."""
    return 0


@breaks("behind", "test_free_waits_for_queued_downloads", base=Slabs)
def slabs_behind_their_first_stream(fake, real, memory):
    """Memory is used again behind the stream that it was made on."""
    return memory.owner


@breaks("behind", "test_free_waits_for_queued_downloads", base=Slabs)
def slabs_not_behind_stream_0(fake, real, memory):
    """Memory whose last work is on stream 0 is used again at once, by any stream."""
    return memory.stream or None


@breaks("behind", "test_free_waits_for_queued_downloads", base=Slabs)
def slabs_of_small_memory_at_once(fake, real, memory):
    """Work on small memory counts as done when it is freed."""
    return memory.stream if memory.nbytes > 4096 else None


@breaks("behind", "test_memory_of_an_ended_stream_is_not_used_too_early", base=Slabs)
def slabs_behind_no_ended_stream(fake, real, memory):
    """Memory whose stream is not there any more is used again at once."""
    return memory.stream if not memory.stream or memory.stream in by_handle else None


@breaks("wait", "test_failed_work_is_said_after_a_wait", base=Late)
def waits_take_errors_away(fake, real, device_id, stream, on):
    """Whoever waits for failed work clears its error."""
    real(device_id, stream, on)
    queue = fake.stream(device_id, on)
    queue.enqueue(queue._errors.clear)


@found_by("test_failed_work_is_said_once")
class FailedStreamsKeepMemory(LateEnds):
    """Memory that is freed behind failed work is not given back, as nothing says that it is done."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def at_end(self, memory):
        if os.getpid() != PROCESS:
            return
        device_id, handle = memory.device_id, memory.stream
        stream = by_handle.get(handle) if handle else self.default_streams[device_id]
        if stream is not None:
            stream.enqueue(lambda content=memory.content: self.end(stream, content))

    def end(self, stream, content):
        if stream._errors:
            self.kept.append(content)

    def live_allocations(self):
        return super().live_allocations() + len(self.kept)


# Native objects and foreign handles


@breaks("from_native", "test_native_layouts")
def native_offset_in_elements(fake, real, obj):
    """The offset is counted in whole elements."""
    array = real(obj)
    return array and array._replace(offset=array.offset // 4 * 4)


@breaks("to_native", "test_native_layouts")
def native_forgets_repetition(fake, real, array):
    """Strides of 0 are taken for those of C order."""
    return real(array._replace(strides=None) if array.strides and 0 in array.strides else array)


def described_wrong(name, doc, test, member="to_native", **wrong):
    """A fault: a field of each native object is wrong."""

    def instead(fake, real, obj):
        if member == "to_native":
            return Array(obj._replace(**wrong))
        found = real(obj)
        return found and found._replace(**wrong)

    instead.__name__, instead.__doc__ = name, doc
    breaks(member, test)(instead)


described_wrong("native_forgets_offset", "It begins at 0.", "test_native_layouts", offset=0)
described_wrong("native_forgets_strides", "In C order.", "test_native_layouts", strides=None)
described_wrong("native_is_float32", "Always float32.", "test_native_types", dtype="float32")
described_wrong("native_is_writable", "Never read-only.", "test_native_layouts", readonly=False)
described_wrong("native_drops_owner", "Not kept.", "test_native_keeps_its_owner", owner=None)
described_wrong("native_is_on_0", "On device 0.", "test_native_types", "from_native", device_id=0)
described_wrong("native_begins_at_4", "Off.", "test_native_layouts", "from_native", offset=4)
described_wrong("native_of_others_memory", "Off.", "test_native_objects_share_memory", offset=4)
described_wrong("native_views_at_4", "Off.", "test_native_views", "from_native", offset=4)


@breaks("to_native", "test_native_types")
def bfloat16_is_float16(fake, real, array):
    """The ecosystem's name of a type is another one's."""
    return real(array._replace(dtype="float16") if array.dtype == "bfloat16" else array)


@breaks("to_native", "test_native_layouts")
def native_strides_are_positive(fake, real, array):
    """The ecosystem counts strides from 0."""
    return real(array._replace(strides=array.strides and tuple(map(abs, array.strides))))


@breaks("to_native", "test_native_layouts", says="from_native(to_native(x)) names other memory")
def native_objects_have_handles_of_their_own(fake, real, array):
    """The ecosystem's object is a handle of its own for the same bytes."""
    if not array.data:
        return real(array)
    known = recall(fake.table, array.data)
    other = FakeMemory(next(fake.handles), known.nbytes, array.device_id, known.content)
    fake.enter(other)
    return real(array._replace(data=other.data, owner=(other, array.owner)))


@breaks("from_native", "test_native_elements_below_a_byte")
def padded_is_packed(fake, real, obj):
    """Elements of a byte each count as packed."""
    found = real(obj)
    return found and found._replace(strides=None)


@found_by("test_native_made_by_the_library")
class NativeOfItsOwnOnly(Sound):
    """Only what `to_native` has made is recognised."""

    def to_native(self, array):
        made = super().to_native(array)
        vars(self).setdefault("made", set()).add(id(made))
        return made

    def from_native(self, obj):
        return super().from_native(obj) if id(obj) in vars(self).get("made", ()) else None


@breaks("from_native", "test_native_made_by_the_library_is_let_go")
def native_is_kept(fake, real, obj):
    """An array of the library stays in a table."""
    vars(fake).setdefault("objects", []).append(obj)
    return real(obj)


@found_by("test_strangers_handles_are_refused")
class TakesFreed(Sound):
    """A handle that was freed still counts as its own."""

    def __init__(self):
        super().__init__()
        self.ever = {}

    def allocate(self, device_id, *given):
        made = super().allocate(device_id, *given)
        self.ever[made.data] = device_id
        return made

    def import_data(self, device_id, data, module):
        if data in self.ever:
            return self.ever[data], data
        return super().import_data(device_id, data, module)


@breaks("import_data", "test_strangers_handles_are_refused")
def follows_pointers(fake, real, device_id, data, module):
    """A handle that is not known is taken for a pointer, and read."""
    if data not in fake.table:
        data = ctypes.c_uint64.from_address(data).value
    return real(device_id, data, module)


@breaks("import_data", "test_strangers_handles_are_refused")
def believes_the_device(fake, real, device_id, data, module):
    """The device is the one that the exporter named, and not the one of the memory."""
    real(device_id, data, module)
    return device_id, data


@breaks("import_data", "test_strangers_handles_are_refused")
def checks_the_exporters_number(fake, real, device_id, data, module):
    """The exporter's number of the device must be one of ours, however the exporter counts."""
    fake.check_device(device_id)
    return real(device_id, data, module)


@breaks("import_data", "test_overlaps")
def refuses_blobs(fake, real, device_id, data, module):
    """What dlbridge itself asks about, for a handle that its user names, is not found."""
    if module == "dlbridge":
        raise ExchangeError("none of mine")
    return real(device_id, data, module)


@breaks("import_data", "test_deleters_run_once")
def refuses_its_own(fake, real, device_id, data, module):
    """A handle of its own is not found."""
    raise ExchangeError("none of mine")


@breaks("import_data", "test_export_and_import")
def imports_other_handles(fake, real, device_id, data, module):
    """A handle is taken for that of other memory."""
    fake.other = fake.allocate(device_id, 1000, 1, 0)
    return device_id, fake.other.data


@breaks("from_native", "test_strangers_are_not_native")
def native_by_its_attributes(fake, real, obj):
    """Whatever has a description is an array."""
    return getattr(obj, "description", None)


@breaks("from_native", "test_strangers_are_not_native", says="closed: it has no")
def asks_strangers(fake, real, obj):
    """An attribute of every object is asked for, which may raise."""
    return real(obj) if hasattr(obj, "description") else None


@breaks("from_native", "test_native_keeps_its_owner")
def parts_do_not_keep_the_whole(fake, real, obj):
    """What an object over a part of memory describes has no owner."""
    found = real(obj)
    return found._replace(owner=None) if found and found.offset else found


@breaks("to_native", "test_native_layouts")
def native_shape_is_squeezed(fake, real, array):
    """Dimensions of one element are dropped."""
    itemsize = dlbridge.dtype(array.dtype).itemsize
    steps = array.strides or np.empty(array.shape, f"V{itemsize}").strides
    kept = [pair for pair in zip(array.shape, steps, strict=True) if pair[0] != 1]
    if len(kept) == len(array.shape):
        return real(array)
    shape, strides = zip(*kept, strict=True) if kept else ((), ())
    return real(array._replace(shape=shape, strides=strides))


@breaks("to_native", "test_native_layouts")
def squares_are_in_c_order(fake, real, array):
    """What is in Fortran order is given in C order, and its shape shows nothing of it."""
    steps = array.strides
    if steps and len(steps) == 2 and array.shape[0] == array.shape[1] and 0 < steps[0] < steps[1]:
        array = array._replace(strides=steps[::-1])
    return real(array)


@breaks("to_native", "test_native_objects_over_one_memory")
def one_object_for_a_memory(fake, real, array):
    """The object that is there for a memory is given again, whatever part is asked for."""
    known = vars(fake).setdefault("objects", WeakValueDictionary())
    made = real(array)
    return known.setdefault(array.data, made) if array.data else made


@breaks("import_data", "test_strangers_handles_are_refused")
def handles_are_signed(fake, real, device_id, data, module):
    """A handle is put into a signed integer of C, which has no room for all of them."""
    data.to_bytes(8, "little", signed=True)
    return real(device_id, data, module)


# Memory that host and device share


def view_of(fake, span, stream):
    """A view of a copy."""
    copy_of_it = bytearray(fake.bytes_of(span))
    address = ctypes.addressof(ctypes.c_char.from_buffer(copy_of_it))
    view = PlainAllocation(address, span.nbytes, stream, owner=copy_of_it)
    fake.views.add(view)
    return view


@breaks("host_view", "test_host_views", base=Shared)
def read_only_views_are_kept(fake, real, span, writable, stream):
    """A read-only view is a copy, which the next one gets, too."""
    if writable:
        return real(span, writable, stream)
    kept = vars(fake).setdefault("copies", {})
    if span not in kept:
        kept[span] = bytearray(fake.bytes_of(span))
    address = ctypes.addressof(ctypes.c_char.from_buffer(kept[span]))
    return PlainAllocation(address, span.nbytes, stream)


@breaks("host_view", "test_host_view_waits_for_queued_work", base=LateShared)
def view_to_read_waits_for_nothing(fake, real, span, writable, stream):
    """Only a view to write to waits for the work on its stream."""
    if writable:
        return real(span, writable, stream)
    content = fake.bytes_of(span, write=False)
    return PlainAllocation(shared._address(content), span.nbytes, stream, owner=content)


@breaks("host_view", "test_shared_memory_leaks_nothing", base=Shared)
def views_leak(fake, real, *given):
    """A view that is dropped stays."""
    view = real(*given)
    vars(fake).setdefault("kept", []).append(view)
    return view


class _Clearing(PlainAllocation):
    def __del__(self):
        self.owner[:] = bytes(len(self.owner))


@breaks("host_view", "test_two_host_views_at_once", base=Shared)
def end_of_a_view_clears(fake, real, span, writable, stream):
    """The end of one view ends all of them."""
    view = real(span, writable, stream)
    return _Clearing(view.data, span.nbytes, stream, owner=again(fake, span.data))


@breaks("import_host", "test_shared_memory_leaks_nothing", base=Shared)
def imports_leak(fake, real, *given):
    """An import that is dropped stays."""
    made = real(*given)
    vars(fake).setdefault("kept", []).append(made)
    return made


@breaks("finish", "test_end_of_an_import_waits", base=LateShared)
def imports_end_early(fake, real, device_id, handle):
    """The end of an import does not wait for the work that uses the host's memory."""


@found_by("test_end_of_an_import_waits")
class ImportsEndBehindTheirFirstStream(LateShared):
    """The end of an import waits for the stream that it was made on, and not for its last."""

    def import_host(self, device_id, address, nbytes, readonly, stream):
        made = super().import_host(device_id, address, nbytes, readonly, stream)
        made.resource.first = stream
        return made

    def _end(self, imported):
        imported.stream = imported.first
        return super()._end(imported)


@breaks("_end", "test_read_only_import_is_not_written", base=Shared)
def imports_are_written_back(fake, real, imported):
    """The end of an import writes to the host's memory, also if that is read-only."""
    if imported.memory is not None:
        address = np.frombuffer(imported.memory.content, "u1").ctypes.data
        ctypes.memset(address, 0, 1)
    return real(imported)


@breaks("import_host", "test_read_only_import_is_not_written", base=Shared)
def imports_to_be_written(fake, real, device_id, address, nbytes, readonly, stream):
    """What is imported to be read only can be written."""
    return real(device_id, address, nbytes, False, stream)


@breaks("copy", "test_read_only_import_is_not_written", base=Shared)
def copies_into_read_only_imports(fake, real, target, source, stream):
    """Only uploads look whether the target can be written."""
    into = fake.bytes_of(target)
    if not into.readonly:
        return real(target, source, stream)
    taken = bytes(fake.bytes_of(source))
    return ctypes.memmove(shared._address(into), taken, len(taken))


@breaks("import_host", "test_host_import", base=Shared)
def import_is_a_copy(fake, real, device_id, address, nbytes, readonly, stream):
    """The device uses a copy of the host's memory."""
    made = real(device_id, address, nbytes, readonly, stream)
    made.resource.memory.content = memoryview(bytearray(ctypes.string_at(address, nbytes)))
    return made


@found_by("test_host_import")
class PromisesASmallerAlignment(Shared):
    """Memory at a multiple of 16 bytes is promised, and the driver takes multiples of 64."""

    def host_import_refusal(self, device_id, address, nbytes, demanded):
        if address % 64 and address % 16 == 0:
            return ""
        return super().host_import_refusal(device_id, address, nbytes, demanded)

    def import_host(self, device_id, address, nbytes, readonly, stream):
        if address % 64:
            raise DeviceError(f"driver: status -13, {address:#x}")
        return super().import_host(device_id, address, nbytes, readonly, stream)


@breaks("host_import_refusal", "test_host_import", base=Shared, says="explain promises no copy")
def refused_on_demand_only(fake, real, device_id, address, nbytes, demanded):
    """The alignment is looked at where the import is demanded, and not in a plan."""
    return real(device_id, address, nbytes, True) if demanded else ""


@breaks("import_host", "test_large_host_imports", base=Shared)
def large_imports_are_copies(fake, real, device_id, address, nbytes, readonly, stream):
    """More than 64 KiB of the host's memory is copied."""
    if nbytes <= CHUNK:
        return real(device_id, address, nbytes, readonly, stream)
    return import_is_a_copy(fake, real, device_id, address, nbytes, readonly, stream)


@breaks("import_host", "test_large_host_imports", base=Shared)
def end_of_large_imports_is_a_copy(fake, real, device_id, address, nbytes, readonly, stream):
    """The last page of host memory is another one where it is more than 1 MiB."""
    made = real(device_id, address, nbytes, readonly, stream)
    if nbytes > 1 << 20:
        made.resource.memory.content = memoryview(bytearray(ctypes.string_at(address, nbytes)))
    return made


@breaks("host_view", "test_large_host_views", base=Shared)
def large_views_are_copies(fake, real, span, writable, stream):
    """A view of more than 1 MiB is one of a copy."""
    if span.nbytes <= 1 << 20:
        return real(span, writable, stream)
    return view_of(fake, span, stream)


@breaks("import_host", "test_host_import_of_read_only_memory", base=Shared)
def imports_other_memory(fake, real, device_id, address, nbytes, readonly, stream):
    """Read-only memory is imported, and its bytes are not there."""
    made = real(device_id, address, nbytes, readonly, stream)
    made.resource.memory.content = memoryview(b"?" * nbytes)
    return made


@found_by("test_an_import_that_has_ended_is_left_alone")
class ImportsAreKeptForLater(Shared):
    """Host memory that was imported is kept for the next request of its size, like other memory."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def _end(self, imported):
        if imported.memory is not None:
            self.kept.append(imported.memory.content)
        return super()._end(imported)

    def allocate(self, device_id, nbytes, alignment, stream, content=None):
        made = super().allocate(device_id, nbytes, alignment, stream)
        for index, content in enumerate(self.kept):
            if len(content) == nbytes:
                made.content = self.kept.pop(index)
                break
        return made


@breaks("import_host", "test_two_imports_of_one_address", base=Shared)
def one_handle_for_an_address(fake, real, device_id, address, nbytes, readonly, stream):
    """A second import of an address gets the handle of the first."""
    known = vars(fake).setdefault("addresses", {})
    if known.get(address) in fake.table:
        return PlainAllocation(known[address], nbytes, stream)
    made = real(device_id, address, nbytes, readonly, stream)
    known[address] = made.data
    return made


@breaks("import_host", "test_two_imports_of_one_address", base=Shared)
def first_import_says_the_right(fake, real, device_id, address, nbytes, readonly, stream):
    """What is known of imported memory does not depend on whether it may be written."""
    right = kept_by(fake, "rights").setdefault((device_id, address, nbytes), readonly)
    return real(device_id, address, nbytes, right, stream)


@breaks("import_host", "test_read_only_import_is_the_hosts_memory", base=Shared)
def read_only_imports_are_copies(fake, real, device_id, address, nbytes, readonly, stream):
    """What is imported to be read only is copied once."""
    made = real(device_id, address, nbytes, readonly, stream)
    if readonly:
        made.resource.memory.content = memoryview(ctypes.string_at(address, nbytes))
    return made


@breaks("host_view", "test_read_only_import_is_the_hosts_memory", base=Shared)
def views_of_read_only_memory_are_copies(fake, real, span, writable, stream):
    """A view of read-only memory has the bytes of its beginning."""
    if not fake.bytes_of(span).readonly:
        return real(span, writable, stream)
    return view_of(fake, span, stream)


class _WritesBack(PlainAllocation):
    def __del__(self):
        into, had = self.owner
        into[:] = had


@breaks("host_view", "test_two_host_views_are_one_memory", base=Shared)
def read_only_views_are_written_back(fake, real, span, writable, stream):
    """The end of a view writes the bytes of its beginning, also where it was to be read only."""
    view, content = real(span, writable, stream), fake.bytes_of(span)
    if writable or content.readonly:
        return view
    return _WritesBack(view.data, span.nbytes, stream, owner=(content, bytes(content)))


@breaks("host_view", "test_two_host_views_are_one_memory", base=Shared)
def read_only_views_are_snapshots(fake, real, span, writable, stream):
    """A view that is not written to is a copy."""
    return real(span, writable, stream) if writable else view_of(fake, span, stream)


@found_by("test_lost_device_with_views_and_imports")
class QuestionsPinMemory(Shared):
    """Whether host memory can be used is tried, and what was tried stays pinned."""

    def __init__(self):
        super().__init__()
        self.pinned = set()

    def host_import_refusal(self, device_id, address, nbytes, demanded):
        refusal = super().host_import_refusal(device_id, address, nbytes, demanded)
        if not refusal:
            self.pinned.add((device_id, address, nbytes))
        return refusal

    def import_host(self, device_id, address, nbytes, readonly, stream):
        made = super().import_host(device_id, address, nbytes, readonly, stream)
        self.pinned.discard((device_id, address, nbytes))
        return made

    def live_allocations(self):
        return super().live_allocations() + len(self.pinned)


# Memory made with its content, kept memory, memory for other processes


@breaks("allocate", "test_memory_made_with_its_content", base=WithContent)
def content_is_forgotten(fake, real, device_id, nbytes, alignment, stream, content=None):
    """Memory is made without it."""
    return real(device_id, nbytes, alignment, stream)


@breaks("allocate", "test_memory_made_with_its_content_does_not_alias", base=WithContent)
def one_for_each_source(fake, real, device_id, nbytes, alignment, stream, content=None):
    """The memory of one source is made once."""
    made = vars(fake).setdefault("made", {})
    if content is None or content.readonly is False:
        return real(device_id, nbytes, alignment, stream, content)
    if id(content.obj) not in made:
        made[id(content.obj)] = real(device_id, nbytes, alignment, stream, content)
    memory = made[id(content.obj)]
    return PlainAllocation(memory.data, nbytes, stream, owner=memory)


@breaks("allocate", "test_unknown_device_is_refused", base=WithContent)
def content_on_every_device(fake, real, device_id, nbytes, alignment, stream, content=None):
    """The device is not looked at."""
    return real(0 if content else device_id, nbytes, alignment, stream, content)


@breaks("trim", "test_trim_gives_memory_back", base=Pooled)
def trims_the_first_device(fake, real, device_id):
    """The memory of device 0 is given back, whatever the device."""
    fake.check_device(device_id)
    real(0)


@breaks("trim", "test_trim_gives_memory_back", base=Pooled)
def trims_the_first_device_too(fake, real, device_id):
    """The same, and what was asked for as well."""
    real(device_id)
    real(0)


@breaks("trim", "test_trim_keeps_what_is_in_use", base=Pooled)
def trim_takes_what_is_in_use(fake, real, device_id):
    """Memory that is not freed goes, too."""
    real(device_id)
    for memory in fake.live():
        memory.content[:] = bytes(memory.nbytes)


@breaks("trim", "test_trim_keeps_what_is_in_use", base=Pooled)
def trim_takes_large_memory_in_use(fake, real, device_id):
    """The same with memory of more than 1 MiB."""
    real(device_id)
    for memory in fake.live():
        if memory.nbytes > 1 << 20:
            memory.content[:] = bytes(memory.nbytes)


@breaks("trim", "test_trim_keeps_what_is_in_use", base=Pooled)
def trim_takes_small_memory_in_use(fake, real, device_id):
    """The same with memory of less than 64 bytes."""
    real(device_id)
    for memory in fake.live():
        if memory.nbytes < 64:
            memory.content[:] = bytes(memory.nbytes)


@breaks("trim", "test_trim_in_threads", base=Pooled)
def trim_takes_what_others_use(fake, real, device_id):
    """The same while other threads use it."""
    trim_takes_what_is_in_use(fake, real, device_id)


@breaks("trim", "test_trim_beside_queued_work", base=LatePooled)
def trim_spoils_queued_work(fake, real, device_id):
    """Freed memory that queued work still reads is given back at once."""
    for content, _ in fake.kept[device_id]:
        content[:] = bytes(len(content))
    real(device_id)


@breaks("trim", "test_unknown_device_is_refused", base=Pooled)
def trims_every_device(fake, real, device_id):
    """A device that does not exist has nothing to give back."""


@found_by("test_pool_limit_is_kept")
class NoLimit(Pooled):
    """What the user has set is not read."""

    def __init__(self):
        super().__init__()
        self.limit = 1 << 29


@found_by("test_kept_memory_is_no_lack")
class KeptMemoryIsLacking(NoLimit):
    """There is no room, as freed memory is kept."""

    def make_room(self, device_id):
        pass


@breaks("import_memory", "test_exported_memory_is_one_memory", base=Exporting)
def exports_a_copy(fake, real, device_id, memory, stream):
    """What is opened again is a copy."""
    made = real(device_id, memory, stream)
    made.content = memoryview(bytearray(made.content))
    return made


@breaks("import_memory", "test_exported_memory_is_one_memory", base=Exporting)
def imports_without_the_offset(fake, real, device_id, memory, stream):
    """What is opened begins where the file does."""
    return real(device_id, memory._replace(offset=0), stream)


@breaks("import_memory", "test_memory_is_imported_at_its_offset", base=ExportingAtTheBeginning)
def imports_begin_at_the_beginning(fake, real, device_id, memory, stream):
    """As all that the backend itself exports does."""
    return real(device_id, memory._replace(offset=0), stream)


@breaks("import_memory", "test_exported_memory_lives_until_its_last_use", base=Exporting)
def ends_for_all(fake, real, device_id, memory, stream):
    """The end of one use ends the memory."""
    made = real(device_id, memory, stream)
    memory = Ending(made.data, made.nbytes, device_id, made.content)
    memory.owner, memory.offset = made.owner, made.offset
    memory.at_end = lambda it: it.content.__setitem__(slice(None), bytes(it.nbytes))
    return fake.enter(memory)


@breaks("end_opened", "test_end_of_opened_memory_waits", base=LateExporting)
def opened_memory_ends_at_once(fake, real, opened):
    """Nobody waits for the work on what was opened."""


@found_by("test_opened_memory_that_has_ended_is_left_alone")
class OpenedMemoryIsKeptForLater(LateExporting):
    """What was opened is kept for the next request of its size, like other memory."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def end_opened(self, opened):
        super().end_opened(opened)
        self.kept.append(opened.content)

    def allocate(self, device_id, nbytes, alignment, stream, content=None):
        made = super().allocate(device_id, nbytes, alignment, stream)
        for index, content in enumerate(self.kept):
            if nbytes <= len(content) < 2 * nbytes:
                made.content = self.kept.pop(index)[:nbytes]
                break
        return made


@found_by("test_other_memory_is_exported_or_refused")
class ExportsCopies(Exporting):
    """Memory that was not made for others is given to them as a copy."""

    def memory_export_refusal(self, device_id, data):
        self.check_device(device_id)
        return ""

    def export_memory(self, device_id, data):
        from tests.support.exporting_backend import BEFORE, File

        self.check_device(device_id)
        if data not in self.files:
            content = again(self, data)
            self.copied = self.files[data] = File([os.memfd_create("copy")])
            os.ftruncate(self.copied[0], BEFORE + len(content))
            os.pwrite(self.copied[0], content, BEFORE)
        return super().export_memory(device_id, data)


@found_by("test_exported_memory_is_its_own")
class ExportsItsNeighbours(Exporting):
    """Several memories are in one file."""

    def __init__(self):
        super().__init__()
        self.arena = os.memfd_create("exporting")
        self.ends = 256
        os.ftruncate(self.arena, 1 << 16)

    def allocate_exportable(self, device_id, nbytes, stream):
        from tests.support.exporting_backend import File

        self.check_device(device_id)
        made = self.entered(device_id, File([os.dup(self.arena)]), self.ends)
        self.ends += nbytes
        return made

    def export_memory(self, device_id, data):
        start = (1 << 16) - len(again(self, data))
        return super().export_memory(device_id, data)._replace(offset=start)


@breaks("import_memory", "test_an_exported_descriptor_ends_when_dropped", base=Exporting)
def takes_the_descriptor(fake, real, device_id, memory, stream):
    """An import takes over what the caller has."""
    made = real(device_id, memory, stream)
    os.close(memory.fd)
    return made


@breaks("export_memory", "test_exportable_memory_leaks_nothing", base=Exporting)
def exports_leak(fake, real, device_id, data):
    """Each export opens a file that nobody closes."""
    os.dup(fake.files[data][0])
    return real(device_id, data)


@breaks("check_device", "test_unknown_device_is_refused", base=Exporting)
def exports_of_any_device(fake, real, device_id):
    """The device is not looked at."""


# A lost device


@breaks("report_loss", "test_lost_device")
def loss_unmapped(fake, real, device_id):
    """The driver's error for a lost device leaves the backend as it is."""
    try:
        real(device_id)
    except DeviceLost as exc:
        raise OSError(str(exc)) from None


@breaks("lose", "test_lost_device", says="device 1 was lost, too (lost_together)")
def all_devices_are_lost_at_once(fake, real, device_id):
    """With one device the others are lost, too."""
    real(0)
    real(1)


@breaks("lose", "test_lost_device", base=LosesBoth)
def not_all_devices_are_lost_at_once(fake, real, device_id):
    """The other device goes on with the memory of a context that is gone."""
    Fake.lose(fake, device_id)


@breaks("to_native", "test_lost_device")
def native_objects_of_lost_memory(fake, real, array):
    """The device is not asked, as an object of the ecosystem is only a description."""
    return Array(array)


@breaks("reopen", "test_lost_device")
def lost_memory_comes_back(fake, real, device_id):
    """The device is opened again, and memory of before counts as valid."""
    real(device_id)
    fake.lost_before.pop(device_id, None)


@breaks("at_end", "test_lost_device", base=Ends)
def ends_raise_after_a_loss(fake, real, memory):
    """The end of memory asks the lost device."""
    if memory.data < fake.lost_before.get(memory.device_id, 0):
        fake.report_loss(memory.device_id)


@breaks("copy_strided", "test_lost_device")
def regions_go_on_after_a_loss(fake, real, target, target_region, source, source_region, stream):
    """A strided copy does not look whether the device is there."""


@breaks("host_view", "test_lost_device", base=Shared)
def views_go_on_after_a_loss(fake, real, span, writable, stream):
    """A new view of lost memory is given."""
    return view_of(fake, span, stream) if False else PlainAllocation(id(span), span.nbytes)


@breaks("import_host", "test_lost_device_with_views_and_imports", base=Shared)
def imports_go_on_after_a_loss(fake, real, device_id, address, nbytes, readonly, stream):
    """Memory is imported into a device that is lost."""
    lost, fake.lost = fake.lost, {}
    try:
        return real(device_id, address, nbytes, readonly, stream)
    finally:
        fake.lost = lost


@breaks("copy_from_host", "test_out_of_bounds_is_refused")
def pieces_are_checked(fake, real, target, source, stream):
    """Bytes go in pieces, and each is checked by itself: the first are written before an error."""
    for at in range(0, target.nbytes, 1 << 16):
        part = source[at : at + (1 << 16)]
        real(target._replace(offset=target.offset + at, nbytes=len(part)), part, stream)


@breaks("host_view", "test_out_of_bounds_is_refused", base=Shared)
def refused_views_pin_memory(fake, real, span, writable, stream):
    """The memory is pinned before its bounds are checked, and stays so after an error."""
    pinned = fake.__dict__.setdefault("pinned", [])
    pinned.append(recall(fake.table, span.data))
    made = real(span, writable, stream)
    pinned.pop()
    return made


@breaks("finish", "test_failed_work_is_said_once", base=LateShared)
def ends_swallow_errors(fake, real, device_id, handle):
    """The end of an import waits by `synchronize`, and the error of the work is nobody's."""
    with suppress(DeviceError):
        fake.synchronize(device_id, handle)


@found_by("test_lost_device_ends_a_wait")
class WaitsForALostDevice(Late):
    """A thread that waits for the device is not told that it is lost."""

    patience = 2

    def synchronize(self, device_id, stream):
        super().synchronize(device_id, stream)
        if device_id in self.lost:
            time.sleep(4)


class LostAtWork(LateEnds):
    """No fault: it knows which streams had work when the device was lost."""

    def __init__(self):
        super().__init__()
        self.at_work = set()

    def lose(self, device_id):
        for each in [*by_handle.values()]:
            if each.device_id == device_id and not each._work.empty():
                default = each is self.default_streams[device_id]
                self.at_work.add((device_id, 0 if default else each.handle))
        super().lose(device_id)

    def reopen(self, device_id):
        if self.lost.get(device_id):
            self.at_work.clear()
        super().reopen(device_id)


@breaks("synchronize", "test_lost_device", base=LostAtWork)
def loss_fails_the_queued_work(fake, real, device_id, stream):
    """Where work was queued, the loss is an error of that work."""
    if (device_id, stream) in fake.at_work:
        raise DeviceError(f"faulty:{device_id}: earlier work on stream {stream:#x} has failed")
    real(device_id, stream)


@breaks("copy_from_host", "test_lost_device", base=LostAtWork)
def uploads_go_behind_lost_work(fake, real, target, source, stream):
    """Where work is queued, an upload is put behind it, and the device is not asked."""
    if (target.device_id, stream) not in fake.at_work:
        real(target, source, stream)


@found_by("test_lost_device")
class EndsWaitForLostWork(LostAtWork):
    """Memory ends behind the work that is queued, which never ends on a lost device."""

    patience, hangs = 4, True

    def at_end(self, memory):
        if (memory.device_id, memory.stream) in self.at_work:
            threading.Event().wait()


@found_by("test_lost_device")
class LostWorkKeepsMemory(LostAtWork):
    """Memory that queued work uses is given back once the work is done, which never is."""

    def __init__(self):
        super().__init__()
        self.used = []

    def at_end(self, memory):
        if (memory.device_id, memory.stream) in self.at_work:
            self.used.append(memory.content)

    def live_allocations(self):
        return super().live_allocations() + len(self.used)


@breaks("import_host", "test_lost_device_with_views_and_imports", base=LateShared)
def imports_behind_lost_work(fake, real, device_id, address, nbytes, readonly, stream):
    """Where work is queued, an import is put behind it, and the device is not asked."""
    if fake.default_streams[device_id]._work.empty():
        return real(device_id, address, nbytes, readonly, stream)
    return PlainAllocation(next(fake.handles), nbytes, stream)


@breaks("copy", "test_lost_device")
def copies_from_a_lost_device_are_zeros(fake, real, target, source, stream):
    """A copy between two devices asks only that of its target whether it is there."""
    if source.device_id != target.device_id and source.device_id in fake.lost:
        fake.fill(target, 0, stream)
    else:
        real(target, source, stream)


# Processes


@found_by("test_entry_point_is_installed")
class NotInstalled(Sound):
    """There is no distribution."""

    name = "nobody"


@found_by("test_import_needs_no_driver")
class OpensAtImport(Sound):
    """The module opens the driver (tests/support/plugins/plugin_heavy.py)."""

    name = "heavy"


@found_by("test_class_is_called_without_arguments")
class NeedsArguments(Sound):
    """The class is called with arguments (tests/support/plugins/plugin_broken_class.py)."""

    name = "broken_call"


@found_by("test_import_needs_no_driver")
class DriverImportedWithTheModule(Sound):
    """The package of the driver is imported with the backend's module (plugin_faulty.py)."""


@found_by("test_import_needs_no_driver")
class ImportStartsAThread(Sound):
    """The module starts a thread (plugin_faulty.py)."""


@found_by("test_import_needs_no_driver")
class ImportAsksAServer(Sound):
    """The package asks a server when it is imported, and closes the connection."""


@found_by("test_import_needs_no_driver")
class ImportOpensASocket(Sound):
    """The module opens a connection (plugin_faulty.py)."""


@breaks("be_missing", "test_missing_driver_is_said")
def missing_server(fake, real):
    """A server that does not answer is an error of the system."""
    raise ConnectionRefusedError(111, "Connection refused")


@breaks("lack_package", "test_missing_driver_is_said")
def missing_package(fake, real):
    """The error of a missing package leaves its user alone."""
    raise BackendUnavailable("faulty: no package")


@found_by("test_exit")
class ExitCrashes(Sound):
    """The driver is closed at exit, while tensors still use it."""

    def __init__(self):
        super().__init__()
        if IN_CHILD:
            atexit.register(lambda: self.table and os.abort())


@found_by("test_exit")
class ThreadAtExit(Sound):
    """A thread that helps is no daemon, and nobody ends it."""

    patience, says = 8, "has not ended after 8 s (patience)"

    def __init__(self):
        super().__init__()
        if IN_CHILD:
            threading.Thread(target=time.sleep, args=(3600,)).start()


@breaks("at_end", "test_fork_with_shared_memory", base=SharedEnds)
def ends_raise_in_a_child(fake, real, memory):
    """The end of memory refuses to run in a forked child, where a finalizer calls it."""
    if os.getpid() != PROCESS:
        raise DeviceError("the device cannot be used after os.fork()")


@found_by("test_fork_with_work_on_streams")
class EndsWaitInAChild(LateEnds):
    """The end of memory waits for its stream, whose thread a forked child has not."""

    patience = 8

    def at_end(self, memory):
        self.finish(memory.device_id, memory.stream)


@found_by("test_fork_with_shared_memory")
class ImportsEndLateInAChild(Shared):
    """The end of an import waits for threads that only the parent has."""

    patience, says = 8, "the child did not end"

    def import_host(self, device_id, address, nbytes, readonly, stream):
        made = super().import_host(device_id, address, nbytes, readonly, stream)
        memory = Ending(made.data, nbytes, device_id, made.resource.memory.content)
        memory.owner, memory.at_end = made, wait_in_a_child  # no member, which fails there
        return self.enter(memory)


def wait_in_a_child(_memory):
    while os.getpid() != PROCESS:
        time.sleep(1)


@found_by("test_fork")
class ForkedChildHangs(Ends):
    """A forked child waits for threads that only its parent has."""

    patience, says = 8, "the child did not end"

    def at_end(self, memory):
        wait_in_a_child(memory)


@breaks("copy_to_host", "test_the_process_stays_as_it_is")
def collector_stays_off(fake, real, source, into, stream):
    """The garbage collector is off during a copy, and afterwards."""
    gc.disable()
    real(source, into, stream)


@breaks("fill", "test_the_process_stays_as_it_is")
def random_numbers_begin_again(fake, real, target, value, stream):
    """Python's random numbers are seeded."""
    random.seed(0)
    real(target, value, stream)


@breaks("copy_strided", "test_the_process_stays_as_it_is")
def warnings_of_numpy_are_off(fake, real, target, target_region, source, source_region, stream):
    """numpy's warnings are turned off, and never on again."""
    np.seterr(all="ignore")
    real(target, target_region, source, source_region, stream)


@found_by("test_the_process_is_as_before")
class DriverTakesCtrlC(Sound):
    """The driver's library ends the process at Ctrl-C."""

    def __init__(self):
        super().__init__()
        if IN_CHILD:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


@found_by("test_the_process_is_as_before")
class DriverSetsTheEnvironment(Sound):
    """The driver's settings are variables of the environment, which other libraries read, too."""

    def __init__(self):
        super().__init__()
        os.environ["OMP_NUM_THREADS"] = "1"


@found_by("test_the_process_is_as_before")
class DriverHidesWarnings(Sound):
    """The driver's warnings are turned off, and with them those of all others."""

    def __init__(self):
        super().__init__()
        warnings.simplefilter("ignore")


@found_by("test_the_process_is_as_before")
class DriverConfiguresLogging(Sound):
    """Opening the driver configures Python's logging, as a program does."""

    def __init__(self):
        super().__init__()
        if IN_CHILD:
            logging.basicConfig(level=logging.DEBUG)


@found_by("test_the_process_is_as_before")
class DriverPrints(Sound):
    """Opening the driver prints what was found."""

    def __init__(self):
        super().__init__()
        if IN_CHILD:
            print("found 2 devices")


@breaks("copy_to_host", "test_interrupts_reach_the_caller")
def downloads_ignore_ctrl_c(fake, real, source, into, stream):
    """A download that is interrupted begins again, and nobody hears of it."""
    while True:
        try:
            return real(source, into, stream)
        except KeyboardInterrupt:
            pass


@breaks("copy_strided_to_host", "test_interrupts_reach_the_caller")
def regions_ignore_every_error(fake, real, source, source_region, into, into_region, stream):
    """Whatever a strided download raises counts as done."""
    with suppress(BaseException):
        real(source, source_region, into, into_region, stream)


@found_by("test_exit")
class ExitPrints(Sound):
    """At exit it says what is alive."""

    def __init__(self):
        super().__init__()
        if IN_CHILD:
            told = self.table
            atexit.register(lambda: os.write(2, b"leaked\n" * len(told)))


OPENED = []


@breaks("be_missing", "test_missing_driver_is_said")
def driver_stays_half_open(fake, real):
    """The first opening, which failed, leaves something that the second one takes for a driver."""
    if OPENED:
        raise RuntimeError("the driver is open already")
    OPENED.append(True)
    real()


# What is kept of one call, and used for another


def kept_by(fake, name):
    """What *fake* keeps of calls under this *name*: a dict."""
    return vars(fake).setdefault(name, {})


class NativeOfFake(Array):
    """An `Array` that can have weak references."""


def natives_by(name, *ignored):
    """A fault: the native object is one that is there already, if only *ignored* differ."""

    def to_native(fake, real, array):
        there = vars(fake).setdefault("natives", WeakValueDictionary())
        named = {each: it for each, it in array._asdict().items() if each not in ignored}
        key = (*named.values(), id(array.owner))
        made = there.get(key) or NativeOfFake(real(array).description)
        return there.setdefault(key, made)

    to_native.__name__, to_native.__doc__ = name, f"A native object is kept; not by {ignored}."
    breaks("to_native", "test_calls_with_one_difference")(to_native)


natives_by("natives_by_shape", "strides", "owner")
natives_by("natives_without_type", "dtype", "owner")
natives_by("natives_without_offset", "offset", "owner")
natives_by("natives_of_any_right", "readonly", "owner")


@breaks("to_native", "test_calls_with_one_difference", says="does not keep array.owner alive")
def natives_of_another_owner(fake, real, array):
    """A native object is kept by what it describes, with the owner of the first."""
    there, key = vars(fake).setdefault("natives", WeakValueDictionary()), array._replace(owner=None)
    return there.setdefault(key, NativeOfFake(real(array).description))


@breaks("copy_from_host", "test_calls_with_one_difference")
def same_object_is_not_sent_again(fake, real, target, source, stream):
    """An upload from an object to where it was uploaded before does nothing."""
    sent, key = kept_by(fake, "sent"), (target, id(source.obj))
    fake.bytes_of(target, write=True)
    if sent.get("last") != key or isinstance(source.obj, bytes):
        real(target, source, stream)
    sent["last"] = key


@breaks("fill", "test_calls_with_one_difference")
def patterns_by_length(fake, real, target, value, stream):
    """What long memory is filled with is kept by the length."""
    kept = kept_by(fake, "patterns")
    real(target, kept.setdefault(target.nbytes, value) if target.nbytes > 4096 else value, stream)


@breaks("copy_strided", "test_calls_with_one_difference")
def plans_by_target(fake, real, target, target_region, source, source_region, stream):
    """How runs are copied is kept by the target's region and the shape."""
    plan = kept_by(fake, "plans").setdefault((target_region, source_region.shape), source_region)
    if plan.extent <= source.nbytes:
        source_region = plan
    real(target, target_region, source, source_region, stream)


@breaks("import_host", "test_calls_with_one_difference", base=Shared)
def imports_by_address(fake, real, device_id, address, nbytes, readonly, stream):
    """An import of an address that is imported already is as long as the first one."""
    there = vars(fake).setdefault("by_address", WeakValueDictionary())
    known = there.get((device_id, address))
    if known is not None:
        return real(device_id, address, known.nbytes, readonly, stream)
    there[device_id, address] = made = real(device_id, address, nbytes, readonly, stream)
    return made


@breaks("import_host", "test_calls_with_one_difference", base=Shared)
def imports_inside_of_another(fake, real, device_id, address, nbytes, readonly, stream):
    """Memory inside of an import is that import, and begins where it does."""
    there = vars(fake).setdefault("by_address", WeakValueDictionary())
    for begin, known in list(there.items()):
        if begin < address and address + nbytes <= begin + known.nbytes:
            return real(device_id, begin, nbytes, readonly, stream)
    there[address] = made = real(device_id, address, nbytes, readonly, stream)
    return made


@breaks("import_host", "test_calls_with_one_difference", base=Shared)
def read_only_for_ever(fake, real, device_id, address, nbytes, readonly, stream):
    """An address that was imported read-only stays so."""
    addresses = kept_by(fake, "addresses")
    readonly = addresses[address] = readonly or addresses.get(address, False)
    return real(device_id, address, nbytes, readonly, stream)


@breaks("bytes_of", "test_calls_with_one_difference")
def refusal_spoils_the_next_upload(fake, real, span, write=False):
    """After a refusal the next write is lost."""
    broken = kept_by(fake, "broken")
    try:
        content = real(span, write=write)
    except ExchangeError:
        broken[0] = True
        raise
    return memoryview(bytearray(content)) if write and broken.pop(0, False) else content


@breaks("wait", "test_calls_with_one_difference", Late)
def own_streams_wait_for_nobody(fake, real, device_id, stream, on):
    """Streams that users make are not ordered with each other, but with the default one."""
    fake.stream(device_id, stream), fake.stream(device_id, on)
    if 0 in (stream, on):
        real(device_id, stream, on)


# Many at once


@found_by("test_each_wait_is_for_its_work")
class RingOfEvents(Late):
    """64 events are used in turn, also those that a stream still waits for."""

    def __init__(self):
        super().__init__()
        self.ring, self.turn = [None] * 64, itertools.count()

    def wait(self, device_id, stream, on):
        later, earlier = self.stream(device_id, stream), self.stream(device_id, on)
        if later is earlier:
            return
        slot = next(self.turn) % len(self.ring)
        if self.ring[slot] is not None:
            self.ring[slot].set()
        done = self.ring[slot] = Done()
        earlier.enqueue(done.set)
        later.enqueue(done.wait)


class Done:
    """Set once, and waited for."""

    def __init__(self):
        self.set_again = threading.Event()
        self.set, self.wait = self.set_again.set, self.set_again.wait


@found_by("test_each_wait_is_for_its_work")
class FillsAreNoWork(Late):
    """A wait is left out where nothing was copied since the last one: fills are not counted."""

    def __init__(self):
        super().__init__()
        self.moved, self.waited = {}, {}

    def move(self, stream, into, source):
        self.moved[stream.handle] = self.moved.get(stream.handle, 0) + 1
        super().move(stream, into, source)

    def fill(self, target, value, stream):
        into = self.bytes_of(target, write=True)
        content = bytes([value]) * target.nbytes
        self.stream(target.device_id, stream).enqueue(lambda: into.__setitem__(np.s_[:], content))

    def wait(self, device_id, stream, on):
        moved = self.moved.get(self.stream(device_id, on).handle)
        if moved is None or self.waited.get((stream, on)) != moved:
            super().wait(device_id, stream, on)
        self.waited[stream, on] = moved


@found_by("test_much_work_at_once")
class QueueIsFull(Late):
    """A queue holds 1,024 pieces of work; what comes then is done at once."""

    room = 1024

    def __init__(self):
        super().__init__()
        self.queued = {}

    def move(self, stream, into, source):
        queued = self.queued.setdefault(stream.handle, deque())
        if len(queued) >= self.room:
            into[:] = source
            return
        queued.append(None)
        stream.enqueue(lambda: (into.__setitem__(np.s_[:], source), queued.pop()))


@breaks("stream", "test_many_streams_at_once", Late)
def six_bits_of_a_stream(fake, real, device_id, handle):
    """Streams are looked up by six bits of their handle."""
    slots = vars(fake).setdefault("slots", WeakValueDictionary())
    stream = real(device_id, handle)
    return slots.setdefault((device_id, handle & 63), stream) if handle else stream


@breaks("enter", "test_many_memories_at_once")
def a_thousand_memories(fake, real, memory):
    """The table has room for 1,000; one more is in the place of another."""
    made = real(memory)
    if len(fake.table) > 1000:
        other = min(
            (each for each in fake.live() if each.nbytes == made.nbytes), key=lambda it: it.data
        )
        made.content = other.content
    return made


@breaks("host_view", "test_many_host_views_at_once", base=Shared)
def few_windows(fake, real, span, writable, stream):
    """There are 32 windows for host views; one more is a copy."""
    return view_of(fake, span, stream) if len(fake.views) > 32 else real(span, writable, stream)


@breaks("import_host", "test_many_imports_at_once", base=Shared)
def few_imports(fake, real, *given):
    """The 33rd import is a copy of the memory."""
    alive = vars(fake).setdefault("alive", WeakValueDictionary())
    made = real(*given)
    if len(alive) > 32:
        memory = recall(fake.table, made.data)
        memory.content = memoryview(bytearray(memory.content))
    alive[made.data] = made
    return made


# Where something ends, and what is kept then


class EndlessStream(Stream):
    """Its thread does not end with it."""

    def __del__(self):
        """Nothing."""


@found_by("test_streams_leak_nothing")
class ThreadsOfStreamsStay(Late):
    """The thread of a stream does not end with it."""

    new_stream = EndlessStream


STREAMS = threading.Lock()


class LockedStream(Stream):
    """A lock is taken to queue work, and by the end of the stream."""

    def enqueue(self, work):
        with STREAMS:
            super().enqueue(work)

    def __del__(self):
        with STREAMS:
            super().__del__()


@found_by("test_free_in_a_finalizer")
class EndOfAStreamLocks(Late):
    """The same: a finalizer may end a stream in the middle of a call for another."""

    patience, hangs = 4, True
    new_stream = LockedStream


@found_by("test_many_allocations_leak_nothing")
class FreedByTheDefaultStream(LateEnds):
    """Freed memory is back once somebody waits for the default stream, whom nobody has to."""

    def __init__(self):
        super().__init__()
        self.dead = [], []

    def at_end(self, memory):
        if os.getpid() == PROCESS:
            self.dead[memory.device_id].append(memory.content)

    def live_allocations(self):
        return super().live_allocations() + sum(map(len, self.dead))

    def synchronize(self, device_id, stream):
        super().synchronize(device_id, stream)
        if not stream:
            self.dead[device_id].clear()


@breaks("finish", "test_end_of_an_import_waits", LateShared)
def waits_in_the_main_thread(fake, real, device_id, handle):
    """The end of an import waits in the main thread only."""
    if threading.current_thread() is threading.main_thread():
        real(device_id, handle)


@breaks("synchronize", "test_errors_are_let_go", Late)
def errors_of_work_are_kept(fake, real, device_id, stream):
    """A stream keeps the last error of its work, which was raised."""
    try:
        real(device_id, stream)
    except DeviceError as exc:
        kept_by(fake, "errors")[stream] = exc
        raise


@breaks("normalize_stream", "test_errors_are_let_go")
def refused_stream_is_kept(fake, real, device_id, stream):
    """The last refusal of a number that is no stream is kept."""
    try:
        return real(device_id, stream)
    except ValueError as exc:
        fake.refused = exc
        raise


@breaks("allocate", "test_errors_are_let_go")
def no_room_is_kept(fake, real, *given):
    """The last error for lack of memory is kept."""
    try:
        return real(*given)
    except DeviceMemoryError as exc:
        fake.no_room = exc
        raise


@found_by("test_lost_device")
class SecondLoss(Sound):
    """A device that was opened anew is not lost a second time."""

    def lose(self, device_id):
        if device_id not in self.lost_before:
            super().lose(device_id)


@breaks("fill", "test_lost_device")
def no_fills_after_a_loss(fake, real, target, value, stream):
    """A device that was opened anew does no fills."""
    fake.bytes_of(target, write=True)
    if not fake.lost_before:
        real(target, value, stream)


# Processes


@found_by("test_exit_status")
class ExitsWithZero(Sound):
    """At exit the process is ended before its driver can crash, with status 0."""

    ends = True

    def __init__(self):
        super().__init__()
        atexit.register(lambda: (sys.stdout.flush(), sys.stderr.flush(), os._exit(0)))


@found_by("test_devices_are_the_same_in_each_process")
class UuidOfTheProcess(Sound):
    """The UUID is a new one in each process."""

    uuids = tuple(f"{random.SystemRandom().getrandbits(128):032x}" for _ in range(2))

    def device_info(self, device_id):
        return {**super().device_info(device_id), "uuid": self.uuids[device_id]}


@found_by("test_first_use_in_threads")
class ContextsOfTheFirst(Sound):
    """What a device needs is made when it is first used, without a lock."""

    def __init__(self):
        super().__init__()
        self.contexts, self.made = {}, itertools.count()

    def allocate(self, device_id, nbytes, alignment, stream, content=None):
        if device_id not in self.contexts:
            time.sleep((100 + 10 * next(self.made)) * DRIVER_TIME)
            self.contexts[device_id] = object()
        made = super().allocate(device_id, nbytes, alignment, stream)
        made.owner = self.contexts[device_id]
        return made

    def bytes_of(self, span, write=False):
        content, context = super().bytes_of(span, write), self.contexts.get(span.device_id)
        if recall(self.table, span.data).owner is not context:
            raise ExchangeError(f"{span.data:#x} is memory of another context")
        return content


KINDS = {}
"""What a backend looks up, and fills when it is first asked."""


@breaks("copy_strided", "test_first_call_of_each_member_in_threads")
def table_is_seen_half_built(fake, real, *given):
    """A table of the module is filled at the first call, where other threads see it."""
    if not KINDS:
        for each in range(8):
            KINDS[each] = each
            time.sleep(10 * DRIVER_TIME)  # on a busy machine threads come within milliseconds
    KINDS[7]
    real(*given)


def changes(name, doc, change):
    """A fault: something of the whole process is changed when the device is opened."""

    class Changes(Sound):
        def __init__(self):
            super().__init__()
            if IN_CHILD:
                change()

    Changes.__name__, Changes.__doc__ = name, doc
    found_by("test_the_process_is_as_before")(Changes)


changes(
    "SetsTheStartMethod",
    "Processes are started in another way.",
    lambda: multiprocessing.set_start_method("spawn", force=True),
)
changes("SetsTheUmask", "Files that the user makes are private.", lambda: os.umask(0o77))
changes(
    "SetsDlopenFlags",
    "Libraries that are opened later see the symbols of all.",
    lambda: sys.setdlopenflags(sys.getdlopenflags() | os.RTLD_GLOBAL),
)
changes(
    "BlocksASignal",
    "A signal does not arrive.",
    lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1}),
)
changes(
    "HandlesASignalInC",
    "A handler of C is in the place of the user's.",
    lambda: faulthandler.register(signal.SIGUSR2),
)


# One expression each

ROWS = [
    # Bytes
    ("downloads_the_beginning", "copy_to_host", "test_random_operations", Sound,
     "Bytes to the host that begin inside of a memory come from its beginning.",
     lambda fake, real, source, into, stream: real(cut(fake, source, 0), into, stream)),
    ("upload_forgets_offset", "copy_from_host", "test_copy_into_a_view", Sound,
     "Bytes from the host always go to the beginning.",
     lambda fake, real, target, source, stream: real(cut(fake, target, 0), source, stream)),
    ("download_forgets_offset", "copy_to_host", "test_strided_both_ways", Sound,
     "Bytes to the host always come from the beginning.",
     lambda fake, real, source, into, stream: real(cut(fake, source, 0), into, stream)),
    ("fill_forgets_offset", "fill", "test_fill", Sound, "A fill always begins at the beginning.",
     lambda fake, real, target, value, stream: real(cut(fake, target, 0), value, stream)),
    ("fill_ignores_value", "fill", "test_fill", Sound, "Memory is always filled with zeros.",
     lambda fake, real, target, value, stream: real(target, 0, stream)),
    ("fills_with_ones", "fill", "test_zeros_and_empty", Sound, "0 is taken for no value.",
     lambda fake, real, target, value, stream: real(target, value or 1, stream)),
    # Memory, and what a backend must refuse
    ("no_device", "device_count", "test_contract", Sound,
     "It should have said BackendUnavailable.", lambda fake, real: 0),
    ("nameless", "device_info", "test_device_info_has_a_name", Sound, "A device has no name.",
     lambda fake, real, device_id: {"memory": 1}),
    ("finds_the_first", "find_device", "test_devices_are_found_by_name", Sound,
     "Every name is that of the first device.", lambda fake, real, name: 0),
    ("finds_by_a_letter", "find_device", "test_devices_are_found_by_name", Sound,
     "A device is found by any part of its name.",
     lambda fake, real, name: min(
         (index for index, called in enumerate(("zero", "one")) if name in called), default=None
     ) if name in "zero one" else real(name)),
    ("kind_of_its_own", "device_info", "test_device_info_has_a_name", Sound,
     "The kind of device is a word that nobody else knows.",
     lambda fake, real, device_id: {**real(device_id), "kind": "npu"}),
    ("uuid_of_its_own", "device_info", "test_device_info_has_a_name", Sound,
     "The UUID has the driver's form.",
     lambda fake, real, device_id: {**real(device_id), "uuid": f"device {device_id}"}),
    ("one_uuid_for_both", "device_info", "test_uuids_are_the_devices_own", Sound,
     "The UUID is the driver's, and not the device's.",
     lambda fake, real, device_id: {**real(device_id), "uuid": "5afe" * 8}),
    ("nothing_is_counted", "live_allocations", "test_live_allocations_are_counted", Sound,
     "The question of the kit has a fixed answer.", lambda fake, real: 0),
    ("takes_every_device", "allocate", "test_unknown_device_is_refused", Sound,
     "The number of a device that does not exist wraps around.",
     lambda fake, real, device_id, *given: real(device_id % 2, *given)),
    ("current_stream_of_no_device", "current_stream", "test_unknown_device_is_refused",
     Sound, "`current_stream` takes the number of every device.",
     lambda fake, real, device_id: real(device_id) if 0 <= device_id < 2 else 0),
    ("streams_of_no_device", "normalize_stream", "test_unknown_device_is_refused", Sound,
     "None is the default stream of every device.",
     lambda fake, real, device_id, stream: 0 if stream is None else real(device_id, stream)),
    ("one_memory_for_all", "allocate", "test_live_buffers_do_not_alias", Sound,
     "Every allocation is the same memory.", lambda fake, real, *given: of_all(fake, real(*given))),
    # Streams
    ("synchronize_does_nothing", "synchronize", "test_synchronize_waits_for_long_work", Late,
     "`synchronize` is ``pass``.",
     lambda fake, real, device_id, stream: fake.stream(device_id, stream)),
    ("synchronize_returns_early", "synchronize", "test_the_source_may_change_or_go_at_once", Late,
     "Memory of the host is still read.",
     lambda fake, real, device_id, stream: fake.stream(device_id, stream)),
    ("current_stream_of_any_device", "current_stream", "test_current_stream_is_the_devices_own",
     Late, "The thread's current stream, of whatever device.",
     lambda fake, real, device_id: real(0) or real(1)),
    ("one_current_stream", "current_stream", "test_current_stream_is_the_devices_own",
     Late, "A stream that is current on another device ends that of the first one.",
     lambda fake, real, device_id: 0 if not device_id and real(1) else real(device_id)),
    ("current_stream_of_device_0", "current_stream", "test_current_stream_is_a_stream", Sound,
     "The current stream of each device is that of the first.",
     lambda fake, real, device_id: fake.default_streams[0].handle),
    ("unknown_handles_are_0", "stream", "test_unknown_streams_do_no_work", Sound,
     "A handle that is not known is the default stream where work is queued.",
     lambda fake, real, device_id, handle: real(device_id, handle if handle in by_handle else 0)),
    ("texts_are_streams", "normalize_stream", "test_consumers_streams", Sound,
     "A number in a text is one.",
     lambda fake, real, device_id, stream: real(device_id, None if stream == "0" else stream)),
    ("minus_one_is_a_stream", "normalize_stream", "test_minus_one_is_no_order", Sound,
     "-1 is the default stream.",
     lambda fake, real, device_id, stream: 0 if stream == -1 else real(device_id, stream)),
    ("none_is_no_stream", "normalize_stream", "test_none_is_a_stream", Sound, "None is no order.",
     lambda fake, real, device_id, stream: -1 if stream is None else real(device_id, stream)),
    ("every_stream_will_do", "normalize_stream", "test_forbidden_streams", Addresses,
     "The numbers that the standard forbids are the default stream.",
     lambda fake, real, device_id, stream: -1 if stream == -1 else 0),
    ("behind_stream_0", "behind", "test_free_waits_for_queued_downloads", LatePooled,
     "Memory is used again behind the work on stream 0, and not behind that on its own.",
     lambda fake, real, memory: 0),
    # Native objects and foreign handles
    ("nothing_is_flat", "to_native", "test_native_of_nothing", Sound,
     "An array without elements loses its shape.",
     lambda fake, real, array: real(array._replace(shape=(0,)) if 0 in array.shape else array)),
    ("nothing_is_none", "to_native", "test_native_of_nothing", Sound,
     "There is no array without elements, and no error says so.",
     lambda fake, real, array: None if 0 in array.shape else real(array)),
    ("native_for_everything", "from_native", "test_strangers_are_not_native", Sound,
     "Every object is one of the ecosystem.", lambda fake, real, obj: obj),
    ("takes_anything", "import_data", "test_strangers_handles_are_refused", Sound,
     "Every handle counts as its own.",
     lambda fake, real, device_id, data, module: (device_id, data)),
    ("takes_strangers_tensors", "import_data", "test_strangers_tensors_are_refused", Sound,
     "The same, as DLPack's consumers see it.",
     lambda fake, real, device_id, data, module: (device_id, data)),
    # Memory that host and device share
    ("view_is_a_copy", "host_view", "test_host_views", Shared,
     "The host writes to a copy of the memory.",
     lambda fake, real, span, writable, stream: view_of(fake, span, stream)),
    ("view_of_a_tensor_is_a_copy", "host_view", "test_host_view_of_a_tensor", Shared,
     "The same, as users see it.",
     lambda fake, real, span, writable, stream: view_of(fake, span, stream)),
    ("view_forgets_offset", "host_view", "test_host_views", Shared,
     "The view begins at the beginning of the memory.",
     lambda fake, real, span, writable, stream: real(cut(fake, span, 0), writable, stream)),
    ("view_waits_for_default_stream", "host_view", "test_host_view_waits_for_queued_work",
     LateShared, "A host view waits for the work on the default stream, whatever the stream.",
     lambda fake, real, span, writable, stream: real(span, writable, 0)),
    ("view_despite_refusal", "host_view", "test_host_view_refusal", Sound,
     "What is refused is done.",
     lambda fake, real, span, writable, stream: PlainAllocation(0, span.nbytes)),
    # Memory made with its content, kept memory, memory for other processes
    ("trim_does_nothing", "trim", "test_trim_gives_memory_back", Pooled, "`trim` is ``pass``.",
     lambda fake, real, device_id: fake.check_device(device_id)),
    ("trim_forgets", "trim", "test_trim_keeps_what_is_in_use", Pooled, "The table is emptied.",
     lambda fake, real, device_id: fake.table.clear()),
    ("exports_nothing", "memory_export_refusal", "test_exportable_memory_needs_the_rest", Exporting,
     "What was made for others is not given to them.",
     lambda fake, real, device_id, data: "not today" if data else ""),
    ("imports_on_the_first_device", "import_memory", "test_exported_memory_is_one_memory",
     Exporting, "What is opened is always memory of device 0.",
     lambda fake, real, device_id, memory, stream: real(0, memory, stream)),
    # A lost device
    ("plans_ask_the_device", "host_view_refusal", "test_lost_device", Shared,
     "The question looks the memory up as its use does, and raises where the device is lost.",
     lambda fake, real, device_id, data: fake.bytes_of(Span(device_id, data, 0, 1)) and real(
         device_id, data)),
    ("lost_devices_are_not_counted", "device_count", "test_lost_device", Sound,
     "There are fewer devices once one is lost.", lambda fake, real: real() - len(fake.lost)),
]  # fmt: skip
"""Name, member, test, base, what its author did, and what stands for the member."""

for row_name, row_member, row_test, row_base, row_doc, instead in ROWS:
    instead.__name__, instead.__doc__ = row_name, row_doc
    breaks(row_member, row_test, row_base)(instead)
