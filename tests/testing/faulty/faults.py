"""The simulated device of dlbridge-fake, broken in one way by each class.

The docstring of a class says what its author did wrong.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import threading
import time
from pathlib import Path

import numpy as np
from dlbridge_fake import Array, Fake, Stream

from dlbridge.errors import DeviceError, DeviceLost, DeviceMemoryError, ExchangeError
from dlbridge.protocol import Span

IN_CHILD = "DLBRIDGE_TEST_CHILD" in os.environ
"""Whether the kit has started this process for one scene."""


class Sound(Fake):
    """No fault."""

    late = False  # whether work is done in the streams' threads, after the call
    both = False  # whether host and device share memory

    def __init__(self):
        super().__init__()
        self.shared = self.shared or self.both


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


class RefusesOverlappingRuns(Sound):
    """No fault: the driver's rectangles need strides as long as what they step over."""

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


class RefusesOverlaps(Sound):
    """No fault: the driver does not copy within overlapping memory, as the contract allows."""

    def copy(self, target, source, stream):
        if target[:2] == source[:2] and abs(target.offset - source.offset) < target.nbytes:
            raise DeviceError("the driver refuses overlapping regions")
        super().copy(target, source, stream)


# Bytes


class HeadAndTailLost(Sound):
    """The driver writes whole words, and the rest of the first and the last is not kept."""

    def copy_from_host(self, target, source, stream):
        nbytes = len(self.table[target.data][1])
        start, end = target.offset & ~3, min((target.offset + target.nbytes + 3) & ~3, nbytes)
        words = bytearray(end - start)
        words[target.offset - start : target.offset - start + target.nbytes] = source
        whole = Span(target.device_id, target.data, start, end - start)
        super().copy_from_host(whole, memoryview(words), stream)


class UnlockedReadModifyWrite(Sound):
    """The driver writes whole words; their other bytes are read before, without a lock."""

    def copy_from_host(self, target, source, stream):
        nbytes = len(self.table[target.data][1])
        start, end = target.offset & ~3, min((target.offset + target.nbytes + 3) & ~3, nbytes)
        whole = Span(target.device_id, target.data, max(start, 0), end - max(start, 0))
        words = bytearray(max(whole.nbytes, 0))
        super().copy_to_host(target, memoryview(bytearray(target.nbytes)), stream)  # checks it
        super().copy_to_host(whole, memoryview(words), stream)
        time.sleep(0.0002)  # as long as the call of a driver: other threads run
        words[target.offset - start : target.offset - start + target.nbytes] = source
        super().copy_from_host(whole, memoryview(words), stream)


class UploadForgetsOffset(Sound):
    """Bytes from the host always go to the beginning."""

    def copy_from_host(self, target, source, stream):
        self.bytes_of(target)
        super().copy_from_host(target._replace(offset=0), source, stream)


class DownloadForgetsOffset(Sound):
    """Bytes to the host always come from the beginning."""

    def copy_to_host(self, source, into, stream):
        self.bytes_of(source)
        super().copy_to_host(source._replace(offset=0), into, stream)


def near(fake, span):
    """The span with an offset that fits into 16 bits."""
    fake.bytes_of(span)
    return span._replace(offset=span.offset & 0xFFFF)


class UploadOffsetOf16Bits(Sound):
    """The offset of an upload is cut to 16 bits."""

    def copy_from_host(self, target, source, stream):
        super().copy_from_host(near(self, target), source, stream)


class DownloadOffsetOf16Bits(Sound):
    """The offset of a download is cut to 16 bits."""

    def copy_to_host(self, source, into, stream):
        super().copy_to_host(near(self, source), into, stream)


class CopyOffsetOf16Bits(Sound):
    """The offsets of a copy are cut to 16 bits."""

    def copy(self, target, source, stream):
        super().copy(near(self, target), near(self, source), stream)


class FillOffsetOf16Bits(Sound):
    """The offset of a fill is cut to 16 bits."""

    def fill(self, target, value, stream):
        super().fill(near(self, target), value, stream)


class StridedOffsetOf16Bits(Sound):
    """The offsets of a strided copy are cut to 16 bits."""

    def copy_strided(self, target, target_region, source, source_region, stream):
        into, taken = near(self, target), near(self, source)
        super().copy_strided(into, target_region, taken, source_region, stream)


class HostViewOffsetOf16Bits(Shared):
    """The offset of a host view is cut to 16 bits."""

    def host_view(self, span, writable, stream):
        return super().host_view(near(self, span), writable, stream)


class OffsetsOf16Bits(Sound):
    """All offsets are cut to 16 bits, so that what was written is read again."""

    def bytes_of(self, span, write=False):
        super().bytes_of(span, write)
        return super().bytes_of(span._replace(offset=span.offset & 0xFFFF), write)


def cut(fake, span, bits):
    """The span with an offset that fits into so many bits."""
    fake.bytes_of(span)
    return span._replace(offset=span.offset & (1 << bits) - 1)


class UploadOffsetOf20Bits(Sound):
    """The offset of an upload is cut to 20 bits."""

    def copy_from_host(self, target, source, stream):
        super().copy_from_host(cut(self, target, 20), source, stream)


class DownloadOffsetOf24Bits(Sound):
    """The offset of a download is cut to 24 bits."""

    def copy_to_host(self, source, into, stream):
        super().copy_to_host(cut(self, source, 24), into, stream)


class CopyOffsetOf24Bits(Sound):
    """The offset of a copy's source is cut to 24 bits."""

    def copy(self, target, source, stream):
        super().copy(target, cut(self, source, 24), stream)


class FillOffsetOf20Bits(Sound):
    """The offset of a fill is cut to 20 bits."""

    def fill(self, target, value, stream):
        super().fill(cut(self, target, 20), value, stream)


class StridedOffsetOf24Bits(Sound):
    """The offset of a strided copy's source is cut to 24 bits."""

    def copy_strided(self, target, target_region, source, source_region, stream):
        taken = cut(self, source, 24)
        super().copy_strided(target, target_region, taken, source_region, stream)


class OffsetsOf24Bits(Sound):
    """All offsets are cut to 24 bits, so that what was written is read again."""

    def bytes_of(self, span, write=False):
        super().bytes_of(span, write)
        return super().bytes_of(span._replace(offset=span.offset & 0xFFFFFF), write)


class FillForgetsOffset(Sound):
    """A fill always begins at the beginning."""

    def fill(self, target, value, stream):
        self.bytes_of(target)
        super().fill(target._replace(offset=0), value, stream)


class CopySwapsOffsets(Sound):
    """The offsets of target and source are taken for each other."""

    def copy(self, target, source, stream):
        to, at = target.offset, source.offset
        super().copy(target._replace(offset=at), source._replace(offset=to), stream)


class PeerCopyForgetsOffset(Sound):
    """A copy from the other device begins at the beginning of its memory."""

    def copy(self, target, source, stream):
        if target.device_id != source.device_id:
            source = source._replace(offset=0)
        super().copy(target, source, stream)


class PeerCopyDoesNothing(Sound):
    """A copy from the other device is forgotten."""

    def copy(self, target, source, stream):
        if target.device_id == source.device_id:
            super().copy(target, source, stream)


CHUNK = 1 << 16


class SecondChunkIsTheFirst(Sound):
    """Larger uploads are cut into chunks, and the second repeats the first."""

    def copy_from_host(self, target, source, stream):
        for number, start in enumerate(range(0, target.nbytes, CHUNK)):
            piece = source[start : start + CHUNK]
            if number == 1:
                piece = source[: len(piece)]
            part = target._replace(offset=target.offset + start, nbytes=len(piece))
            super().copy_from_host(part, piece, stream)


class LastChunkIsRounded(Sound):
    """Larger downloads are cut into chunks, and the last is rounded down to whole words."""

    def copy_to_host(self, source, into, stream):
        if source.nbytes <= CHUNK:
            return super().copy_to_host(source, into, stream)
        self.bytes_of(source)
        for start in range(0, source.nbytes, CHUNK):
            nbytes = min(CHUNK, source.nbytes - start) & ~3
            part = source._replace(offset=source.offset + start, nbytes=nbytes)
            super().copy_to_host(part, into[start : start + nbytes], stream)
        return None


class FillStopsAfterAChunk(Sound):
    """A larger fill is cut into chunks, and only the first is filled."""

    def fill(self, target, value, stream):
        self.bytes_of(target)
        super().fill(target._replace(nbytes=min(target.nbytes, 2 << 20)), value, stream)


class SecondChunkFromAPeerIsTheFirst(Sound):
    """Larger copies from the other device are cut into chunks, each read from the beginning."""

    def copy(self, target, source, stream):
        if target.device_id == source.device_id:
            return super().copy(target, source, stream)
        self.bytes_of(target), self.bytes_of(source)
        for start in range(0, target.nbytes, CHUNK):
            nbytes = min(CHUNK, target.nbytes - start)
            to = target._replace(offset=target.offset + start, nbytes=nbytes)
            super().copy(to, source._replace(nbytes=nbytes), stream)
        return None


class DownloadRoundsUp(Sound):
    """Bytes of the host behind the target are overwritten, up to the next whole word."""

    def copy_to_host(self, source, into, stream):
        super().copy_to_host(source, into, stream)
        behind = np.frombuffer(into, "u1").ctypes.data + len(into)
        ctypes.memset(behind, 0xCC, -len(into) % 4)


class UploadSpoilsItsSource(Sound):
    """The bytes are swapped in place for the driver, and not swapped back."""

    def copy_from_host(self, target, source, stream):
        super().copy_from_host(target, source, stream)
        if not source.readonly:
            source[:] = bytes(source)[::-1]


class ChunksOfCopiesOverlap(Sound):
    """Larger copies on the device are cut into chunks, each placed one byte too early."""

    def copy(self, target, source, stream):
        self.bytes_of(target), self.bytes_of(source)
        for number, start in enumerate(range(0, target.nbytes, CHUNK)):
            nbytes = min(CHUNK, target.nbytes - start)
            to = target._replace(offset=target.offset + start - (number > 0), nbytes=nbytes)
            at = source._replace(offset=source.offset + start, nbytes=nbytes)
            super().copy(to, at, stream)


class FillIgnoresValue(Sound):
    """Memory is always filled with zeros."""

    def fill(self, target, value, stream):
        super().fill(target, 0, stream)


class FillsWholeWords(Sound):
    """A fill is rounded up to whole words."""

    def fill(self, target, value, stream):
        self.bytes_of(target)
        size = len(self.table[target.data][1])
        start, end = target.offset & ~3, min((target.offset + target.nbytes + 3) & ~3, size)
        super().fill(target._replace(offset=start, nbytes=end - start), value, stream)


class SameBufferCopyRefused(Sound):
    """The driver does not copy inside one buffer (WebGPU), and is asked to all the same."""

    def copy(self, target, source, stream):
        if target.data == source.data:
            raise DeviceError("the driver refuses to copy from a buffer to itself")
        super().copy(target, source, stream)


class StridesForgotten(Sound):
    """A strided download uses the innermost stride of the host in every dimension."""

    def copy_strided_to_host(self, source, source_region, into, into_region, stream):
        innermost = into_region.strides[-1:] * len(into_region.strides)
        into_region = into_region._replace(strides=innermost)
        super().copy_strided_to_host(source, source_region, into, into_region, stream)


class StridedOffsetForgotten(Sound):
    """A strided upload begins at the beginning."""

    def copy_strided_from_host(self, target, target_region, source, source_region, stream):
        self.bytes_of(target)
        target = target._replace(offset=0)
        super().copy_strided_from_host(target, target_region, source, source_region, stream)


# Memory, and what a backend must refuse


class NoBounds(Sound):
    """The driver copies what fits, and nobody looks at the sizes before."""

    def bytes_of(self, span, write=False):
        _, content = self.table[span.data]
        return content[max(span.offset, 0) :][: span.nbytes]

    def move(self, stream, into, source):
        nbytes = min(len(into), len(source))
        super().move(stream, into[:nbytes], source[:nbytes])


class NeedsMore(Sound):
    """A member needs a parameter that dlbridge does not give."""

    def import_data(self, device_id, data, module, owner):
        return super().import_data(device_id, data, module)


class NoBoundsInFill(Sound):
    """Copies look at the sizes, and fills do not."""

    def fill(self, target, value, stream):
        _, content = self.table[target.data]
        region = content[max(target.offset, 0) :][: target.nbytes]
        self.move(self.stream(target.device_id, stream), region, bytes([value]) * len(region))


class TakesEveryDevice(Sound):
    """The number of a device that does not exist wraps around."""

    def allocate(self, device_id, nbytes, alignment, stream):
        return super().allocate(device_id % 2, nbytes, alignment, stream)


class CurrentStreamOfNoDevice(Sound):
    """`current_stream` takes the number of every device."""

    def current_stream(self, device_id):
        return super().current_stream(device_id) if 0 <= device_id < 2 else 0


class SynchronizesNoDevice(Sound):
    """There is nothing to wait for on a device that does not exist."""

    def synchronize(self, device_id, stream):
        if 0 <= device_id < 2:
            super().synchronize(device_id, stream)


class WaitsOnNoDevice(Sound):
    """The same for a stream that waits for another."""

    def wait(self, device_id, stream, on):
        if stream != on:
            super().wait(device_id, stream, on)


class StreamsOfNoDevice(Sound):
    """None is the default stream of every device."""

    def normalize_stream(self, device_id, stream):
        return 0 if stream is None else super().normalize_stream(device_id, stream)


class CopiesOnNoDeviceFail(Sound):
    """The driver reports an error for a device that does not exist."""

    def bytes_of(self, span, write=False):
        if not 0 <= span.device_id < 2:
            raise DeviceError("driver: status -33")
        return super().bytes_of(span, write)


class UnmappedErrors(Sound):
    """What the backend's own table raises leaves the backend as it is."""

    def bytes_of(self, span, write=False):
        try:
            return super().bytes_of(span, write)
        except ExchangeError as exc:
            raise IndexError(str(exc)) from None


class UnmappedLackOfMemory(Sound):
    """The driver's error for too large a request leaves the backend as it is."""

    def allocate(self, device_id, nbytes, alignment, stream):
        if nbytes > 1 << 40:
            raise RuntimeError(f"driver: status -4, {nbytes} bytes")
        return super().allocate(device_id, nbytes, alignment, stream)


class OneMemoryForAll(Sound):
    """Every allocation is the same memory."""

    memory = memoryview(bytearray(1 << 24))

    def allocate(self, device_id, nbytes, alignment, stream):
        data = super().allocate(device_id, nbytes, alignment, stream)
        self.table[data] = device_id, self.memory[:nbytes]
        return data


class FreeLeaks(Sound):
    """`free` does nothing."""

    def free(self, device_id, data, stream):
        pass


class FreeLeaksALittle(Sound):
    """`free` forgets a kilobyte of its own each time, which nobody counts."""

    def __init__(self):
        super().__init__()
        self.forgotten = []

    def free(self, device_id, data, stream):
        self.forgotten.append(bytearray(1024))
        super().free(device_id, data, stream)


class FreeLeaksInOtherThreads(Sound):
    """`free` does nothing in any thread but the main one."""

    def free(self, device_id, data, stream):
        if threading.current_thread() is threading.main_thread():
            super().free(device_id, data, stream)


class SourcesAreKept(Sound):
    """Each uploaded buffer is kept for ever."""

    def __init__(self):
        super().__init__()
        self.sources = []

    def copy_from_host(self, target, source, stream):
        self.sources.append(source)
        super().copy_from_host(target, source, stream)


class TargetsAreKept(SourcesAreKept):
    """The same for downloads."""

    copy_from_host = Sound.copy_from_host

    def copy_to_host(self, source, into, stream):
        self.sources.append(into)
        super().copy_to_host(source, into, stream)


class FreeOfUnknownFreesTheLast(Sound):
    """`free` of what is not in the table takes the last entry."""

    def free(self, device_id, data, stream):
        if self.table.pop(data, None) is None and self.table:
            self.table.popitem()


class FreeOfFreedFreesItsNeighbour(Sound):
    """`free` of what is not in the table takes the next handle."""

    def free(self, device_id, data, stream):
        if self.table.pop(data, None) is None:
            self.table.pop(data + 2, None)


class FreeOfUnknownIsUnmapped(Sound):
    """`free` of what is not in the table raises what the table raises."""

    def free(self, device_id, data, stream):
        del self.table[data]


class FreedTwiceIsGivenTwice(Sound):
    """Freed memory waits for its next owner, and twice if it is freed twice."""

    def __init__(self):
        super().__init__()
        self.freed, self.sizes = [], {}

    def allocate(self, device_id, nbytes, alignment, stream):
        data = super().allocate(device_id, nbytes, alignment, stream)
        entry = device_id, nbytes
        for old, content in self.freed:
            if old == entry:
                self.freed.remove((old, content))
                self.table[data] = device_id, content
                break
        self.sizes[data] = entry, self.table[data][1]
        return data

    def free(self, device_id, data, stream):
        self.table.pop(data, None)
        if data in self.sizes:
            self.freed.append(self.sizes[data])


class FilesLeak(Sound):
    """Each tenth allocation opens a file that is not closed before the backend goes."""

    def __init__(self):
        super().__init__()
        self.count, self.files = itertools.count(), []

    def allocate(self, device_id, nbytes, alignment, stream):
        if next(self.count) % 10 == 0 and len(self.files) < 200:
            self.files.append(Path(os.devnull).open())  # noqa: SIM115 - the fault
        return super().allocate(device_id, nbytes, alignment, stream)


class CopyLeaks(Sound):
    """Each copy on the device forgets some bytes."""

    def __init__(self):
        super().__init__()
        self.forgotten = []

    def copy(self, target, source, stream):
        self.forgotten.append(bytearray(4096))
        super().copy(target, source, stream)


class FillLeaks(CopyLeaks):
    """Each fill forgets some bytes."""

    copy = Sound.copy

    def fill(self, target, value, stream):
        self.forgotten.append(bytearray(4096))
        super().fill(target, value, stream)


class WaitLeaks(CopyLeaks):
    """Each wait forgets its event."""

    copy = Sound.copy

    def wait(self, device_id, stream, on):
        self.forgotten.append(bytearray(4096))
        super().wait(device_id, stream, on)


class RefusedCopyLeaks(Sound):
    """A refused copy forgets its staging buffer."""

    def __init__(self):
        super().__init__()
        self.forgotten = []

    def bytes_of(self, span, write=False):
        try:
            return super().bytes_of(span, write)
        except ExchangeError:
            self.forgotten.append(bytearray(4096))
            raise


class RefusedCopyLeaksAnAllocation(Sound):
    """A refused copy forgets its staging buffer, which is counted."""

    def bytes_of(self, span, write=False):
        try:
            return super().bytes_of(span, write)
        except ExchangeError:
            self.table[self.new_handle()] = 0, memoryview(bytearray(1 << 16))
            raise


class RefusedAllocationLeaks(Sound):
    """The handle of an allocation for which there was no room stays in the table."""

    def allocate(self, device_id, nbytes, alignment, stream):
        try:
            return super().allocate(device_id, nbytes, alignment, stream)
        except DeviceMemoryError:
            self.table[self.new_handle()] = device_id, memoryview(b"")
            raise


class EarlyDestroy(Late):
    """`free` destroys memory that queued work still uses."""

    def free(self, device_id, data, stream):
        _, content = self.table.get(data, (0, memoryview(b"")))
        super().free(device_id, data, stream)
        if not content.readonly:
            content[:] = bytes(len(content))


class StagingIsShared(Sound):
    """All threads stage their bytes in one buffer."""

    staging = memoryview(bytearray(1 << 23))

    def copy_from_host(self, target, source, stream):
        self.staging[: len(source)] = source
        time.sleep(0.0002)  # as long as the call of a driver: other threads run
        super().copy_from_host(target, self.staging[: len(source)], stream)


class BounceIsShared(Sound):
    """Copies on the device of all threads go through one buffer."""

    bounce = memoryview(bytearray(1 << 23))

    def copy(self, target, source, stream):
        into, taken = self.bytes_of(target, write=True), self.bytes_of(source)
        self.bounce[: len(taken)] = taken
        time.sleep(0.0002)  # as long as the call of a driver: other threads run
        into[:] = self.bounce[: len(into)]


class FillValueIsShared(Sound):
    """The value of a fill lies in one place for all threads."""

    def fill(self, target, value, stream):
        self.value = value
        time.sleep(0.0002)  # as above
        super().fill(target, self.value, stream)


class LockedTable(Sound):
    """`allocate` and `free` take a plain lock, which a finalizer inside of it waits for."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def allocate(self, device_id, nbytes, alignment, stream):
        data = super().allocate(device_id, nbytes, alignment, stream)
        with self.lock:
            self.table[data] = device_id, memoryview(bytearray(nbytes))
        return data

    def free(self, device_id, data, stream):
        with self.lock:
            super().free(device_id, data, stream)


class LockedUpload(LockedTable):
    """The same in an upload."""

    allocate = Sound.allocate

    def copy_from_host(self, target, source, stream):
        with self.lock:
            super().copy_from_host(target, source, stream)


class LockedLookup(LockedTable):
    """The same where the table is searched."""

    allocate = Sound.allocate

    def bytes_of(self, span, write=False):
        with self.lock:
            owner, content = self.table.get(span.data, (None, memoryview(b"")))
            self.table_entry = (owner, content)
        return super().bytes_of(span, write)


# Streams


class UploadOnDefaultStream(Late):
    """Uploads go to the default stream, whatever the stream."""

    def copy_from_host(self, target, source, stream):
        self.stream(target.device_id, stream)
        super().copy_from_host(target, source, 0)


class DownloadOnDefaultStream(Late):
    """Downloads go to the default stream, whatever the stream."""

    def copy_to_host(self, source, into, stream):
        self.stream(source.device_id, stream)
        super().copy_to_host(source, into, 0)


class CopyOnDefaultStream(Late):
    """Copies go to the default stream, whatever the stream."""

    def copy(self, target, source, stream):
        self.stream(target.device_id, stream)
        super().copy(target, source, 0)


class PeerCopyOnItsSourcesStream(Late):
    """A copy between devices goes to the default stream of the device of its source."""

    def copy(self, target, source, stream):
        if target.device_id == source.device_id:
            return super().copy(target, source, stream)
        into, taken = self.bytes_of(target, write=True), self.bytes_of(source)
        return self.move(self.default_streams[source.device_id], into, taken)


class FillOnDefaultStream(Late):
    """Fills go to the default stream, whatever the stream."""

    def fill(self, target, value, stream):
        self.stream(target.device_id, stream)
        super().fill(target, value, 0)


class StridedOnDefaultStream(Late):
    """Strided copies go to the default stream, whatever the stream."""

    def copy_strided(self, target, target_region, source, source_region, stream):
        self.stream(target.device_id, stream)
        super().copy_strided(target, target_region, source, source_region, 0)


class StridedUploadOnDefaultStream(Late):
    """The same for strided copies from the host."""

    def copy_strided_from_host(self, target, target_region, source, source_region, stream):
        self.stream(target.device_id, stream)
        super().copy_strided_from_host(target, target_region, source, source_region, 0)


class StridedDownloadOnDefaultStream(Late):
    """The same for strided copies to the host."""

    def copy_strided_to_host(self, source, source_region, into, into_region, stream):
        self.stream(source.device_id, stream)
        super().copy_strided_to_host(source, source_region, into, into_region, 0)


class SmallUploadsAreAtOnce(Late):
    """Few bytes are written by the host, before the work that is queued."""

    def copy_from_host(self, target, source, stream):
        if len(source) >= 64:
            return super().copy_from_host(target, source, stream)
        self.stream(target.device_id, stream)
        self.bytes_of(target, write=True)[:] = source
        return None


class SynchronizeForgetsDefaultStream(Late):
    """0 counts as no stream, and so there is nothing to wait for."""

    def synchronize(self, device_id, stream):
        self.stream(device_id, stream)
        if stream:
            super().synchronize(device_id, stream)


class WaitForgetsDefaultStream(Late):
    """The same where a stream waits for another."""

    def wait(self, device_id, stream, on):
        self.stream(device_id, stream), self.stream(device_id, on)
        if stream and on:
            super().wait(device_id, stream, on)


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


class TakesStreamsOfOtherDevices(Late):
    """A stream of another device is taken for the default stream."""

    def normalize_stream(self, device_id, stream):
        try:
            return super().normalize_stream(device_id, stream)
        except ValueError:
            if isinstance(stream, Stream):
                return 0
            raise


class TakesUnknownStreams(Sound):
    """A number that is not known is taken for the default stream."""

    def normalize_stream(self, device_id, stream):
        try:
            return super().normalize_stream(device_id, stream)
        except ValueError:
            if isinstance(stream, int) and stream > 0:
                return 0
            raise


class SynchronizeDoesNothing(Late):
    """`synchronize` is ``pass``."""

    def synchronize(self, device_id, stream):
        self.stream(device_id, stream)


class WaitDoesNothing(Late):
    """`wait` is ``pass``."""

    def wait(self, device_id, stream, on):
        self.stream(device_id, stream), self.stream(device_id, on)


class ClaimsThatSmallCopiesBlock(Late):
    """Larger copies with the host block, as declared, and small ones do not."""

    host_copies_block = True

    def copy_from_host(self, target, source, stream):
        super().copy_from_host(target, source, stream)
        if len(source) >= CHUNK:
            self.synchronize(target.device_id, stream)

    def copy_to_host(self, source, into, stream):
        super().copy_to_host(source, into, stream)
        if len(into) >= CHUNK:
            self.synchronize(source.device_id, stream)


class ClaimsThatStridedCopiesBlock(Late):
    """Copies with the host block, as declared, and strided ones do not."""

    host_copies_block = True

    def copy_from_host(self, target, source, stream):
        super().copy_from_host(target, source, stream)
        self.synchronize(target.device_id, stream)

    def copy_to_host(self, source, into, stream):
        super().copy_to_host(source, into, stream)
        self.synchronize(source.device_id, stream)


class ClaimsToBlock(Late):
    """It declares that copies with the host block, and they do not."""

    host_copies_block = True


class BoolsAreStreams(Sound):
    """True is taken for the stream 1."""

    def normalize_stream(self, device_id, stream):
        return 0 if isinstance(stream, bool) else super().normalize_stream(device_id, stream)


# Native objects and foreign handles


class NativeForgetsOffset(Sound):
    """The object begins at the beginning of the memory."""

    def to_native(self, array):
        return Array(array._replace(offset=0))


class NativeForgetsStrides(Sound):
    """The object has the shape, in C order."""

    def to_native(self, array):
        return Array(array._replace(strides=None))


class NativeForgetsType(Sound):
    """The elements are always float32."""

    def to_native(self, array):
        return Array(array._replace(dtype="float32"))


class NativeForgetsDevice(Sound):
    """The object is always on device 0."""

    def from_native(self, obj):
        found = super().from_native(obj)
        return found and found._replace(device_id=0)


class NativeForgetsReadOnly(Sound):
    """The object may be written, whatever the tensor says."""

    def to_native(self, array):
        return Array(array._replace(readonly=False))


class NativeDropsOwner(Sound):
    """The object does not keep the memory alive."""

    def to_native(self, array):
        return Array(array._replace(owner=None))


class NativeKeepsOwner(Sound):
    """The memory is kept alive for ever."""

    def __init__(self):
        super().__init__()
        self.owners = []

    def to_native(self, array):
        self.owners.append(array.owner)
        return super().to_native(array)


class ImportTakesAnything(Sound):
    """Every handle counts as its own."""

    def import_data(self, device_id, data, module):
        return device_id, data


class ImportTakesFreed(Sound):
    """A handle that was freed still counts as its own."""

    def __init__(self):
        super().__init__()
        self.ever = {}

    def allocate(self, device_id, nbytes, alignment, stream):
        data = super().allocate(device_id, nbytes, alignment, stream)
        self.ever[data] = device_id
        return data

    def import_data(self, device_id, data, module):
        if data in self.ever:
            return self.ever[data], data
        return super().import_data(device_id, data, module)


class ImportFollowsPointers(Sound):
    """A handle that is not known is taken for a pointer, and read."""

    def import_data(self, device_id, data, module):
        if data not in self.table:
            data = ctypes.c_uint64.from_address(data).value
        return super().import_data(device_id, data, module)


class ImportBelievesTheDevice(Sound):
    """The device is the one that the exporter named, and not the one of the memory."""

    def import_data(self, device_id, data, module):
        super().import_data(device_id, data, module)
        return device_id, data


# Memory that host and device share


class HostViewIsACopy(Shared):
    """The host writes to a copy of the memory."""

    def host_view(self, span, writable, stream):
        super().host_view(span, writable, stream)
        data, _ = self.views.pop()
        self.copy_of_it = bytearray(self.bytes_of(span))
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.copy_of_it))
        self.views.append((data, address))
        return address


class HostViewForgetsOffset(Shared):
    """The view begins at the beginning of the memory."""

    def host_view(self, span, writable, stream):
        self.bytes_of(span)
        return super().host_view(span._replace(offset=0), writable, stream)


class HostViewWaitsForDefaultStream(LateShared):
    """A host view waits for the work on the default stream, whatever the stream."""

    def host_view(self, span, writable, stream):
        return super().host_view(span, writable, 0)


class HostViewLeaks(Shared):
    """`release_host_view` does nothing."""

    def release_host_view(self, span, address, stream):
        pass


class HostImportLeaks(Shared):
    """`free` of an import does nothing."""

    def __init__(self):
        super().__init__()
        self.imports = set()

    def import_host(self, device_id, address, nbytes, readonly):
        data, offset = super().import_host(device_id, address, nbytes, readonly)
        self.imports.add(data)
        return data, offset

    def free(self, device_id, data, stream):
        if data not in self.imports:
            super().free(device_id, data, stream)


class HostImportEndsEarly(LateShared):
    """`free` of an import does not wait for the work that uses the host's memory."""

    def finish(self, device_id, handle):
        pass


class HostImportIsWrittenBack(HostImportLeaks):
    """The end of an import writes to the host's memory, also if that is read-only."""

    def free(self, device_id, data, stream):
        if data in self.imports:
            address = np.frombuffer(self.table[data][1], "u1").ctypes.data
            ctypes.memset(address, 0, 1)
        Sound.free(self, device_id, data, stream)


class HostImportIsACopy(Shared):
    """The device uses a copy of the host's memory."""

    def import_host(self, device_id, address, nbytes, readonly):
        data, offset = super().import_host(device_id, address, nbytes, readonly)
        self.table[data] = device_id, memoryview(bytearray(ctypes.string_at(address, nbytes)))
        return data, offset


# A lost device


class LossIsUnmapped(Sound):
    """The driver's error for a lost device leaves the backend as it is."""

    def report_loss(self, device_id):
        try:
            super().report_loss(device_id)
        except DeviceLost as exc:
            raise OSError(str(exc)) from None


class LostMemoryComesBack(Sound):
    """The device is opened again, and memory of before counts as valid."""

    def reopen(self, device_id):
        super().reopen(device_id)
        self.lost_before.pop(device_id, None)


class FreeRaisesAfterLoss(Sound):
    """`free` asks the lost device, which a finalizer must not meet."""

    def free(self, device_id, data, stream):
        self.bytes_of(Span(device_id, data, 0, 1))
        super().free(device_id, data, stream)


# Processes


class DriverImportedWithTheModule(Sound):
    """The package of the driver is imported with the backend's module (plugin_faulty.py)."""


class ExitCrashes(Sound):
    """The driver is closed at exit, while tensors still use it."""

    def __init__(self):
        super().__init__()
        if IN_CHILD:
            atexit.register(lambda: self.table and os.abort())


class FreeRaisesInAChild(Sound):
    """`free` refuses to run in a forked child, where a finalizer calls it."""

    def __init__(self):
        super().__init__()
        self.process = os.getpid()

    def free(self, device_id, data, stream):
        if os.getpid() != self.process:
            raise DeviceError("the device cannot be used after os.fork()")
        super().free(device_id, data, stream)


class ForkedChildHangs(Sound):
    """A forked child waits for threads that only its parent has."""

    def __init__(self):
        super().__init__()
        self.process = os.getpid()

    def synchronize(self, device_id, stream):
        super().synchronize(device_id, stream)
        while os.getpid() != self.process:
            time.sleep(1)


class ForkedChildReadsZeros(Sound):
    """In a forked child nothing is copied, and no error is raised."""

    def __init__(self):
        super().__init__()
        self.process = os.getpid()

    def copy_to_host(self, source, into, stream):
        if os.getpid() == self.process:
            super().copy_to_host(source, into, stream)
