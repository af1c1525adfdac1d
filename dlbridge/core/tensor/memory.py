"""The owners of a tensor's memory, and when they free it."""

from __future__ import annotations

import atexit
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

from dlbridge.core.implementation_details.finalizers import end_finalizers
from dlbridge.core.implementation_details.handlers import is_cut_at_entry
from dlbridge.core.plugins.failures import fail
from dlbridge.core.plugins.streams import StreamUse
from dlbridge.errors import BackendError
from dlbridge.kit.resources import Owner, Resources, call
from dlbridge.protocol import Span

if TYPE_CHECKING:
    from collections.abc import Callable

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


@atexit.register
def _at_exit() -> None:
    end_finalizers(Owner, Memory)


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

    def __reduce__(self) -> NoReturn:  # a second owner of `data` would free it again
        raise TypeError(
            f"memory of {self.device} can be neither pickled nor copied; send the tensor, which "
            "sends its elements"
        )

    def __del__(self) -> None:
        """Nothing. A handler's exception that waits is raised here, and not in `Owner.__del__`."""


class _BackendResource:
    """What a backend gave: at most one integer, and the member that takes it back."""

    __slots__ = ("backend", "member", "results", "use", "what")

    def __init__(self, backend: object, member: str, what: object, use: StreamUse) -> None:
        self.backend = backend
        self.member = member
        self.what = what
        self.use = use
        self.results: list[Any] = []


def _give_back(resource: _BackendResource) -> bool:
    """Give it back, once: it leaves the list in the call that takes it.

    `map` calls both from C, so no signal handler can run between the two.
    """
    results = resource.results
    if results:
        if type(results[0]) is tuple:  # an import that was cut off: data, offset
            results[0] = results[0][0]
        data = results[0]
        function = getattr(resource.backend, resource.member)
        back = map(function, [resource.what], map(results.pop, [-1]), [resource.use.handle])
        try:
            next(back)
        except BaseException as exc:
            if _is_cut_at_entry(exc):
                results.append(data)
                _give_back(resource)
            raise
    return True


class _BackendResources(Resources[_BackendResource]):
    """A backend says itself what a forked child may give back: all memory of the CPU, for one."""

    def after_fork(self) -> None:
        """Go on."""


_resources = _BackendResources(_give_back)


def _is_cut_at_entry(error: BaseException) -> bool:
    """Whether the function of the backend that was called has not begun."""
    return error.__traceback__ is not None and is_cut_at_entry(error.__traceback__.tb_next)


class AllocatedMemory(Memory):
    """Memory of a backend, which this object frees; `allocate` fills it.

    The owner exists before the memory does: `call` stores the result of the backend in C, so that
    no signal handler can run between the two (`dlbridge.kit.resources`).
    """

    __slots__ = ("_owner", "backend")

    def _set_last_use(self, use: StreamUse) -> None:
        self._owner.resource.use = use

    # It is known to the free.
    last_use: StreamUse = property(attrgetter("_owner.resource.use"), _set_last_use)  # type: ignore[assignment]

    def __init__(
        self, backend: Backend, device: Device, use: StreamUse, origin: str, owner: object = None
    ) -> None:
        self.device = device
        self.data = 0
        self.origin = origin
        self.owner = owner
        self.backend: Backend = backend
        self._owner = Owner(_resources, _BackendResource(backend, "free", device.index, use))

    def allocate(self, nbytes: int, alignment: int) -> None:
        """Take *nbytes* > 0 bytes from the backend."""
        index, stream = self.device.index, self.last_use.handle
        taken = self._owner.resource.results
        try:
            call(taken, self.backend.allocate, index, nbytes, alignment, stream)
        except Exception as exc:
            fail(exc, self.device.name, "allocate")
        data = self.data = taken[0]
        if type(data) is not int or not 0 < data < 1 << 64:
            self._check_data("allocate")

    def allocate_from_host(
        self, backend: SupportsAllocateFromHost, source: memoryview, alignment: int
    ) -> bool:
        """Take memory that holds *source* from the backend; False if it gives none in one step."""
        index, stream, taken = self.device.index, self.last_use.handle, self._owner.resource.results
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
        taken = self._owner.resource.results
        try:
            self.data = call(taken, backend.allocate_exportable, index, nbytes, stream)
        except Exception as exc:
            fail(exc, self.device.name, "allocate_exportable")
        self._check_data("allocate_exportable")

    def _check_data(self, member: str) -> None:
        """BackendError if what *member* of the backend returned is not an integer for C."""
        data: object = self.data
        if not isinstance(data, int) or isinstance(data, bool) or not 0 < data < 1 << 64:
            self._owner.resource.results.clear()  # there is nothing that could be given back
            raise BackendError(
                f"the backend of {self.device} returned {data!r} from {member}: data is an address "
                "or a handle, an integer from 1 to 2**64 - 1 (dlbridge.protocol); report it to "
                "the backend's authors"
            )


class ImportedMemory(AllocatedMemory):
    """Memory of another driver that a device uses; the backend ends the import with ``free``."""

    __slots__ = ()

    def import_memory(self, backend: SupportsMemoryImport, exported: ExportedMemory) -> int:
        """Import the memory that *exported* is in; the offset of its bytes in `data`."""
        return self._take("import_memory", backend.import_memory, exported)

    def _take(self, member: str, function: Callable[..., tuple[int, int]], *arguments: Any) -> int:
        """Take the result of *function*, the *member* of the backend; the offset in it."""
        taken = self._owner.resource.results
        try:
            call(taken, function, self.device.index, *arguments)
        except Exception as exc:
            fail(exc, self.device.name, member)
        try:
            self.data, offset = taken[0]
        except (TypeError, ValueError):
            self.data, offset = taken[0], 0  # refused in the next line
        self._check_data(member)
        taken[0] = self.data
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
        offset = self._take("import_host", backend.import_host, address, nbytes, readonly)
        self.host_start = address - offset
        return offset


class HostViewMemory(Memory):
    """A device's memory as host memory, until this object dies (`SupportsHostView`)."""

    __slots__ = ("_owner", "backend", "span", "stream", "viewed")

    span: Span

    def __init__(
        self, backend: SupportsHostView, viewed: Memory, host: Device, stream: int
    ) -> None:
        super().__init__(host, 0, f"host view of {viewed.device}", viewed)
        self.backend: SupportsHostView = backend
        self.viewed: Memory = viewed
        self.stream: int = stream

    def map(self, offset: int, nbytes: int, writable: bool) -> None:
        """Make *nbytes* bytes from *offset* on addressable by the host, at `data`."""
        span = self.span = Span(self.viewed.device.index, self.viewed.data, offset, nbytes)
        resource = _BackendResource(
            self.backend, "release_host_view", span, StreamUse(handle=self.stream)
        )
        self._owner = Owner(_resources, resource)
        try:
            self.data = call(resource.results, self.backend.host_view, span, writable, self.stream)
        except Exception as exc:
            fail(exc, self.viewed.device.name, "host_view")
