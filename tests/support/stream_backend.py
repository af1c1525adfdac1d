"""A backend over host memory with streams by CUDA's rules, which notes what it was asked to do.

It stands in for a GPU where the question is only who is told to wait for whom.
What it cannot show is that the waiting works: that is for the backends' own
tests, on their devices.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from weakref import WeakValueDictionary

import numpy as np

from dlbridge.extending import LOADED
from dlbridge.protocol import PlainAllocation


class Streams:
    """Addresses as data; *log* holds what happened, in order."""

    api = 2
    device_type = 2

    def __init__(self):
        self.log: list[tuple[object, ...]] = []
        self.current = 0
        self.memory: WeakValueDictionary[int, PlainAllocation] = WeakValueDictionary()

    def device_count(self):
        return 2

    def allocate(self, device_id, nbytes, alignment, stream, content=None):
        memory = np.empty(nbytes + alignment, "u1")
        at = memory.ctypes.data
        at += -at % alignment
        self.memory[at] = made = PlainAllocation(at, nbytes, stream, owner=memory)
        return made

    def copy_from_host(self, target, source, stream):
        self.log.append(("upload", stream))
        ctypes.memmove(target.data + target.offset, bytes(source), target.nbytes)

    def copy_to_host(self, source, into, stream):
        self.log.append(("download", stream))
        into[:] = ctypes.string_at(source.data + source.offset, source.nbytes)

    def copy(self, target, source, stream):
        self.log.append(("copy", stream))
        ctypes.memmove(target.data + target.offset, source.data + source.offset, target.nbytes)

    def current_stream(self, device_id):
        return self.current

    def synchronize(self, device_id, stream):
        self.log.append(("synchronize", stream))

    def wait(self, device_id, stream, on):
        self.log.append(("wait", stream, on))

    def normalize_stream(self, device_id, stream):
        if isinstance(stream, bool):
            raise TypeError("a bool is no stream")
        if stream is None or stream == 1:
            return 0  # the legacy default stream
        if not isinstance(stream, int):
            raise TypeError(f"not a stream: {stream!r}")
        if stream == 0 or stream < -1:
            raise ValueError(f"stream {stream} is ambiguous or unknown")
        return stream


class Pinned(Streams):
    """Host memory of such a device."""

    device_type = 3


@contextmanager
def installed(name, plugin):
    """*plugin* as the backend *name* inside the block, whatever is installed here."""
    before = LOADED.get(name)
    LOADED[name] = plugin
    try:
        yield plugin
    finally:
        if before is None:
            del LOADED[name]
        else:
            LOADED[name] = before
