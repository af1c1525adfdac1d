"""Copies and fills that are queued on a stream: device and managed memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import host_copies
from .base import Base, address_of
from .capture import refuse_capture, refuse_disturbing
from .contexts import attribute, current, primary
from .copies import Side, copy, copy_between_devices, copy_region
from .driver import call
from .streams import handle

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Queued"]


class Queued(Base):
    """Memory that the device's own engines copy and fill, in the order of a stream."""

    max_strided_ndim = 2

    def copy_from_host(
        self, device_id: int, data: int, offset: int, source: memoryview, stream: int
    ) -> None:
        """Copy the bytes of *source*; pageable memory through pinned chunks."""
        host_copies.from_host(
            device_id, data + offset, address_of(source), source.nbytes, handle(stream)
        )

    def copy_to_host(
        self, device_id: int, data: int, offset: int, into: memoryview, stream: int
    ) -> None:
        """Copy ``len(into)`` bytes to *into*; they are there after ``synchronize``."""
        host_copies.to_host(device_id, address_of(into), data + offset, into.nbytes, handle(stream))

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
        target, source, stream = data + offset, source + source_offset, handle(stream)
        with current(primary(device_id)):
            refuse_disturbing(stream)
            if device_id == source_device_id:
                copy(target, source, nbytes, stream)
            else:
                copy_between_devices(device_id, target, source_device_id, source, nbytes, stream)

    def fill(
        self, device_id: int, data: int, offset: int, nbytes: int, value: int, stream: int
    ) -> None:
        """Set *nbytes* bytes at *offset* to *value*."""
        stream = handle(stream)
        with current(primary(device_id)):
            refuse_disturbing(stream)
            call("cuMemsetD8Async", data + offset, value, nbytes, stream)

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
        target = Side(data + offset, tuple(strides), on_host=False)
        origin = Side(source + source_offset, tuple(source_strides), on_host=False)
        self._copy_region(device_id, target, origin, shape, run_nbytes, handle(stream))

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
        """Copy a region of host memory; the driver stages it if it is pageable."""
        target = Side(data + offset, tuple(strides), on_host=False)
        origin = Side(address_of(source), tuple(source_strides), on_host=True)
        self._copy_region(device_id, target, origin, shape, run_nbytes, handle(stream))

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
        target = Side(address_of(into), tuple(into_strides), on_host=True)
        origin = Side(data + offset, tuple(strides), on_host=False)
        self._copy_region(device_id, target, origin, shape, run_nbytes, handle(stream))

    def _copy_region(
        self,
        device_id: int,
        target: Side,
        source: Side,
        shape: Sequence[int],
        run_nbytes: int,
        stream: int,
    ) -> None:
        with current(primary(device_id)):
            if target.on_host or source.on_host:
                refuse_capture(stream, "copied to or from the host")
            refuse_disturbing(stream)
            max_pitch = attribute(device_id, "MAX_PITCH")
            copy_region(target, source, shape, run_nbytes, stream, max_pitch)
