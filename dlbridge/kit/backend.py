"""The members that all backends on a `StreamDriver` share."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import c_int
from functools import cache
from typing import Any

from dlbridge.protocol import Allocation

from .capture import has_nothing_to_wait_for, refuse_capture
from .devices import Devices
from .driver import StreamDriver, WrongDeviceError
from .events import EventPool
from .memory import Memory
from .streams import StreamRules

__all__ = ["StreamBackend", "address_of", "bytes_at"]


@cache
def _ffi() -> Any:
    """cffi, at the first use: it is a library, which importing a backend must not open.

    Without its parser of declarations, which is loaded by many imports: a Ctrl-C in one of them
    would leave it half done for ever.
    """
    from _cffi_backend import FFI

    return FFI()


class StreamBackend(Devices):
    """One kind of memory; ``data`` is an address.

    Provides `dlbridge.protocol.Backend` without copies, ``SupportsStreams``,
    ``SupportsDeviceInfo`` and ``SupportsTrim``.

    Parameters
    ----------
    driver : StreamDriver
        The driver; it is opened here (BackendUnavailable if there is none, or no device).
    rules : StreamRules
        What callers may pass as ``stream=``.
    memory : Memory
        How memory is obtained and released.
    events : EventPool
        The driver's events.
    """

    api: int
    """The backend says it itself, as a literal, since this class changes with dlbridge."""
    device_type: int

    def __init__(
        self, driver: StreamDriver, rules: StreamRules, memory: Memory, events: EventPool
    ) -> None:
        self.driver = driver
        self._physical = driver.device_count()
        self._rules = rules
        self._memory = memory
        self._events = events
        self._homes = _Homes(self)

    def device_count(self) -> int:
        """Number of devices."""
        return self._physical

    def home(self, device_id: int) -> int:
        """The device in whose place memory of *device_id* is made; ExchangeError if none."""
        if not 0 <= device_id < self._physical:
            self.check_device(device_id)
        return device_id

    def allocate(
        self,
        device_id: int,
        nbytes: int,
        alignment: int,
        stream: int,
        content: memoryview | None = None,
    ) -> Allocation:
        """Memory at a multiple of *alignment*.

        Dropped, it is freed after the work on its stream, and that of streams that waited
        meanwhile.
        """
        home, _ = self._homes[device_id]
        stream = stream or self.driver.default_stream
        return self._memory.allocate(home, nbytes, alignment, stream)

    def trim(self, device_id: int) -> None:
        """Give the driver what is kept of freed memory."""
        self._memory.give_back(self.home(device_id))

    def current_stream(self, device_id: int) -> int:
        """The default stream: the driver does not know a current one."""
        if device_id:
            self.check_device(device_id)
        return self.driver.default_stream

    def synchronize(self, device_id: int, stream: int) -> None:
        """Block until the work on *stream* is done.

        Raises
        ------
        dlbridge.errors.ExchangeError
            If *stream* is capturing.
        """
        home, place = self._homes[device_id]
        self.driver.run(place, self._synchronize, home, stream or self.driver.default_stream)

    def _synchronize(self, home: int, stream: int) -> None:
        driver, shared = self.driver, stream
        if stream != driver.default_stream:
            driver.require_stream(stream, home)
            shared = driver.all_threads(stream)
        # The question by itself, as each call counts: `StreamDriver.stream_state` says what it is.
        captured = c_int()
        if driver.functions.is_capturing(stream, captured) or captured.value:
            refuse_capture(driver, stream, "waited for")
        if shared == stream:
            driver.wait_for_stream(stream)
            return
        # The work may have been queued by another thread, on its own default stream.
        place = driver.places[home]
        event = self._events.record_here(place, shared)
        try:
            driver.wait_for_event(event)
        finally:
            self._events.give_back(place, event)

    def wait(self, device_id: int, stream: int, on: int) -> None:
        """Make later work on *stream* wait for the work now on *on*, by an event.

        *on* may belong to another device. A default stream that each thread has its own of is
        waited for through the one that is ordered after every thread's.

        Raises
        ------
        dlbridge.errors.ExchangeError
            If a graph would have to wait for work outside it.
        """
        driver, (home, place) = self.driver, self._homes[device_id]
        stream, on = stream or driver.default_stream, on or driver.default_stream
        if stream != on:
            driver.run(place, self._wait, home, stream, on)

    def _wait(self, home: int, stream: int, on: int) -> None:
        shared = self.driver.all_threads(on)
        self.driver.require_stream(stream, home)
        self.driver.require_stream(shared, home)
        if not has_nothing_to_wait_for(self.driver, stream, shared):
            self._wait_by_event(home, stream, shared)
        self._memory.consumers.note(home, stream, home)
        self._memory.consumers.note(home, on, home)

    def _wait_by_event(self, home: int, stream: int, on: int) -> None:
        driver = self.driver
        place = driver.place_of(on, home)
        try:
            event = self._events.record(place, on)
        except WrongDeviceError:  # an old runtime that does not tell a stream's device
            driver.wait_for_stream(on)
            return
        try:
            # The record itself is an action of *on*, which it orders after every thread's
            # default stream; that a synchronisation alone does so is written nowhere.
            if stream != on:
                driver.wait_event(stream, event)
        finally:
            # A wait takes the record that it finds; the event may be recorded again at once.
            self._events.give_back(place, event)

    def normalize_stream(self, device_id: int, stream: object) -> int:
        """The handle for what a caller passed as ``stream=``; -1: do not order."""
        self._homes[device_id]
        return self._rules.normalize(stream)

    def device_info(self, device_id: int) -> Mapping[str, object]:
        """Describe a device.

        Parameters
        ----------
        device_id : int
            The device.

        Returns
        -------
        mapping of str to object
            Name, memory in bytes, UUID, PCI address, driver and more.

        Examples
        --------
        ``bridge.backend("cuda").device_info(0)["name"]``
        """
        return self.driver.device_info(self.home(device_id))


class _Homes(dict[int, tuple[int, Any]]):
    """The home of each device, and its place; ExchangeError for one that there is not."""

    def __init__(self, backend: StreamBackend) -> None:
        self._backend = backend

    def __missing__(self, device_id: int) -> tuple[int, Any]:
        home = self._backend.home(device_id)
        return self.setdefault(device_id, (home, self._backend.driver.places[home]))


def address_of(view: memoryview) -> int:
    """The address of the first byte of *view*, whether or not it is read-only."""
    ffi = _ffi()
    return int(ffi.cast("uintptr_t", ffi.from_buffer(view)))


def bytes_at(address: int, nbytes: int) -> memoryview:
    """The memory at *address*, of the host or for a library that does not look at the bytes."""
    ffi = _ffi()
    return memoryview(ffi.buffer(ffi.cast("char *", address), nbytes))
