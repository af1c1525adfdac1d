"""SupportsHostView and SupportsHostImport: memory that host and device share, on request."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

from dlbridge.errors import ExchangeError

from .memory import Memory

if TYPE_CHECKING:
    from dlbridge.protocol import Span

__all__ = ["SharedMemory"]

IMPORT_ALIGNMENT = 64
"""Bytes: host memory must begin at a multiple of it to be used in place."""


class SharedMemory(Memory):
    """Refused unless ``DLBRIDGE_FAKE_SHARED=1``: so both kinds of device can be simulated."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = os.environ.get("DLBRIDGE_FAKE_SHARED") == "1"
        self.views: list[tuple[int, int]] = []  # data, address

    def host_view_refusal(self, device_id: int, data: int) -> str:
        """Why the host cannot address *data*; empty if the environment allows it."""
        return "" if self.shared else "the host cannot map it (set DLBRIDGE_FAKE_SHARED=1)"

    def host_view(self, span: Span, writable: bool, stream: int) -> int:
        """The address of the bytes, once the work on *stream* is done."""
        device_id, data, _, _ = span
        if refusal := self.host_view_refusal(device_id, data):
            raise ExchangeError(f"ext_dev:{device_id}: no host view of {data:#x}: {refusal}")
        self.stream(device_id, stream).synchronize()
        content = self.bytes_of(span, write=writable)
        address = _address(content)
        self.views.append((data, address))
        return address

    def release_host_view(self, span: Span, address: int, stream: int) -> None:
        """Count it; the host wrote to the device's memory itself."""
        self.views.remove((span.data, address))

    def host_import_refusal(self, device_id: int, address: int, nbytes: int) -> str:
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
        self, device_id: int, address: int, nbytes: int, readonly: bool
    ) -> tuple[int, int]:
        """A new handle for the host's bytes."""
        if refusal := self.host_import_refusal(device_id, address, nbytes):
            raise ExchangeError(f"ext_dev:{device_id}: cannot import host memory: {refusal}")
        self.stream(device_id, 0)  # ExchangeError if there is no such device
        content = memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")
        if readonly:
            content = content.toreadonly()
        data = self.new_handle()
        self.table[data] = device_id, content
        return data, 0


def _address(content: memoryview) -> int:
    """The address of *content*; by numpy, as ctypes' from_buffer refuses read-only memory."""
    import numpy as np

    address: int = np.frombuffer(content, "u1").ctypes.data
    return address
