"""The device's memory: a table of handles, and the work on the bytes behind them, in streams."""

from __future__ import annotations

import itertools
import random
from functools import partial
from typing import TYPE_CHECKING
from weakref import ref

from dlbridge.errors import DeviceLost, DeviceMemoryError, ExchangeError
from dlbridge.kit.resources import recall, remember

from .stream import Stream, by_handle, current

if TYPE_CHECKING:
    from dlbridge.protocol import Allocation, Span

__all__ = ["DEVICE_NAMES", "FakeMemory", "Memory"]

DEVICE_NAMES = ("zero", "one")


class FakeMemory:
    """An `Allocation`: some bytes, which Python frees once nobody has this or queued work on it."""

    __slots__ = (
        "__weakref__",
        "content",
        "data",
        "device_id",
        "nbytes",
        "offset",
        "owner",
        "stream",
    )

    def __init__(
        self, data: int, nbytes: int, device_id: int, content: memoryview, stream: int = 0
    ) -> None:
        self.data, self.nbytes, self.offset, self.stream = data, nbytes, 0, stream
        self.device_id = device_id
        self.content = content


class Memory:
    """Memory, streams and copies, which the other parts of the backend are made with."""

    def __init__(self) -> None:
        self.default_streams = [Stream(device_id) for device_id in range(len(DEVICE_NAMES))]
        # What is behind a handle, as long as somebody has it: dlbridge, by what `allocate`
        # returned. Single operations on dicts and counts are atomic, so no lock is needed.
        self.table: dict[int, ref[FakeMemory]] = {}
        # Not addresses: a program that reads at such an address crashes at once.
        # From a random number on: other backends of kDLExtDev use handles, too.
        first = 0x5AFE_0000_0000_0001 + (random.SystemRandom().getrandbits(32) << 8)
        self.handles = itertools.count(first, 2)
        self.lost_before: dict[int, int] = {}  # device_id -> the first handle that is not lost
        self.lost: dict[int, bool] = {}  # device_id -> whether the loss has been reported

    def device_count(self) -> int:
        """The number of devices: two."""
        return len(DEVICE_NAMES)

    def allocate(
        self,
        device_id: int,
        nbytes: int,
        alignment: int,
        stream: int,
        content: memoryview | None = None,
    ) -> Allocation:
        """New memory; *alignment* has no meaning, as the handle is not an address.

        Python frees the bytes when neither the allocation nor queued work has them any more.
        """
        self.reopen(device_id)
        self.stream(device_id, stream)
        try:
            content = memoryview(bytearray(nbytes))
        except (MemoryError, OverflowError) as exc:
            raise DeviceMemoryError(f"ext_dev:{device_id}: no room for {nbytes} bytes") from exc
        return self.enter(FakeMemory(next(self.handles), nbytes, device_id, content, stream))

    def copy_from_host(self, target: Span, source: memoryview, stream: int) -> None:
        """Enqueue a copy to the device."""
        into = self.bytes_of(target, write=True)
        self.move(self.stream(target.device_id, stream), into, source)

    def copy_to_host(self, source: Span, into: memoryview, stream: int) -> None:
        """Enqueue a copy to the host."""
        taken = self.bytes_of(source)
        self.move(self.stream(source.device_id, stream), into, taken)

    def current_stream(self, device_id: int) -> int:
        """The stream of the ``with`` block that this thread is in, else 0."""
        if device_id:
            self.check_device(device_id)
        stream = current.streams.get(device_id)
        return 0 if stream is None else stream.handle

    # Optional: SupportsStreams

    def synchronize(self, device_id: int, stream: int) -> None:
        """Block until the work on *stream* is done."""
        self.stream(device_id, stream).synchronize()

    def wait(self, device_id: int, stream: int, on: int) -> None:
        """Order *stream* behind *on* by an event, without blocking the host."""
        self.stream(device_id, stream).wait(self.stream(device_id, on))

    def normalize_stream(self, device_id: int, stream: object) -> int:
        """None, -1, a `Stream` of this device, or the handle of one."""
        self.check_device(device_id)
        if stream is None:
            return 0
        if isinstance(stream, bool) or not isinstance(stream, (int, Stream)):
            raise TypeError(f"not a stream of ext_dev: {stream!r}; pass None, -1 or a Stream")
        handle = stream if isinstance(stream, int) else stream.handle
        return handle if handle == -1 else self.stream(device_id, handle).handle

    # Optional: SupportsCopy, SupportsFill

    def copy(self, target: Span, source: Span, stream: int) -> None:
        """Enqueue a copy inside one device or from the other."""
        into, taken = self.bytes_of(target, write=True), self.bytes_of(source)
        self.move(self.stream(target.device_id, stream), into, taken)

    def fill(self, target: Span, value: int, stream: int) -> None:
        """Enqueue a fill."""
        into = self.bytes_of(target, write=True)
        content = memoryview(bytes([value]) * target.nbytes)
        self.move(self.stream(target.device_id, stream), into, content)

    # For all parts; nothing below is in the contract

    def enter(self, memory: FakeMemory) -> FakeMemory:
        """Let the handle of *memory* be known for as long as it lives."""
        remember(self.table, memory.data, memory)
        return memory

    def live(self) -> list[FakeMemory]:
        """The memory that somebody has."""
        memories = [known() for known in self.table.copy().values()]
        return [memory for memory in memories if memory is not None]

    def lose(self, device_id: int) -> None:
        """Lose the device with all its memory, as if it had been removed (for tests).

        `allocate` opens it again, once the loss has been reported.
        """
        self.lost_before[device_id] = next(self.handles)
        self.lost[device_id] = False

    def reopen(self, device_id: int) -> None:
        """Use a lost device again, if its loss has been reported; else report it."""
        if self.lost.get(device_id):
            del self.lost[device_id]

    def report_loss(self, device_id: int) -> None:
        """DeviceLost, always."""
        if device_id in self.lost:
            self.lost[device_id] = True
        raise DeviceLost(
            f"ext_dev:{device_id} was lost, with all its memory; allocate new memory there, which "
            "opens the device again"
        )

    def check_device(self, device_id: int) -> None:
        """ExchangeError if there is no such device."""
        if not 0 <= device_id < len(DEVICE_NAMES):
            raise ExchangeError(
                f"ext_dev:{device_id} is not a valid device; there are ext_dev:0 and ext_dev:1"
            )

    def stream(self, device_id: int, handle: int) -> Stream:
        """The stream; an error that names the device or the stream if it is not valid."""
        self.check_device(device_id)
        if device_id in self.lost:
            self.report_loss(device_id)
        stream = self.default_streams[device_id] if handle == 0 else by_handle.get(handle)
        if stream is None or stream.device_id != device_id:
            raise ValueError(
                f"{handle:#x} is not a stream of ext_dev:{device_id}; pass None, -1 or a "
                "dlbridge_fake.Stream of that device"
            )
        return stream

    def finish(self, device_id: int, handle: int) -> None:
        """Wait for a stream in a destructor, which nothing may stop: a lost device, for example."""
        stream = self.default_streams[device_id] if handle == 0 else by_handle.get(handle)
        if stream is not None:
            stream.finish()
        else:
            Stream.finish_ended(handle)

    def bytes_of(self, span: Span, write: bool = False) -> memoryview:
        """The bytes; ExchangeError unless they exist, and may be written for *write*."""
        device_id, data, offset, nbytes = span
        memory = recall(self.table, data)
        if memory is None or memory.device_id != device_id:
            raise ExchangeError(f"{data:#x} is not memory of ext_dev:{device_id}")
        content = memory.content
        if data < self.lost_before.get(device_id, 0):
            self.report_loss(device_id)
        if not 0 <= offset <= len(content) - nbytes:
            raise ExchangeError(
                f"{nbytes} bytes at offset {offset} reach outside the {len(content)} of {data:#x}"
            )
        if write and content.readonly:
            raise ExchangeError(
                f"{data:#x} is read-only host memory; copy it: "
                "dlbridge.to_device(x, device, copy=True)"
            )
        return content[offset : offset + nbytes]

    def move(self, stream: Stream, into: memoryview, source: memoryview) -> None:
        """Enqueue a copy of bytes; the queued work keeps both sides alive."""
        stream.enqueue(partial(into.__setitem__, slice(None), source))
