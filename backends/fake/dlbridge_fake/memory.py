"""The device's memory: a table of handles, and work on the bytes behind them."""

from __future__ import annotations

import itertools
import random
from functools import partial
from typing import TYPE_CHECKING
from weakref import ref

from dlbridge.errors import DeviceLost, ExchangeError
from dlbridge.kit.resources import recall, remember

from .stream import Stream, by_handle

if TYPE_CHECKING:
    from dlbridge.protocol import Span

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
    """The state that all parts of the backend share; nothing here is in the contract."""

    def __init__(self) -> None:
        self.default_streams = [Stream(device_id) for device_id in range(len(DEVICE_NAMES))]
        # What is behind a handle, as long as somebody has it: dlbridge, by what `allocate`
        # returned. Single operations on dicts and counts are atomic, so no lock is needed.
        self.table: dict[int, ref[FakeMemory]] = {}
        # Not addresses: a program that reads at such an address crashes at once.
        # From a random number on: other backends of kDLExtDev use handles, too.
        first = 0x5AFE_0000_0000_0001 + (random.getrandbits(32) << 8)
        self.handles = itertools.count(first, 2)
        self.lost_before: dict[int, int] = {}  # device_id -> the first handle that is not lost
        self.lost: dict[int, bool] = {}  # device_id -> whether the loss has been reported

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
                f"{data:#x} is read-only host memory; copy it: to_device(x, device, copy=True)"
            )
        return content[offset : offset + nbytes]

    def move(self, stream: Stream, into: memoryview, source: memoryview) -> None:
        """Enqueue a copy of bytes; the queued work keeps both sides alive."""
        stream.enqueue(partial(into.__setitem__, slice(None), source))
