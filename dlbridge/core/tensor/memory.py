"""The owners of a tensor's memory, and when they free it."""

from __future__ import annotations

import atexit
from collections import deque
from typing import TYPE_CHECKING, Any

from dlbridge.errors import BackendError

if TYPE_CHECKING:
    from types import TracebackType

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
    """Some bytes on *device*, which exist as long as this object.

    *data* is the address or the backend's handle; *origin* says for people where
    the memory comes from; *owner* is the object that must exist as long. `last_use`
    is the stream of our last work on it, None before the first.
    """

    __slots__ = ("__weakref__", "data", "device", "last_use", "origin", "owner")

    def __init__(self, device: Device, data: int, origin: str, owner: object = None) -> None:
        self.device = device
        self.data = data
        self.origin = origin
        self.owner = owner
        self.last_use: StreamUse | None = None


class _Taken(list[Any]):
    """The result of a backend's ``allocate``; given back when this dies, or before."""

    __slots__ = ("backend", "memory_index", "use")

    backend: Backend
    memory_index: int
    use: StreamUse

    def give_back(self) -> None:
        """Give the memory back, once: it leaves the list in the call that frees it.

        `map` calls both from C, so no signal handler can run between the two.
        """
        data = self[0]
        free = map(self.backend.free, [self.memory_index], map(self.pop, [-1]), [self.use.handle])
        try:
            deque(free, maxlen=0)
        except BaseException as exc:
            if not _is_cut_at_entry(exc.__traceback__):
                raise
            self.backend.free(self.memory_index, data, self.use.handle)
            raise

    def __del__(self) -> None:
        if self and not _exiting:
            self.give_back()


def _is_cut_at_entry(traceback: TracebackType | None) -> bool:
    """Whether the exception came before the first statement of the function that was called."""
    called = traceback.tb_next if traceback is not None else None
    if called is None:
        return False
    # The handler's own frame, if it has one, comes after that of the function.
    return called.tb_lineno == called.tb_frame.f_code.co_firstlineno


class AllocatedMemory(Memory):
    """Memory of a backend, which this object frees; `allocate` fills it.

    The owner exists before the memory does: `list.extend` takes the result of
    the backend in C, so that no signal handler can run between the two. The
    exception of a signal handler may come at the first instruction of a
    ``__del__``, and Python only prints it; then the list has a ``__del__`` too.
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
        self._taken = taken = _Taken()
        taken.backend, taken.memory_index, taken.use = backend, device.index, use

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
            self._taken.use = self.last_use
            self._taken.give_back()


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
        self._taken[0] = self.data
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
