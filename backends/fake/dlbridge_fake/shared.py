"""SupportsHostView and SupportsHostImport: memory that host and device share, on request."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING
from weakref import ref

from dlbridge.errors import ExchangeError
from dlbridge.kit.limits import switch
from dlbridge.kit.resources import AllocationOwner, Resources, do_all, join
from dlbridge.protocol import PlainAllocation

from .memory import FakeMemory, Memory

if TYPE_CHECKING:
    from dlbridge.protocol import Allocation, Span

__all__ = ["SharedMemory"]

IMPORT_ALIGNMENT = 64
"""Bytes: host memory must begin at a multiple of it to be used in place."""


class SharedMemory(Memory):
    """Refused unless ``DLBRIDGE_FAKE_SHARED=1``: so both kinds of device can be simulated."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = switch("DLBRIDGE_FAKE_SHARED")
        self.views: set[ref[PlainAllocation]] = set()
        self.imports: Resources[_Import] = Resources(self._end)

    def host_view_refusal(self, device_id: int, data: int) -> str:
        """Why the host cannot address *data*; empty if the environment allows it."""
        return "" if self.shared else "the host cannot map it (set DLBRIDGE_FAKE_SHARED=1)"

    def host_view(self, span: Span, writable: bool, stream: int) -> Allocation:
        """The address of the bytes, once the work on *stream* is done."""
        device_id, data, _, _ = span
        if refusal := self.host_view_refusal(device_id, data):
            raise ExchangeError(f"ext_dev:{device_id}: no host view of {data:#x}: {refusal}")
        self.stream(device_id, stream).synchronize()
        content = self.bytes_of(span, write=writable)
        view = PlainAllocation(_address(content), span.nbytes, stream, owner=content)
        join(self.views, view)
        return view

    def host_import_refusal(self, device_id: int, address: int, nbytes: int, demanded: bool) -> str:
        """Why the memory cannot be used in place: not shared, or not aligned."""
        if not self.shared:
            return "the device cannot reach host memory (set DLBRIDGE_FAKE_SHARED=1)"
        if address % IMPORT_ALIGNMENT:
            return (
                f"its address {address:#x} is not a multiple of {IMPORT_ALIGNMENT} bytes; "
                "memory of dlbridge.empty(shape, dtype).numpy() needs no copy"
            )
        return ""

    def import_host(
        self, device_id: int, address: int, nbytes: int, readonly: bool, stream: int
    ) -> Allocation:
        """A new handle for the host's bytes; its end waits for the work on its stream."""
        if refusal := self.host_import_refusal(device_id, address, nbytes, True):
            raise ExchangeError(f"ext_dev:{device_id}: cannot import host memory: {refusal}")
        self.stream(device_id, 0)  # ExchangeError if there is no such device
        content = memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")
        if readonly:
            content = content.toreadonly()
        imported = AllocationOwner(self.imports, _Import(device_id, stream))
        memory = self.enter(FakeMemory(next(self.handles), nbytes, device_id, content))
        imported.resource.memory, imported.data, imported.nbytes = memory, memory.data, nbytes
        return imported

    def _end(self, imported: _Import) -> bool:
        """Let the queued work have the host's bytes for the last time."""
        if imported.memory is not None:
            do_all(partial(self.finish, imported.device_id), [imported.stream])
        return True


class _Import:
    """Where host memory is imported, and the stream of the last work on it."""

    memory: FakeMemory | None = None

    def __init__(self, device_id: int, stream: int) -> None:
        self.device_id = device_id
        self.stream = stream


def _address(content: memoryview) -> int:
    """The address of *content*; by numpy, as ctypes' from_buffer refuses read-only memory."""
    import numpy as np

    address: int = np.frombuffer(content, "u1").ctypes.data
    return address
