"""The backend ``rocm``: memory of the GPUs (kDLROCM)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import Base, address_of
from .capture import refuse_capture, refuse_disturbing
from .copies import Side, copy, copy_between_devices, copy_region
from .devices import current
from .driver import call
from .memory import DeviceMemory
from .pointers import checked
from .streams import existing

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ROCM"]


class ROCM(Base):
    """Device memory; copies and fills are queued on a stream."""

    device_type = 10  # kDLROCM
    name = "rocm"
    max_strided_ndim = 2

    def __init__(self) -> None:
        super().__init__(DeviceMemory())

    def import_data(self, device_id: int, data: int, module: str) -> tuple[int, int]:
        """The device that *data* is really on; ExchangeError if HIP does not know it.

        Managed and pinned memory pass too: the GPU reaches them, and DLPack
        has no name for HIP's managed memory.
        """
        self.check_device(device_id)
        found = checked(data, device_id, self.name, ("device", "managed", "host"))
        return (found.device_id if found.kind == "device" else device_id), data

    def copy_from_host(
        self, device_id: int, data: int, offset: int, source: memoryview, stream: int
    ) -> None:
        """Copy the bytes of *source*, which may be read until ``synchronize``."""
        self._copy_host(device_id, data + offset, address_of(source), source.nbytes, stream)

    def copy_to_host(
        self, device_id: int, data: int, offset: int, into: memoryview, stream: int
    ) -> None:
        """Copy ``len(into)`` bytes to *into*; they are there after ``synchronize``."""
        self._copy_host(device_id, address_of(into), data + offset, into.nbytes, stream)

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
        """Copy on *stream* of *device_id*, directly between devices where they allow it."""
        self.check_device(source_device_id)
        target, source = data + offset, source + source_offset
        with current(device_id):
            existing(stream, device_id)
            refuse_disturbing(stream)
            if device_id == source_device_id:
                copy(target, source, nbytes, stream)
            else:
                copy_between_devices(device_id, target, source_device_id, source, nbytes, stream)

    def fill(
        self, device_id: int, data: int, offset: int, nbytes: int, value: int, stream: int
    ) -> None:
        """Set *nbytes* bytes at *offset* to *value*."""
        with current(device_id):
            existing(stream, device_id)
            refuse_disturbing(stream)
            call("hipMemsetAsync", data + offset, value, nbytes, stream)

    def copy_strided(
        self,
        device_id: int,
        data: int,
        offset: int,
        strides: Sequence[int],
        source: int,
        source_offset: int,
        source_strides: Sequence[int],
        shape: Sequence[int],
        run_nbytes: int,
        stream: int,
    ) -> None:
        """Copy a region inside one device."""
        target = Side(data + offset, tuple(strides))
        origin = Side(source + source_offset, tuple(source_strides))
        with current(device_id):
            existing(stream, device_id)
            refuse_disturbing(stream)
            copy_region(device_id, target, origin, shape, run_nbytes, stream)

    def copy_strided_from_host(
        self,
        device_id: int,
        data: int,
        offset: int,
        strides: Sequence[int],
        source: memoryview,
        source_strides: Sequence[int],
        shape: Sequence[int],
        run_nbytes: int,
        stream: int,
    ) -> None:
        """Copy a region of host memory."""
        target = Side(data + offset, tuple(strides))
        origin = Side(address_of(source), tuple(source_strides))
        with current(device_id):
            existing(stream, device_id)
            refuse_capture(stream, "copied from the host")  # a replay would read it again
            copy_region(device_id, target, origin, shape, run_nbytes, stream)

    def copy_strided_to_host(
        self,
        device_id: int,
        data: int,
        offset: int,
        strides: Sequence[int],
        into: memoryview,
        into_strides: Sequence[int],
        shape: Sequence[int],
        run_nbytes: int,
        stream: int,
    ) -> None:
        """Copy a region to host memory; it is there after ``synchronize``."""
        target = Side(address_of(into), tuple(into_strides))
        origin = Side(data + offset, tuple(strides))
        with current(device_id):
            existing(stream, device_id)
            refuse_capture(stream, "copied to the host")  # a replay would write it again
            copy_region(device_id, target, origin, shape, run_nbytes, stream)

    def _copy_host(
        self, device_id: int, target: int, source: int, nbytes: int, stream: int
    ) -> None:
        with current(device_id):
            existing(stream, device_id)
            refuse_capture(stream, "copied from or to the host")  # a replay would do it again
            copy(target, source, nbytes, stream)
