"""A consumer's side of an export: its stream, and layouts that it cannot take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.core.dlpack.requests import check_host_stream
from dlbridge.core.plugins.lookup import supports
from dlbridge.core.plugins.registry import backend
from dlbridge.core.plugins.streams import current_stream
from dlbridge.core.values.devices import DLDeviceType
from dlbridge.errors import BackendUnavailable
from dlbridge.protocol import SupportsStreams

if TYPE_CHECKING:
    from .tensor import Tensor

__all__ = ["order_consumer"]


def order_consumer(tensor: Tensor, stream: object) -> None:
    """Make the consumer's *stream* wait for our work on *tensor*; -1: no wait is wanted.

    The backend of the device knows which values are allowed. Without a backend
    only None and -1 are possible: the memory was ready on the default stream when
    it was imported.
    """
    device = tensor.device
    if device.is_host and device.type != DLDeviceType.kDLCUDAManaged:
        check_host_stream(stream)
        return
    if stream == -1 and not isinstance(stream, bool):
        return
    try:
        plugin = backend(device.name)
    except BackendUnavailable:
        if stream is None:
            return
        raise
    if supports(plugin, SupportsStreams):
        consumer = plugin.normalize_stream(device.index, stream)
        if consumer != -1:
            # The last work of ours, and what may have been queued beside it.
            last = tensor._memory.last_use
            ours = {current_stream(device)} | ({last.handle} if last else set())
            for producer in ours - {consumer}:
                plugin.wait(device.index, consumer, producer)
    elif stream is not None:
        raise TypeError(f"{device} has no streams; stream must be None or -1, not {stream!r}")
