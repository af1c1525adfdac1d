"""The current stream of each device in each thread; waiting for streams."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dlbridge.core.public import public
from dlbridge.core.values.devices import Device, DLDeviceType
from dlbridge.errors import BackendUnavailable, ExchangeError
from dlbridge.protocol import Backend, SupportsStreams

from .lookup import backend_of, find_device, supports

if TYPE_CHECKING:
    from dlbridge.typing import DeviceLike, StreamLike

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
    """The native handle of a stream, and whether work was queued on it.

    All memory that is used in one ``use_stream`` block shares it. The end of
    the block replaces the handle, because the stream may be destroyed after it.
    """

    __slots__ = ("handle", "used")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.used = False


class _Chosen(threading.local):
    """The streams that `use_stream` has chosen in this thread."""

    def __init__(self) -> None:
        self.streams: dict[Device, StreamUse] = {}


_chosen = _Chosen()


@public
@contextmanager
def use_stream(device: DeviceLike, stream: StreamLike | None) -> Iterator[int]:
    """Queue this thread's work on *device* on *stream* inside the block.

    After the block, later work is ordered after the work of the block.

    Parameters
    ----------
    device : DeviceLike
        The device of the stream; `dlbridge.device` says what is taken.
    stream : StreamLike or None
        An integer by the rules of the device (array API 2024.12,
        ``__dlpack__``), or a stream object of torch, cupy or cuda.core, or a
        pyopencl queue. It must exist until the block ends. None: the default.

    Yields
    ------
    int
        The native handle of the stream.

    Raises
    ------
    TypeError
        If the device has no streams, or *stream* is not a stream.
    ValueError
        For an integer that the rules of the device forbid.

    Examples
    --------
    With ``stream`` from any library, all copies and allocations follow it:

    >>> def upload(array, stream):
    ...     with bridge.use_stream("cuda:0", stream):
    ...         return bridge.to_device(array, "cuda:0")
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


def current_use(device: Device, plugin: Backend | None = None) -> StreamUse:
    """The stream that our work on *device* is queued on; *plugin* is its backend, if known."""
    chosen = _chosen.streams.get(device)
    if chosen is not None:
        return chosen
    if plugin is None:
        plugin = backend_of(device)
    return StreamUse(plugin.current_stream(device.index))


@public
def current_stream(device: DeviceLike) -> int:
    """Return the stream that this thread's work on *device* is queued on.

    Parameters
    ----------
    device : DeviceLike
        `dlbridge.device` says what is taken.

    Returns
    -------
    int
        The native handle; 0 for the default stream, and on devices without
        streams.

    Examples
    --------
    >>> bridge.current_stream("cpu")
    0
    """
    where = device if isinstance(device, Device) else find_device(device)
    return current_use(where).handle


def stream_for(device: Device) -> int | None:
    """`current_stream`, or None if the device has no backend here."""
    try:
        return current_stream(device)
    except (BackendUnavailable, ExchangeError):
        return None


def chosen_streams() -> dict[Device, int]:
    """The streams that `use_stream` has chosen in this thread (a copy)."""
    return {device: use.handle for device, use in _chosen.streams.items()}


def consumer_stream(device: Device) -> int | None:
    """The stream that we, as a consumer, pass to ``__dlpack__(stream=)``; None: no stream.

    The values for CUDA and ROCm are those of the array API 2024.12: the default
    stream of CUDA is 1, because 0 is ambiguous there. The array API has no
    values for other devices, so their producers get none.
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


@public
def synchronize(device: DeviceLike) -> None:
    """Block until the work on the current stream of *device* is done.

    Parameters
    ----------
    device : DeviceLike
        `dlbridge.device` says what is taken.

    Raises
    ------
    DeviceError
        If work on the stream has failed.

    Examples
    --------
    >>> bridge.synchronize("cpu")
    """
    where = find_device(device)
    plugin = backend_of(where)
    if supports(plugin, SupportsStreams):
        plugin.synchronize(where.index, current_stream(where))
