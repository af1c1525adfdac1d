"""The backend ``rocm_host``: page-locked host memory that GPUs reach (kDLROCMHost)."""

from __future__ import annotations

import ctypes

from . import streams
from .base import Base, address_of
from .memory import PinnedMemory
from .pointers import checked

__all__ = ["ROCMHost"]


class ROCMHost(Base):
    """Pinned memory. There is one device of it, 0 (``dlpack.h``); every GPU can use it.

    Copies and fills are the host's own: they wait for *stream*, and are done
    on return.
    """

    device_type = 11  # kDLROCMHost
    name = "rocm_host"
    _memory: PinnedMemory

    def __init__(self) -> None:
        super().__init__(PinnedMemory())

    def device_count(self) -> int:
        """One: the host."""
        return 1

    def copy_from_host(
        self, device_id: int, data: int, offset: int, source: memoryview, stream: int
    ) -> None:
        """Copy the bytes of *source*, once the work on *stream* is done."""
        wait_for_devices(device_id, stream)
        ctypes.memmove(data + offset, address_of(source), source.nbytes)

    def copy_to_host(
        self, device_id: int, data: int, offset: int, into: memoryview, stream: int
    ) -> None:
        """Copy ``len(into)`` bytes to *into*, once the work on *stream* is done."""
        wait_for_devices(device_id, stream)
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
        wait_for_devices(device_id, stream)
        ctypes.memmove(data + offset, source + source_offset, nbytes)

    def fill(
        self, device_id: int, data: int, offset: int, nbytes: int, value: int, stream: int
    ) -> None:
        """Set *nbytes* bytes at *offset* to *value*, once the work on *stream* is done."""
        wait_for_devices(device_id, stream)
        ctypes.memset(data + offset, value, nbytes)

    def host_view_refusal(self, device_id: int, data: int) -> str:
        """Empty: it is host memory."""
        return ""

    def host_view(
        self, device_id: int, data: int, offset: int, nbytes: int, writable: bool, stream: int
    ) -> int:
        """The address itself, once the work on *stream* is done."""
        wait_for_devices(device_id, stream)
        return data + offset

    def release_host_view(self, device_id: int, data: int, address: int, stream: int) -> None:
        """Nothing to do: it is host memory."""

    def host_import_refusal(self, device_id: int, address: int, nbytes: int) -> str:
        """Why this memory cannot be page-locked in place; empty if it can, or is already."""
        return self._memory.borrow_refusal(address, nbytes)

    def import_host(
        self, device_id: int, address: int, nbytes: int, readonly: bool
    ) -> tuple[int, int]:
        """The page-locked import, and where the address is in it; until ``free``.

        Locking costs more than one copy, so this is for memory that stays.
        """
        self.check_device(device_id)
        return self._memory.borrow(device_id, address, nbytes)

    def import_data(self, device_id: int, data: int, module: str) -> tuple[int, int]:
        """*data* as it is; ExchangeError if it is not page-locked host memory."""
        self.check_device(device_id)
        checked(data, device_id, self.name, ("host",))
        return device_id, data


def wait_for_devices(device_id: int, stream: int) -> None:
    """Let the work on *stream* finish, before the host touches memory that it may use."""
    streams.synchronize(device_id, stream)
