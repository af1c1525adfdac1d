"""The members of a backend, as calls that need no argument and always give the same."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from dlbridge.protocol import (
    NativeArray,
    SupportsDeviceInfo,
    SupportsForeignData,
    SupportsMemoryExport,
    SupportsNative,
    SupportsStreams,
    SupportsTrim,
)

from .backend_base import OPERATIONS, PAGES, RUNS, DeviceUnderTest, random_bytes

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

CONSTANT = ("name", "kind", "uuid", "pci", "memory", "driver")
"""What `device_info` says of a device as long as the process lives."""


class Members:
    """One memory that the members read, one that they write to, and pages of the host."""

    def __init__(self, device: DeviceUnderTest, address: int, pages: mmap.mmap) -> None:
        self.device, self.address, self.pages = device, address, pages
        self.content = random_bytes(PAGES)
        self.source, self.target = device.filled(self.content), device.allocate(PAGES)
        self.spans = device.span(self.target, 0, PAGES), device.span(self.source, 0, PAGES)
        self.host = bytearray(PAGES)

    def operate(self, name: str) -> object:
        """One of the `OPERATIONS`."""
        device = self.device
        device.write(self.target, 0, bytes(PAGES))
        self.host[:] = self.content[::-1]
        device.run(name, *self.spans, memoryview(self.host), RUNS)
        device.synchronize()
        return device.read(self.target, 0, PAGES), bytes(self.host)

    def view(self) -> object:
        """A host view that is written to."""
        at = self.device.host_view(self.spans[1], writable=True)
        seen = ctypes.string_at(at, PAGES)
        ctypes.memmove(at, seen, PAGES)
        self.device.release_host_view(at)
        return seen

    def use_in_place(self) -> object:
        """An import of the host's pages."""
        data, offset = self.device.import_host(self.address, PAGES)
        seen = self.device.read(data, offset, PAGES)
        self.device.free(data)
        self.device.synchronize()
        return seen == bytes(self.pages)

    def export(self) -> object:
        """Memory for another driver, and what that driver would do."""
        device, backend = self.device, self.device.backend
        made = backend.allocate_exportable(device.device_id, PAGES, device.stream)
        exported = backend.export_memory(device.device_id, made.data)
        data, offset = device.import_memory(exported)
        device.write(data, offset, self.content)
        device.free(data)
        device.synchronize()
        return device.read(made.data, 0, PAGES)

    def native(self) -> object:
        """An object of the ecosystem, and what it describes."""
        backend, named = self.device.backend, (self.device.device_id, self.source, 0, "uint8")
        array = NativeArray(*named, (PAGES,), None, readonly=False, owner=self)
        again = backend.from_native(backend.to_native(array))
        return again.data, again.offset, again.dtype, tuple(again.shape)

    def made_with(self) -> object:
        """New memory that is made together with its content."""
        content = self.content[: self.device.backend.content_limit]
        data = self.device.made_with(memoryview(content))
        seen = self.device.read(data, 0, len(content))
        self.device.free(data)
        return seen

    def known(self) -> object:
        """The names of what is known of the device, and what never changes of it."""
        info = self.device.backend.device_info(self.device.device_id)
        return sorted(info), [info.get(name) for name in CONSTANT]

    def found(self) -> object:
        """The device that has the name of this one; None if there are several."""
        backend, here = self.device.backend, self.device.device_id
        with suppress(LookupError):
            return backend.find_device(str(backend.device_info(here)["name"]))
        return None

    def of_a_device(self) -> dict[str, Callable[[], object]]:
        """Those that say something of the device."""
        backend, here = self.device.backend, self.device.device_id
        calls: dict[str, Callable[[], object]] = {}
        if isinstance(backend, SupportsForeignData):
            calls["import_data"] = partial(backend.import_data, here, self.source, "somebody.else")
        if isinstance(backend, SupportsStreams):
            # Its value may be another one: some libraries have a default queue in each thread.
            calls["normalize_stream"] = lambda: type(backend.normalize_stream(here, None))
        if isinstance(backend, SupportsDeviceInfo):
            calls["device_info"], calls["find_device"] = self.known, self.found
        if isinstance(backend, SupportsTrim):
            calls["trim"] = partial(backend.trim, here)
        return calls

    def of_memory(self) -> dict[str, Callable[[], object]]:
        """Those that make something of memory."""
        backend, here = self.device.backend, self.device.device_id
        calls: dict[str, Callable[[], object]] = {}
        if getattr(backend, "content_limit", 0):
            calls["allocate with content"] = self.made_with
        if self.device.can_view(self.source):
            calls["host_view"] = self.view
        if self.device.can_import(self.address):
            calls["import_host"] = self.use_in_place
        if isinstance(backend, SupportsMemoryExport) and not backend.memory_export_refusal(here, 0):
            calls["export_memory"] = self.export
        if isinstance(backend, SupportsNative):
            calls["to_native"] = self.native
        return calls


def each_member(
    device: DeviceUnderTest, address: int, pages: mmap.mmap
) -> dict[str, Callable[[], object]]:
    """The members that the backend has, by name; *pages* of the host are at *address*."""
    members = Members(device, address, pages)
    known = [name for name, needs in OPERATIONS.items() if isinstance(device.backend, needs)]
    operations = {name: partial(members.operate, name) for name in known}
    return {**operations, **members.of_memory(), **members.of_a_device()}
