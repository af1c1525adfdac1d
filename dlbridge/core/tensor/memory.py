"""The owners of a tensor's memory, and when they free it."""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Any

from dlbridge.core.implementation_details.finalizers import end_finalizers
from dlbridge.core.implementation_details.handlers import is_cut_at_entry
from dlbridge.core.plugins.failures import fail
from dlbridge.errors import BackendError
from dlbridge.protocol import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dlbridge.core.plugins.streams import StreamUse
    from dlbridge.core.values.devices import Device
    from dlbridge.protocol import (
        Backend,
        ExportedMemory,
        SupportsAllocateExportable,
        SupportsAllocateFromHost,
        SupportsHostImport,
        SupportsHostView,
        SupportsMemoryImport,
    )

__all__ = ["AllocatedMemory", "HostImportMemory", "HostViewMemory", "ImportedMemory", "Memory"]

_exiting = False


@atexit.register
def _at_exit() -> None:
    # Drivers may be unloaded before the last tensor is dropped; the system
    # reclaims the memory of both.
    global _exiting
    _exiting = True
    end_finalizers(AllocatedMemory, _Taken, HostViewMemory)


class Memory:
    """Some bytes on *device*, which exist as long as this object.

    *data* is the address or the backend's handle; *origin* says in words where the
    memory comes from; *owner* is an object that this one keeps alive. `last_use` is
    the stream of our last work on it, None before the first.
    """

    __slots__ = ("__weakref__", "data", "device", "last_use", "origin", "owner")

    def __init__(self, device: Device, data: int, origin: str, owner: object = None) -> None:
        self.device: Device = device
        self.data: int = data
        self.origin: str = origin
        self.owner: object = owner
        self.last_use: StreamUse | None = None


class _Taken(list[Any]):
    """The result of a backend's ``allocate``; given back when this is freed, or before."""

    __slots__ = ("backend", "memory_index", "use")

    backend: Backend
    memory_index: int
    use: StreamUse

    def give_back(self) -> None:
        """Give the memory back, once: it leaves the list in the call that frees it.

        `map` calls both from C, so no signal handler can run between the two.
        """
        if type(self[0]) is tuple:  # an import that a signal handler has cut off: data, offset
            self[0] = self[0][0]
        data = self[0]
        free = map(self.backend.free, [self.memory_index], map(self.pop, [-1]), [self.use.handle])
        try:
            next(free)
        except BaseException as exc:
            if not _is_cut_at_entry(exc):
                raise
            self.backend.free(self.memory_index, data, self.use.handle)
            raise

    def __del__(self) -> None:
        if self and not _exiting:
            self.give_back()


def _is_cut_at_entry(error: BaseException) -> bool:
    """Whether the function of the backend that was called has not begun."""
    return error.__traceback__ is not None and is_cut_at_entry(error.__traceback__.tb_next)


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
        self.backend: Backend = backend
        self._taken = taken = _Taken()
        taken.backend, taken.memory_index, taken.use = backend, device.index, use

    def allocate(self, nbytes: int, alignment: int) -> None:
        """Take *nbytes* > 0 bytes from the backend."""
        index, stream = self.device.index, self.last_use.handle
        taken = self._taken
        try:
            taken.extend(map(self.backend.allocate, [index], [nbytes], [alignment], [stream]))
        except Exception as exc:
            fail(exc, self.device.name, "allocate")
        data = self.data = taken[0]
        if type(data) is not int or not 0 < data < 1 << 64:
            self._check_data("allocate")

    def allocate_from_host(
        self, backend: SupportsAllocateFromHost, source: memoryview, alignment: int
    ) -> bool:
        """Take memory that holds *source* from the backend; False if it gives none in one step."""
        index, stream, taken = self.device.index, self.last_use.handle, self._taken
        try:
            made = map(backend.allocate_from_host, [index], [source], [alignment], [stream])
            taken.extend(filter(None, made))
        except Exception as exc:
            fail(exc, self.device.name, "allocate_from_host")
        if not taken:
            return False
        data = self.data = taken[0]
        if type(data) is not int or not 0 < data < 1 << 64:
            self._check_data("allocate_from_host")
        return True

    def allocate_exportable(self, backend: SupportsAllocateExportable, nbytes: int) -> None:
        """Take *nbytes* > 0 bytes that other processes can have from the backend."""
        index, stream = self.device.index, self.last_use.handle
        try:
            self._taken.extend(map(backend.allocate_exportable, [index], [nbytes], [stream]))
        except Exception as exc:
            fail(exc, self.device.name, "allocate_exportable")
        self.data = self._taken[0]
        self._check_data("allocate_exportable")

    def _check_data(self, member: str) -> None:
        """BackendError if what *member* of the backend returned is not an integer for C."""
        data: object = self.data
        if not isinstance(data, int) or isinstance(data, bool) or not 0 < data < 1 << 64:
            self._taken.clear()  # there is nothing that could be given back
            raise BackendError(
                f"the backend of {self.device} returned {data!r} from {member}: data is an address "
                "or a handle, an integer from 1 to 2**64 - 1 (dlbridge.protocol); report it to "
                "the backend's authors"
            )

    def __del__(self) -> None:
        # Python sets a pending exception aside for __del__; a Python deleter
        # that C calls would lose it.
        taken = getattr(self, "_taken", None)  # none if a signal handler cut __init__ off
        if taken and not _exiting:
            taken.use = self.last_use
            taken.give_back()


class ImportedMemory(AllocatedMemory):
    """Memory of another driver that a device uses; the backend ends the import with ``free``."""

    __slots__ = ()

    def import_memory(self, backend: SupportsMemoryImport, exported: ExportedMemory) -> int:
        """Import the memory that *exported* is in; the offset of its bytes in `data`."""
        index = self.device.index
        return self._take("import_memory", map(backend.import_memory, [index], [exported]))

    def _take(self, member: str, made: Iterator[tuple[int, int]]) -> int:
        """Take the result of *member* of the backend, which *made* calls; the offset in it."""
        try:
            self._taken.extend(made)
        except Exception as exc:
            fail(exc, self.device.name, member)
        try:
            self.data, offset = self._taken[0]
        except (TypeError, ValueError):
            self.data, offset = self._taken[0], 0  # refused in the next line
        self._check_data(member)
        self._taken[0] = self.data
        return int(offset)


class HostImportMemory(ImportedMemory):
    """Host memory that a device uses in place; the backend ends the import with ``free``.

    *host_start* is the address of the host for the first byte of `data`.
    """

    __slots__ = ("host_start",)

    host_start: int

    def import_host(
        self, backend: SupportsHostImport, address: int, nbytes: int, readonly: bool
    ) -> int:
        """Import *nbytes* bytes at *address*; their offset in `data`, in bytes."""
        index = self.device.index
        made = map(backend.import_host, [index], [address], [nbytes], [readonly])
        offset = self._take("import_host", made)
        self.host_start = address - offset
        return offset


class _TakenView(list[int]):
    """The address of a host view; given back when this dies, or before."""

    __slots__ = ("view",)

    view: tuple[SupportsHostView, Span, int]

    def give_back(self) -> None:
        """Release the view, once, as `_Taken.give_back` does."""
        backend, span, stream = self.view
        address = self[0]
        release = map(backend.release_host_view, [span], map(self.pop, [-1]), [stream])
        try:
            next(release)
        except BaseException as exc:
            if not _is_cut_at_entry(exc):
                raise
            backend.release_host_view(span, address, stream)
            raise

    def __del__(self) -> None:
        if self and not _exiting:
            self.give_back()


class HostViewMemory(Memory):
    """A device's memory as host memory, until this object dies (`SupportsHostView`)."""

    __slots__ = ("_taken", "backend", "span", "stream", "viewed")

    span: Span

    def __init__(
        self, backend: SupportsHostView, viewed: Memory, host: Device, stream: int
    ) -> None:
        super().__init__(host, 0, f"host view of {viewed.device}", viewed)
        self.backend: SupportsHostView = backend
        self.viewed: Memory = viewed
        self.stream: int = stream
        self._taken = _TakenView()

    def map(self, offset: int, nbytes: int, writable: bool) -> None:
        """Make *nbytes* bytes from *offset* on addressable by the host, at `data`."""
        span = self.span = Span(self.viewed.device.index, self.viewed.data, offset, nbytes)
        self._taken.view = self.backend, span, self.stream
        try:
            self._taken.extend(map(self.backend.host_view, [span], [writable], [self.stream]))
        except Exception as exc:
            fail(exc, self.viewed.device.name, "host_view")
        self.data = self._taken[0]

    def __del__(self) -> None:
        taken = getattr(self, "_taken", None)  # none if a signal handler cut __init__ off
        if taken and not _exiting:
            taken.give_back()
