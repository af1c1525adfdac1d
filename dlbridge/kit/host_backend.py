"""A complete backend for pinned memory: there is one device of it, and the host reads it."""

from __future__ import annotations

import ctypes

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

    def __init__(self, driver: StreamDriver, rules: StreamRules, events: EventPool) -> None:
        super().__init__(driver, rules, PinnedMemory(driver, events, self.name), events)

    def device_count(self) -> int:
        """One: the host."""
        return 1

    def home(self, device_id: int) -> int:
        """The GPU in whose place the memory is made."""
        self.check_device(device_id)
        return self.driver.host_device()

    def copy_from_host(
        self, device_id: int, data: int, offset: int, source: memoryview, stream: int
    ) -> None:
        """Copy the bytes of *source*, once the work on *stream* is done."""
        self.wait_for_devices(device_id, stream)
        ctypes.memmove(data + offset, address_of(source), source.nbytes)

    def copy_to_host(
        self, device_id: int, data: int, offset: int, into: memoryview, stream: int
    ) -> None:
        """Copy ``len(into)`` bytes to *into*, once the work on *stream* is done."""
        self.wait_for_devices(device_id, stream)
        ctypes.memmove(address_of(into), data + offset, into.nbytes)

    def copy(
        self,
        device_id: int,
        data: int,
        offset: int,
        source_device_id: int,
        source: int,
        source_offset: int,
        nbytes: int,
        stream: int,
    ) -> None:
        """Copy *nbytes*, once the work on *stream* is done; the regions may overlap."""
        self.wait_for_devices(device_id, stream)
        ctypes.memmove(data + offset, source + source_offset, nbytes)

    def fill(
        self, device_id: int, data: int, offset: int, nbytes: int, value: int, stream: int
    ) -> None:
        """Set *nbytes* bytes at *offset* to *value*, once the work on *stream* is done."""
        self.wait_for_devices(device_id, stream)
        ctypes.memset(data + offset, value, nbytes)

    def host_view_refusal(self, device_id: int, data: int) -> str:
        """Empty: it is host memory."""
        return ""

    def host_view(
        self, device_id: int, data: int, offset: int, nbytes: int, writable: bool, stream: int
    ) -> int:
        """The address itself, once the work on *stream* is done."""
        self.wait_for_devices(device_id, stream)
        return data + offset

    def release_host_view(self, device_id: int, data: int, address: int, stream: int) -> None:
        """Nothing to do: it is host memory."""

    def host_import_refusal(self, device_id: int, address: int, nbytes: int) -> str:
        """Why this memory cannot be page-locked in place; empty if it can, or is already."""
        return self._memory.import_refusal(self.home(device_id), address, nbytes)

    def import_host(
        self, device_id: int, address: int, nbytes: int, readonly: bool
    ) -> tuple[int, int]:
        """The page-locked import, and where the address is in it; until ``free``.

        Locking costs more than one copy, so this is for memory that stays.
        """
        return self._memory.import_host(self.home(device_id), address, nbytes, readonly)

    def import_data(self, device_id: int, data: int, module: str) -> tuple[int, int]:
        """*data* as it is; ExchangeError if it is not page-locked host memory."""
        checked(self.driver, data, self.home(device_id), self.name, ("host",))
        return device_id, data

    def wait_for_devices(self, device_id: int, stream: int) -> None:
        """Let the work on *stream* finish, before the host touches memory that it may use."""
        self.synchronize(device_id, stream)
