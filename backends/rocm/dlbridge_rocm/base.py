"""What the two backends share: devices, streams, allocation, descriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from dlbridge.errors import ExchangeError
from dlbridge.protocol import API

from . import info, streams
from .driver import device_count
from .library import ffi

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .memory import Memory

__all__ = ["Base", "address_of"]


class Base:
    """One kind of memory of the HIP runtime; ``data`` is an address."""

    api = API
    device_type: ClassVar[int]
    name: ClassVar[str]

    def __init__(self, memory: Memory) -> None:
        """Open the runtime; BackendUnavailable if there is none, or no device."""
        self._physical = device_count()
        self._memory = memory

    def device_count(self) -> int:
        """The number of devices that HIP_VISIBLE_DEVICES leaves."""
        return self._physical

    def allocate(self, device_id: int, nbytes: int, alignment: int, stream: int) -> int:
        """New memory of *nbytes* bytes, at a multiple of *alignment*."""
        self.check_device(device_id)
        return self._memory.allocate(device_id, nbytes, alignment, stream)

    def free(self, device_id: int, data: int, stream: int) -> None:
        """Give *data* back once the work now on *stream* has passed."""
        self._memory.free(device_id, data, stream)

    def current_stream(self, device_id: int) -> int:
        """0, the default stream: the runtime knows no current one."""
        return streams.DEFAULT

    def synchronize(self, device_id: int, stream: int) -> None:
        """Block until the work on *stream* is done."""
        streams.synchronize(device_id, stream)

    def wait(self, device_id: int, stream: int, on: int) -> None:
        """Make later work on *stream* wait for the work now on *on*, by an event."""
        streams.wait(device_id, stream, on)

    def normalize_stream(self, device_id: int, stream: object) -> int:
        """The handle for what a caller passed as ``stream=``; -1: do not order."""
        return streams.normalize(stream)

    def find_device(self, name: str) -> int:
        """The first device with *name* in its name, its UUID or its PCI address."""
        return info.find_device(name, self.device_count())

    def device_info(self, device_id: int) -> Mapping[str, object]:
        """Name, memory (bytes), UUID, PCI address, driver and more."""
        self.check_device(device_id)
        return info.device_info(device_id)

    def check_device(self, device_id: int) -> None:
        """ExchangeError if there is no such device."""
        count = self.device_count()
        if not 0 <= device_id < count:
            raise ExchangeError(
                f"there is no {self.name}:{device_id}: {count} device"
                f"{'s' if count != 1 else ''} here, counted from 0"
            )


def address_of(view: memoryview) -> int:
    """Where *view* begins, whether or not it is read-only."""
    return int(ffi.cast("uintptr_t", ffi.from_buffer(view)))
