"""Copies between two devices of one backend, where the library has no call for them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from dlbridge.errors import DeviceMemoryError
from dlbridge.protocol import Facts, Span

__all__ = ["ThroughHost"]


class ThroughHost(ABC, Facts):
    """``SupportsCopy``: inside a device by `copy_inside`, between two through host memory.

    All bytes of one copy are in host memory at once.
    """

    @abstractmethod
    def copy_inside(self, target: Span, source: Span, stream: int) -> None:
        """Copy *source* to *target*, which is on the same device and does not overlap it."""

    @abstractmethod
    def copy_from_host(self, target: Span, source: memoryview, stream: int) -> None:
        """Copy from the host (`dlbridge.protocol.Backend`)."""

    @abstractmethod
    def copy_to_host(self, source: Span, into: memoryview, stream: int) -> None:
        """Copy to the host (`dlbridge.protocol.Backend`)."""

    @abstractmethod
    def synchronize(self, device_id: int, stream: int) -> None:
        """Block until the work on *stream* is done; not called with ``host_copies_block``."""

    def copy(self, target: Span, source: Span, stream: int) -> None:
        """Copy on *stream* of the target's device.

        Raises
        ------
        dlbridge.errors.DeviceMemoryError
            If the host has no room for the bytes on their way.
        """
        if target.device_id == source.device_id:
            self.copy_inside(target, source, stream)
            return
        try:
            host = memoryview(bytearray(source.nbytes))
        except MemoryError as exc:
            raise DeviceMemoryError(
                f"no room in host memory for the {source.nbytes} bytes on their way between "
                "two devices; copy in smaller pieces"
            ) from exc
        self.copy_to_host(source, host, 0)  # dlbridge has waited for all work on that device
        if not self.host_copies_block:
            self.synchronize(source.device_id, 0)
        self.copy_from_host(target, host, stream)
        if not self.host_copies_block:  # *host* is read until then
            self.synchronize(target.device_id, stream)
