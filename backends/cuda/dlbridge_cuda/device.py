"""The backend ``cuda``: memory of the GPUs (kDLCUDA)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import native
from .memory import DeviceMemory
from .pointers import checked
from .queued import Queued

if TYPE_CHECKING:
    from dlbridge.protocol import NativeArray

__all__ = ["CUDA"]


class CUDA(Queued):
    """Device memory, from the device's default pool."""

    device_type = 2  # kDLCUDA
    name = "cuda"

    def __init__(self) -> None:
        super().__init__(DeviceMemory())

    def import_data(self, device_id: int, data: int, module: str) -> tuple[int, int]:
        """The device that *data* is really on; ExchangeError if it is no CUDA memory."""
        self.check_device(device_id)
        found = checked(data, device_id, self.name, ("device", "managed", "host"))
        return (found.device_id if found.kind == "device" else device_id), data

    def from_native(self, obj: object) -> NativeArray | None:
        """A cuda.core Buffer or StridedMemoryView on a device, described."""
        return native.from_native(obj)

    def to_native(self, array: NativeArray) -> object:
        """A cuda.core StridedMemoryView over the memory."""
        return native.to_native(array)
