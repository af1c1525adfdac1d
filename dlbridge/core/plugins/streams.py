"""The current stream of each device in each thread; waiting for streams."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dlbridge.core.values.devices import Device, DLDeviceType
from dlbridge.errors import BackendUnavailable, ExchangeError
from dlbridge.protocol import SupportsStreams

from .lookup import backend_of, find_device, supports

__all__ = [
    "StreamUse",
    "chosen_streams",
    "consumer_stream",
    "current_stream",
    "current_use",
    "stream_for",
    "synchronize",
    "use_stream",
    "wait",
]


class StreamUse:
    """A stream that work was queued on: its native handle, and whether any was.

    Shared by all memory that was used in one ``use_stream`` block. The end of
    the block replaces the handle, as the stream itself may be destroyed after it.
    """

    __slots__ = ("handle", "used")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.used = False


class _Chosen(threading.local):
    """The streams that `use_stream` chose in this thread."""

    def __init__(self) -> None:
        self.streams: dict[Device, StreamUse] = {}


_chosen = _Chosen()


@contextmanager
def use_stream(device: Any, stream: Any) -> Iterator[int]:
    """Send this thread's work on *device* to *stream* inside the block.

    *stream* is whatever the device's backend knows as one: an integer by the
    device's rules, or the ecosystem's own object (a torch, cupy or cuda.core
    stream, a pyopencl queue), which must outlive the block. Gives the handle.
    What comes after the block is ordered after what was done in it.
    """
    where = find_device(device)
    plugin = backend_of(where)
    if not supports(plugin, SupportsStreams):
        raise TypeError(f"{where} has no streams to choose from")
    handle = plugin.normalize_stream(where.index, stream)
    if handle == -1:
        raise ValueError("stream -1 means 'do not synchronise'; it is not a stream to work on")
    before = _chosen.streams.get(where)
    inside = _chosen.streams[where] = StreamUse(handle)
    try:
        yield handle
    finally:
        if before is None:
            del _chosen.streams[where]
        else:
            _chosen.streams[where] = before
        outer = current_stream(where)
        if inside.used and outer != handle:
            plugin.wait(where.index, outer, handle)
        inside.handle = outer


def current_use(device: Device) -> StreamUse:
    """The stream that our work on *device* goes to."""
    chosen = _chosen.streams.get(device)
    return StreamUse(backend_of(device).current_stream(device.index)) if chosen is None else chosen


def current_stream(device: Any) -> int:
    """The native handle of the stream that our work on *device* goes to; 0: the default."""
    where = device if isinstance(device, Device) else find_device(device)
    return current_use(where).handle


def stream_for(device: Device) -> int | None:
    """`current_stream`, or None where the device has no backend here."""
    try:
        return current_stream(device)
    except (BackendUnavailable, ExchangeError):
        return None


def chosen_streams() -> dict[Device, int]:
    """The streams that `use_stream` chose in this thread (a copy)."""
    return {device: use.handle for device, use in _chosen.streams.items()}


def consumer_stream(device: Device) -> int | None:
    """What we, as a consumer, pass to ``__dlpack__(stream=)``; None: nothing.

    CUDA's and ROCm's values are the standard's (array API 2024.12): CUDA's
    default is 1, as 0 is ambiguous there. Other devices' streams are known to
    their own objects only, so foreign producers are not given any.
    """
    if device.type not in _STREAM_DEVICES:
        return None
    try:
        handle = current_stream(device)
    except BackendUnavailable:
        return None
    return handle or (None if device.type == DLDeviceType.kDLROCM else 1)


_STREAM_DEVICES = {DLDeviceType.kDLCUDA, DLDeviceType.kDLCUDAManaged, DLDeviceType.kDLROCM}


def wait(device: Device, on: int) -> None:
    """Make our stream on *device* wait for the work now on stream *on*."""
    plugin = backend_of(device)
    stream = current_stream(device)
    if supports(plugin, SupportsStreams) and stream != on:
        plugin.wait(device.index, stream, on)


def synchronize(device: Any) -> None:
    """Block until our work on *device* in this thread's current stream is done."""
    where = find_device(device)
    plugin = backend_of(where)
    if supports(plugin, SupportsStreams):
        plugin.synchronize(where.index, current_stream(where))
