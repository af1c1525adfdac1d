"""The device's memory: a table of handles, and work on the bytes behind them."""

from __future__ import annotations

import itertools

from dlbridge.errors import ExchangeError

from .stream import Stream, by_handle

__all__ = ["DEVICE_NAMES", "Memory"]

DEVICE_NAMES = ("zero", "one")


class Memory:
    """What the parts of the backend share; nothing here is in the contract."""

    def __init__(self) -> None:
        self.default_streams = [Stream(device_id) for device_id in range(len(DEVICE_NAMES))]
        # Single operations on a dict or a count are atomic: no lock that a
        # finalizer, which may interrupt any line, could wait for in vain.
        self.table: dict[int, tuple[int, memoryview]] = {}  # data -> device_id, bytes
        # No address: whoever takes it for one reaches memory that no process has.
        self.handles = itertools.count(0x5AFE_0000_0000_0001, 2)

    def add(self, device_id: int, content: memoryview) -> int:
        """A new handle for *content*."""
        data = next(self.handles)
        self.table[data] = device_id, content
        return data

    def stream(self, device_id: int, handle: int) -> Stream:
        """The stream, or the error that names the device or the stream there is not."""
        if not 0 <= device_id < len(DEVICE_NAMES):
            raise ExchangeError(f"there is no ext_dev:{device_id}, only 0 and 1")
        found = self.default_streams[device_id] if handle == 0 else by_handle.get(handle)
        if found is None or found.device_id != device_id:
            raise ValueError(f"{handle:#x} is no stream of ext_dev:{device_id}")
        return found

    def region(
        self, device_id: int, data: int, offset: int, nbytes: int, write: bool = False
    ) -> memoryview:
        """The bytes; ExchangeError unless they are *data*'s, and for *write* its to change."""
        owner, content = self.table.get(data, (None, memoryview(b"")))
        if owner != device_id:
            raise ExchangeError(f"{data:#x} is no memory of ext_dev:{device_id}")
        if not 0 <= offset <= len(content) - nbytes:
            raise ExchangeError(
                f"{nbytes} bytes at offset {offset} reach outside the {len(content)} of {data:#x}"
            )
        if write and content.readonly:
            raise ExchangeError(f"{data:#x} is read-only host memory")
        return content[offset : offset + nbytes]

    def move(self, stream: Stream, into: memoryview, source: memoryview) -> None:
        """Enqueue a copy of bytes; what is queued keeps both sides alive."""
        stream.enqueue(lambda: into.__setitem__(slice(None), source))
