"""Who owns the bytes of a tensor, and when they are given back."""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Any

from dlbridge.errors import BackendError

if TYPE_CHECKING:
    from dlbridge.core.plugins.streams import StreamUse
    from dlbridge.core.values.devices import Device
    from dlbridge.protocol import Backend, SupportsHostImport, SupportsHostView

__all__ = ["AllocatedMemory", "HostImportMemory", "HostViewMemory", "Memory"]

_exiting = False


@atexit.register
def _at_exit() -> None:
    # Drivers may be unloaded before the last tensor is dropped; the system
    # reclaims the memory of both.
    global _exiting
    _exiting = True


class Memory:
    """Some bytes on *device*, alive as long as this object.

    *data* is the address or the backend's handle; *origin* says for people
    where the memory comes from; *owner* is whatever must live as long.
    `last_use` is the stream of our last work on it, None if there was none.
    """

    __slots__ = ("__weakref__", "data", "device", "last_use", "origin", "owner")

    def __init__(self, device: Device, data: int, origin: str, owner: object = None) -> None:
        self.device = device
        self.data = data
        self.origin = origin
        self.owner = owner
        self.last_use: StreamUse | None = None


class AllocatedMemory(Memory):
    """Memory of a backend, which gets it back: `allocate` fills it.

    The owner exists before the memory does: `list.extend` takes the result of
    the backend from C, so no signal handler can run between the two.
    """

    __slots__ = ("_taken", "backend")

    last_use: StreamUse

    def __init__(
        self, backend: Backend, device: Device, use: StreamUse, origin: str, owner: object = None
    ) -> None:
        self.device = device
        self.data = 0
        self.origin = origin
        self.owner = owner
        self.last_use = use
        self.backend = backend
        self._taken: list[Any] = []

    def allocate(self, nbytes: int, alignment: int) -> None:
        """Take *nbytes* > 0 bytes from the backend."""
        index, stream = self.device.index, self.last_use.handle
        taken = self._taken
        taken.extend(map(self.backend.allocate, [index], [nbytes], [alignment], [stream]))
        data = self.data = taken[0]
        if type(data) is not int or not 0 <= data < 1 << 64:
            self._check_data("allocate")

    def _check_data(self, member: str) -> None:
        """BackendError if what *member* of the backend returned is not an integer for C."""
        data: object = self.data
        if not isinstance(data, int) or isinstance(data, bool) or not 0 <= data < 1 << 64:
            self._taken.clear()  # there is nothing that could be given back
            raise BackendError(
                f"the backend of {self.device} returned {data!r} from {member}: data is an address "
                "or a handle, an integer from 0 to 2**64 - 1 (dlbridge.protocol); report it to "
                "the backend's authors"
            )

    def __del__(self) -> None:
        # Python sets a pending exception aside for __del__; a Python deleter
        # that C calls would lose it.
        if not _exiting and self._taken:
            self.backend.free(self.device.index, self.data, self.last_use.handle)


class HostImportMemory(AllocatedMemory):
    """Host memory that a device uses in place; the backend ends the import with ``free``."""

    __slots__ = ()

    def import_host(
        self, backend: SupportsHostImport, address: int, nbytes: int, readonly: bool
    ) -> int:
        """Import *nbytes* bytes at *address*; their offset in `data`, in bytes."""
        index = self.device.index
        self._taken.extend(map(backend.import_host, [index], [address], [nbytes], [readonly]))
        try:
            self.data, offset = self._taken[0]
        except (TypeError, ValueError):
            self.data, offset = self._taken[0], 0  # refused in the next line
        self._check_data("import_host")
        return int(offset)


class HostViewMemory(Memory):
    """A device's memory as host memory, until this object dies (`SupportsHostView`)."""

    __slots__ = ("_taken", "backend", "stream", "viewed")

    def __init__(
        self, backend: SupportsHostView, viewed: Memory, host: Device, stream: int
    ) -> None:
        super().__init__(host, 0, f"host view of {viewed.device}", viewed)
        self.backend = backend
        self.viewed = viewed
        self.stream = stream
        self._taken: list[int] = []

    def map(self, offset: int, nbytes: int, writable: bool) -> None:
        """Make *nbytes* bytes from *offset* on addressable by the host, at `data`."""
        arguments = (self.viewed.device.index, self.viewed.data, offset, nbytes, writable)
        values = ([argument] for argument in (*arguments, self.stream))
        self._taken.extend(map(self.backend.host_view, *values))
        self.data = self._taken[0]

    def __del__(self) -> None:
        if not _exiting and self._taken:
            viewed = self.viewed
            self.backend.release_host_view(viewed.device.index, viewed.data, self.data, self.stream)
