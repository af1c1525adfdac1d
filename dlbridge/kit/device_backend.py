"""A complete backend for device memory: copies and fills are queued on a stream."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int
from typing import Any

from dlbridge.protocol import Region, Span

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
    host_copies_block = True
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

    def copy_from_host(self, target: Span, source: memoryview, stream: int) -> None:
        """Copy the bytes of *source*, which have been read on return."""
        device_id, data, offset, nbytes = target
        what = "copied from the host", self._host_copies.from_host, self._homes[device_id][0]
        self._queue(device_id, stream, *what, data + offset, address_of(source), nbytes)

    def copy_to_host(self, source: Span, into: memoryview, stream: int) -> None:
        """Copy the bytes of *source* to *into*; they are there on return."""
        device_id, data, offset, nbytes = source
        what = "copied to the host", self.driver.copy_to_host
        self._queue(device_id, stream, *what, address_of(into), data + offset, nbytes)

    def copy(self, target: Span, source: Span, stream: int) -> None:
        """Copy on *stream*, directly between devices where they allow it."""
        device_id, data, offset, nbytes = target
        source_id, source_data, source_offset, _ = source
        there, here = data + offset, source_data + source_offset
        if device_id == source_id:
            self._queue(device_id, stream, "", self.driver.copy, there, here, nbytes)
        else:
            home, other = self._homes[device_id][0], self._homes[source_id][0]
            self._queue(device_id, stream, "", self._copy_peer, home, there, other, here, nbytes)

    def _copy_peer(
        self, device_id: int, target: int, source_id: int, source: int, nbytes: int, on: int
    ) -> None:
        # The source may be freed on a stream of its own device before the copy is done.
        self._memory.consumers.note(source_id, on, device_id)
        self.driver.copy_peer(device_id, target, source_id, source, nbytes, on)

    def fill(self, target: Span, value: int, stream: int) -> None:
        """Set each byte of *target* to *value*."""
        device_id, data, offset, nbytes = target
        self._queue(device_id, stream, "", self.driver.fill, data + offset, value, nbytes)

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

    def copy_strided_to_host(
        self,
        source: Span,
        source_region: Region,
        into: memoryview,
        into_region: Region,
        stream: int,
    ) -> None:
        """Copy a region to host memory; it is there on return."""
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
        pitch = self.driver.max_pitch(self._homes[device_id][0])
        what = target, source, region.shape, region.run_nbytes, pitch
        self._queue(device_id, stream, captured, copy_region, self.driver, *what)

    def _queue(
        self, device_id: int, stream: int, captured: str, work: Callable[..., None], *arguments: Any
    ) -> None:
        """Call *work*, with the stream as its last argument, in its place, if it may be queued on.

        *captured*: what a graph would do with the host at each replay, where nobody keeps the
        host's memory; it is refused. Such a copy is waited for.
        """
        driver, (home, place) = self.driver, self._homes[device_id]
        on = driver.default_stream
        if stream not in (0, on):
            on, place = stream, driver.place_of(stream, home)
        driver.run(place, self._queue_here, on, captured, work, *arguments)

    def _queue_here(
        self, on: int, captured: str, work: Callable[..., None], *arguments: Any
    ) -> None:
        driver = self.driver
        # The question by itself, as each call counts: `StreamDriver.stream_state` says what it is.
        state = c_int()
        if driver.functions.is_capturing(on, state) or state.value:
            if captured:
                refuse_capture(driver, on, captured)
            else:
                refuse_disturbing(driver, on)
        work(*arguments, on)
        if captured:
            driver.wait_for_stream(on)
