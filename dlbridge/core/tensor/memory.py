"""The memory under a tensor: whose it is, and the order of the work on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from dlbridge.core.implementation_details.ends import at_exit, end_finalizers
from dlbridge.core.plugins.lookup import plugin_of
from dlbridge.core.plugins.streams import current_stream, current_use
from dlbridge.core.values.devices import DLDeviceType
from dlbridge.errors import BackendError, ExchangeError
from dlbridge.kit.resources import Owner, join
from dlbridge.protocol import Span

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable

    from dlbridge.core.plugins.records import Plugin
    from dlbridge.core.plugins.streams import StreamUse
    from dlbridge.core.values.devices import Device
    from dlbridge.protocol import Allocation


@at_exit
def _at_exit() -> None:
    end_finalizers(Owner, Memory)


class Memory:
    """Some bytes on *device*, which exist as long as this object.

    *data* is the address or the backend's handle; *origin* says in words where the
    memory comes from; *owner* is an object that this one keeps alive. `last_use` is
    the stream of our last work on it, None before the first. `allocation` is what the backend
    gave, which ends with this object, None for memory of others. `host_start` is the address of
    the host for the first byte of `data`, None except for host memory that a device uses in
    place; `is_import` says whether it is that, or memory of another driver.
    """

    __slots__ = (
        "__weakref__",
        "allocation",
        "data",
        "device",
        "host_start",
        "is_import",
        "last_use",
        "origin",
        "owner",
    )

    def __init__(self, device: Device, data: int, origin: str, owner: object = None) -> None:
        self.allocation: Allocation | None = None
        self.device: Device = device
        self.data: int = data
        self.origin: str = origin
        self.owner: object = owner
        self.last_use: StreamUse | None = None
        self.host_start: int | None = None
        self.is_import = False

    def use_on(self, use: StreamUse) -> None:
        """Note that work on *use* is the last."""
        self.last_use = use
        if self.allocation is not None:
            self.allocation.stream = use.handle
        if use.memories is not None:
            join(use.memories, self)

    def take(
        self,
        use: StreamUse,
        member: str,
        function: Callable[..., Allocation] | None,
        *arguments: Any,
    ) -> int:
        """Take what *function* gives, the *member* of the backend; its offset in bytes.

        Whatever is raised, it ends with the last reference to it.
        """
        assert function is not None  # the plan has asked for the capability
        allocation = function(*arguments)
        try:
            data, offset = allocation.data, allocation.offset
        except AttributeError:
            data = offset = None  # type: ignore[assignment]
        if type(data) is not int or not 0 < data < 1 << 64 or type(offset) is not int:
            raise _no_allocation(self.device, member, allocation)
        self.data = data
        self.allocation = allocation
        self.last_use = use
        if use.memories is not None:
            join(use.memories, self)
        return offset

    def __reduce__(self) -> NoReturn:  # a second owner of `data` would free it again
        raise TypeError(
            f"memory of {self.device} can be neither pickled nor copied; send the tensor, which "
            "sends its elements"
        )

    def __del__(self) -> None:
        """Nothing. A handler's exception that waits is raised here, and not in `Owner.__del__`."""


def view_memory(
    plugin: Plugin,
    viewed: Memory,
    stream: int,
    host: Device,
    offset: int,
    nbytes: int,
    writable: bool,
) -> Memory:
    """*nbytes* bytes of a device's memory from *offset* on, for the host, until it dies."""
    assert plugin.host_view is not None  # the plan has asked for the capability
    span = Span(viewed.device.index, viewed.data, offset, nbytes)
    view = plugin.host_view(span, writable, stream)
    data = getattr(view, "data", None)
    if type(data) is not int or not 0 < data < 1 << 64:
        raise _no_allocation(viewed.device, "host_view", view)
    memory = Memory(host, data, f"host view of {viewed.device}", viewed)
    memory.allocation = view
    return memory


def _no_allocation(device: Device, member: str, result: object) -> BackendError:
    data = getattr(result, "data", None)
    shown = repr(result) if data is None else f"one of data {data!r}"
    return BackendError(
        f"the backend of {device} returned {shown} from {member}, which returns an Allocation: its "
        "data is an address or a handle, an integer from 1 to 2**64 - 1, its offset an integer "
        "(dlbridge.protocol); report it to the backend's authors"
    )


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
