"""A complete backend for device memory: copies and fills are queued on a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .backend import StreamBackend, address_of
from .capture import refuse_capture, refuse_disturbing
from .driver import StreamDriver
from .events import EventPool
from .host_copies import HostCopies
from .memory import Memory
from .pointers import checked
from .regions import Side, copy_region
from .streams import StreamRules

__all__ = ["DeviceBackend"]


class DeviceBackend(StreamBackend):
    """Memory that the device's own engines copy and fill, in the order of a stream.

    Adds ``SupportsCopy``, ``SupportsStridedCopy``, ``SupportsFill`` and ``SupportsForeignData``
    to what `StreamBackend` provides.

    Parameters
    ----------
    driver, rules, memory, events
        As for `StreamBackend`.
    host_copies : HostCopies
        How bytes come from and go to the host.
    """

    max_strided_ndim = 2
    kinds: tuple[str, ...] = ("device", "managed", "host")
    """Kinds of memory (`driver.Location`) that may be imported under this device's name."""

    def __init__(
        self,
        driver: StreamDriver,
        rules: StreamRules,
        memory: Memory,
        events: EventPool,
        host_copies: HostCopies,
    ) -> None:
        super().__init__(driver, rules, memory, events)
        self._host_copies = host_copies

    def import_data(self, device_id: int, data: int, module: str) -> tuple[int, int]:
        """The device that *data* is really on; ExchangeError if the label is wrong."""
        home = self.home(device_id)
        found = checked(self.driver, data, home, self.name, self.kinds)
        return (found.device_id if found.kind == "device" else device_id), data

    def copy_from_host(
        self, device_id: int, data: int, offset: int, source: memoryview, stream: int
    ) -> None:
        """Copy the bytes of *source*, which may be read until ``synchronize``."""
        with self._working(device_id, stream, "copied from the host") as on:
            self._host_copies.from_host(
                self.home(device_id), data + offset, address_of(source), source.nbytes, on
            )

    def copy_to_host(
        self, device_id: int, data: int, offset: int, into: memoryview, stream: int
    ) -> None:
        """Copy ``len(into)`` bytes to *into*; they are there after ``synchronize``."""
        with self._working(device_id, stream, "copied to the host") as on:
            self._host_copies.to_host(
                self.home(device_id), address_of(into), data + offset, into.nbytes, on
            )

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
        target, origin = data + offset, source + source_offset
        with self._working(device_id, stream) as on:
            if device_id == source_device_id:
                self.driver.copy(target, origin, nbytes, on)
                return
            # The source may be freed on a stream of its own device before the copy is done.
            self._memory.consumers.note(source_device_id, on, device_id)
            self.driver.copy_peer(device_id, target, source_device_id, origin, nbytes, on)

    def fill(
        self, device_id: int, data: int, offset: int, nbytes: int, value: int, stream: int
    ) -> None:
        """Set *nbytes* bytes at *offset* to *value*."""
        with self._working(device_id, stream) as on:
            self.driver.fill(data + offset, value, nbytes, on)

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
        with self._working(device_id, stream) as on:
            self._copy_region(device_id, target, origin, shape, run_nbytes, on)

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
        target = Side(data + offset, tuple(strides))
        origin = Side(address_of(source), tuple(source_strides), on_host=True)
        with self._working(device_id, stream, "copied from the host") as on:
            self._copy_region(device_id, target, origin, shape, run_nbytes, on)

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
        origin = Side(data + offset, tuple(strides))
        with self._working(device_id, stream, "copied to the host") as on:
            self._copy_region(device_id, target, origin, shape, run_nbytes, on)

    def _copy_region(
        self,
        device_id: int,
        target: Side,
        source: Side,
        shape: Sequence[int],
        run_nbytes: int,
        stream: int,
    ) -> None:
        pitch = self.driver.max_pitch(self.home(device_id))
        copy_region(self.driver, target, source, shape, run_nbytes, stream, pitch)

    @contextmanager
    def _working(self, device_id: int, stream: int, captured: str = "") -> Iterator[int]:
        """In the place of *stream*, as the driver takes it, if work may be queued on it.

        *captured*: what a graph would do with the host at each replay, where nobody keeps the
        host's memory; it is refused.
        """
        driver, on, home = self.driver, self.handle(stream), self.home(device_id)
        with driver.at(driver.place_of(on, home)):
            if captured:
                refuse_capture(driver, on, captured)
            refuse_disturbing(driver, on)
            yield on
