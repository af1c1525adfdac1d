"""The device's memory: a table of handles, and work on the bytes behind them."""

from __future__ import annotations

import itertools

from dlbridge.errors import ExchangeError

from .stream import Stream, by_handle

__all__ = ["DEVICE_NAMES", "Memory"]

DEVICE_NAMES = ("zero", "one")


class Memory:
    """The state that all parts of the backend share; nothing here is in the contract."""

    def __init__(self) -> None:
        self.default_streams = [Stream(device_id) for device_id in range(len(DEVICE_NAMES))]
        # Single operations on a dict, a list or a count are atomic, so no lock is
        # needed. A finalizer may run between any two lines, also in a thread that
        # holds a lock, and would then wait for that lock for ever.
        self.table: dict[int, tuple[int, memoryview]] = {}  # data -> device_id, bytes
        # Not addresses: a program that reads at such an address crashes at once.
        self.handles = itertools.count(0x5AFE_0000_0000_0001, 2)

    def add(self, device_id: int, content: memoryview) -> int:
        """A new handle for *content*."""
        data = next(self.handles)
        self.table[data] = device_id, content
        return data

    def stream(self, device_id: int, handle: int) -> Stream:
        """The stream; an error that names the device or the stream if it is not valid."""
        if not 0 <= device_id < len(DEVICE_NAMES):
            raise ExchangeError(
                f"ext_dev:{device_id} is not a valid device; there are ext_dev:0 and ext_dev:1"
            )
        found = self.default_streams[device_id] if handle == 0 else by_handle.get(handle)
        if found is None or found.device_id != device_id:
            raise ValueError(
                f"{handle:#x} is not a stream of ext_dev:{device_id}; pass None, -1 or a "
                "dlbridge_fake.Stream of that device"
            )
        return found

    def region(
        self, device_id: int, data: int, offset: int, nbytes: int, write: bool = False
    ) -> memoryview:
        """The bytes; ExchangeError unless they lie in *data*, and may be written for *write*."""
        owner, content = self.table.get(data, (None, memoryview(b"")))
        if owner != device_id:
            raise ExchangeError(f"{data:#x} is not memory of ext_dev:{device_id}")
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
        stream.enqueue(lambda: into.__setitem__(slice(None), source))
