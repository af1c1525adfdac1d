"""A complete backend for device memory: copies and fills are queued on a stream."""

from __future__ import annotations

from collections.abc import Callable

from dlbridge.protocol import Region, Span

from .backend import StreamBackend, address_of
from .capture import refuse_capture, refuse_disturbing
from .driver import StreamDriver
from .events import EventPool
from .host_copies import HostCopies
from .memory import Memory
from .places import puts_place_back
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

    @puts_place_back
    def import_data(self, device_id: int, data: int, module: str) -> tuple[int, int]:
        """The device that *data* is really on; ExchangeError if the label is wrong."""
        home = self.home(device_id)
        found = checked(self.driver, data, home, self.name, self.kinds)
        return (found.device_id if found.kind == "device" else device_id), data

    @puts_place_back
    def copy_from_host(self, target: Span, source: memoryview, stream: int) -> None:
        """Copy the bytes of *source*, which may be read until ``synchronize``."""
        device_id, data, offset, nbytes = target
        home, here = self.home(device_id), address_of(source)

        def copy(on: int) -> None:
            self._host_copies.from_host(home, data + offset, here, nbytes, on)

        self._queue(device_id, stream, copy, "copied from the host")

    @puts_place_back
    def copy_to_host(self, source: Span, into: memoryview, stream: int) -> None:
        """Copy the bytes of *source* to *into*; they are there after ``synchronize``."""
        device_id, data, offset, nbytes = source
        home, there = self.home(device_id), address_of(into)

        def copy(on: int) -> None:
            self._host_copies.to_host(home, there, data + offset, nbytes, on)

        self._queue(device_id, stream, copy, "copied to the host")

    @puts_place_back
    def copy(self, target: Span, source: Span, stream: int) -> None:
        """Copy on *stream*, directly between devices where they allow it."""
        device_id, data, offset, nbytes = target
        self.check_device(source.device_id)
        there, here = data + offset, source.data + source.offset

        def copy(on: int) -> None:
            if device_id == source.device_id:
                self.driver.copy(there, here, nbytes, on)
                return
            # The source may be freed on a stream of its own device before the copy is done.
            self._memory.consumers.note(source.device_id, on, device_id)
            self.driver.copy_peer(device_id, there, source.device_id, here, nbytes, on)

        self._queue(device_id, stream, copy)

    @puts_place_back
    def fill(self, target: Span, value: int, stream: int) -> None:
        """Set each byte of *target* to *value*."""
        device_id, data, offset, nbytes = target

        def fill(on: int) -> None:
            self.driver.fill(data + offset, value, nbytes, on)

        self._queue(device_id, stream, fill)

    @puts_place_back
    def copy_strided(
        self,
        target: Span,
        target_region: Region,
        source: Span,
        source_region: Region,
        stream: int,
    ) -> None:
        """Copy a region inside one device."""
        there = Side(target.data + target.offset, target_region.strides)
        here = Side(source.data + source.offset, source_region.strides)
        self._copy_region(target.device_id, there, here, target_region, stream)

    @puts_place_back
    def copy_strided_from_host(
        self,
        target: Span,
        target_region: Region,
        source: memoryview,
        source_region: Region,
        stream: int,
    ) -> None:
        """Copy a region of host memory; the driver stages it if it is pageable."""
        there = Side(target.data + target.offset, target_region.strides)
        here = Side(address_of(source), source_region.strides, on_host=True)
        captured = "copied from the host"
        self._copy_region(target.device_id, there, here, target_region, stream, captured)

    @puts_place_back
    def copy_strided_to_host(
        self,
        source: Span,
        source_region: Region,
        into: memoryview,
        into_region: Region,
        stream: int,
    ) -> None:
        """Copy a region to host memory; it is there after ``synchronize``."""
        there = Side(address_of(into), into_region.strides, on_host=True)
        here = Side(source.data + source.offset, source_region.strides)
        captured = "copied to the host"
        self._copy_region(source.device_id, there, here, source_region, stream, captured)

    def _copy_region(
        self,
        device_id: int,
        target: Side,
        source: Side,
        region: Region,
        stream: int,
        captured: str = "",
    ) -> None:
        """Copy runs as many and as long as those of *region* from *source* to *target*."""
        driver, pitch = self.driver, self.driver.max_pitch(self.home(device_id))
        shape, run_nbytes = region.shape, region.run_nbytes

        def copy(on: int) -> None:
            copy_region(driver, target, source, shape, run_nbytes, on, pitch)

        self._queue(device_id, stream, copy, captured)

    def _queue(
        self, device_id: int, stream: int, work: Callable[[int], None], captured: str = ""
    ) -> None:
        """Call *work* with *stream*, as the driver takes it, in its place, if it may be queued on.

        *captured*: what a graph would do with the host at each replay, where nobody keeps the
        host's memory; it is refused. It is no context manager with ``yield``: where a signal
        handler's exception cuts one off, it ends later, and leaves another thread's place.
        """
        driver, on, home = self.driver, self.handle(stream), self.home(device_id)
        with driver.at(driver.place_of(on, home)):
            if captured:
                refuse_capture(driver, on, captured)
            refuse_disturbing(driver, on)
            work(on)
