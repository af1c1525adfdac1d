"""A complete backend for pinned memory: there is one device of it, and the host reads it."""

from __future__ import annotations

import ctypes

from dlbridge.protocol import Allocation, PlainAllocation, Span

from .backend import StreamBackend, address_of
from .driver import StreamDriver
from .events import EventPool
from .pinned import PinnedMemory
from .pointers import checked
from .streams import StreamRules

__all__ = ["HostBackend"]


class HostBackend(StreamBackend):
    """Pinned memory. There is one device of it, 0 (``dlpack.h``); every GPU can use it.

    Copies and fills are the host's own: they wait for *stream*, and are done on return. Adds
    ``SupportsCopy``, ``SupportsFill``, ``SupportsHostView``, ``SupportsHostImport`` and
    ``SupportsForeignData`` to what `StreamBackend` provides.

    Parameters
    ----------
    driver, rules, events
        As for `StreamBackend`.
    """

    _memory: PinnedMemory
    host_copies_block = True

    def __init__(self, driver: StreamDriver, rules: StreamRules, events: EventPool) -> None:
        super().__init__(driver, rules, PinnedMemory(driver, events, self.name), events)

    def device_count(self) -> int:
        """One: the host."""
        return 1

    def home(self, device_id: int) -> int:
        """The GPU in whose place the memory is made."""
        self.check_device(device_id)
        return self.driver.host_device()

    def copy_from_host(self, target: Span, source: memoryview, stream: int) -> None:
        """Copy the bytes of *source*, once the work on *stream* is done."""
        ctypes.memmove(self._settled(target, stream), address_of(source), target.nbytes)

    def copy_to_host(self, source: Span, into: memoryview, stream: int) -> None:
        """Copy the bytes of *source* to *into*, once the work on *stream* is done."""
        ctypes.memmove(address_of(into), self._settled(source, stream), source.nbytes)

    def copy(self, target: Span, source: Span, stream: int) -> None:
        """Copy *source* to *target*, once the work on *stream* is done."""
        start = self._settled(target, stream)
        self.home(source.device_id)  # refuses one that there is not
        ctypes.memmove(start, source.data + source.offset, target.nbytes)

    def fill(self, target: Span, value: int, stream: int) -> None:
        """Set each byte of *target* to *value*, once the work on *stream* is done."""
        ctypes.memset(self._settled(target, stream), value, target.nbytes)

    def host_view_refusal(self, device_id: int, data: int) -> str:
        """Empty: it is host memory."""
        return ""

    def host_view(self, span: Span, writable: bool, stream: int) -> Allocation:
        """The address itself, once the work on *stream* is done."""
        return PlainAllocation(self._settled(span, stream), span.nbytes, stream)

    def host_import_refusal(self, device_id: int, address: int, nbytes: int, demanded: bool) -> str:
        """Why this memory cannot be page-locked in place; empty if it can, or is already."""
        return self._memory.import_refusal(self.home(device_id), address, nbytes)

    def import_host(
        self, device_id: int, address: int, nbytes: int, readonly: bool, stream: int
    ) -> Allocation:
        """The memory at *address*, page-locked until the allocation is dropped.

        Locking costs more than one copy, so this is for memory that stays.
        """
        home = self.home(device_id)
        return self._memory.import_host(
            home, address, nbytes, readonly, stream or self.driver.default_stream
        )

    def import_data(self, device_id: int, data: int, module: str) -> tuple[int, int]:
        """*data* as it is; ExchangeError if it is not page-locked host memory."""
        checked(self.driver, data, self.home(device_id), self.name, ("host",))
        return device_id, data

    def wait_for_devices(self, device_id: int, stream: int) -> None:
        """Let the work on *stream* finish, before the host touches memory that it may use."""
        self.synchronize(device_id, stream)

    def _settled(self, span: Span, stream: int) -> int:
        """The address of *span*, once the work on *stream* is done."""
        self.wait_for_devices(span.device_id, stream)
        return span.data + span.offset
