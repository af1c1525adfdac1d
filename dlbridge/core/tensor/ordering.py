"""The order of work on a tensor's memory: between our streams, and with the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from dlbridge.core.plugins.lookup import plugin_of
from dlbridge.core.plugins.streams import current_stream, current_use
from dlbridge.core.values.devices import DLDeviceType
from dlbridge.errors import ExchangeError

if TYPE_CHECKING:
    import weakref

    from dlbridge.core.plugins.records import Plugin
    from dlbridge.core.plugins.streams import StreamUse

    from .memory import Memory


class _View(Protocol):
    """A host view whose block is open."""

    viewed: Memory | None
    description: str


open_views: Final[dict[int, weakref.ref[_View]]] = {}
"""Number -> each host view whose block is open. Weak: a Ctrl-C may come before its end is noted."""


def access(memory: Memory, plugin: Plugin | None = None, *, viewing: bool = False) -> int:
    """The stream for work on *memory* now, ordered after the last work on it.

    *plugin* is the backend of the device, if it is known. ExchangeError while the block of
    a host view is open, unless the work is *viewing*.
    """
    if open_views and not viewing:
        refuse_if_viewed(memory)
    now = current_use(memory.device, plugin)
    order(memory, now, plugin)
    return now.handle


def order(memory: Memory, now: StreamUse, plugin: Plugin | None) -> None:
    """Note work on *now*, the current stream, which waits for the last work on *memory*."""
    device, last = memory.device, memory.last_use
    if last is not None and last.handle != now.handle:
        if plugin is None:
            plugin = plugin_of(device)
        if plugin.wait is not None:
            plugin.wait(device.index, now.handle, last.handle)
    now.used = True
    if last is not now:
        memory.use_on(now)


def refuse_if_viewed(memory: Memory) -> None:
    """ExchangeError while the block of a host view of *memory* is open."""
    for reference in list(open_views.values()):
        view = reference()
        if view is not None and view.viewed is memory:
            raise ExchangeError(
                f"{memory.device} cannot work on this memory while the host uses it: "
                f"{view.description} is open; do the work after its block, or on a copy "
                "that was made before"
            )


def host_access(memory: Memory) -> None:
    """Wait for device work on host-readable memory that the host will read or write next."""
    device, last = memory.device, memory.last_use
    if last is None or device.type is DLDeviceType.kDLCPU:
        return
    plugin = plugin_of(device)
    if plugin.synchronize is not None:
        for handle in {last.handle, current_stream(device)}:
            plugin.synchronize(device.index, handle)
