"""The order of work on a tensor's memory: between our streams, and with the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.core.plugins.lookup import backend_of, supports
from dlbridge.core.plugins.streams import current_stream, current_use
from dlbridge.core.values.devices import DLDeviceType
from dlbridge.protocol import SupportsStreams

if TYPE_CHECKING:
    from .memory import Memory

__all__ = ["access", "host_access"]


def access(memory: Memory) -> int:
    """The stream for work on *memory* now, ordered after the last work on it."""
    device = memory.device
    now, last = current_use(device), memory.last_use
    if last is not None and last.handle != now.handle:
        plugin = backend_of(device)
        if supports(plugin, SupportsStreams):
            plugin.wait(device.index, now.handle, last.handle)
    now.used = True
    memory.last_use = now
    return now.handle


def host_access(memory: Memory) -> None:
    """Wait for device work on host-readable memory that the host will read or write next."""
    device, last = memory.device, memory.last_use
    if last is None or device.type == DLDeviceType.kDLCPU:
        return
    plugin = backend_of(device)
    if supports(plugin, SupportsStreams):
        for handle in {last.handle, current_stream(device)}:
            plugin.synchronize(device.index, handle)
