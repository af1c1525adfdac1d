"""The members that all backends on a `StreamDriver` share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from dlbridge.protocol import Allocation

from .devices import Devices
from .driver import StreamDriver
from .events import EventPool
from .memory import Memory
from .streams import StreamOrder, StreamRules

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
        self._order = StreamOrder(driver, events)

    def device_count(self) -> int:
        """Number of devices."""
        return self._physical

    def home(self, device_id: int) -> int:
        """The device in whose place memory of *device_id* is made; ExchangeError if none."""
        if not 0 <= device_id < self._physical:
            self.check_device(device_id)
        return device_id

    def handle(self, stream: int) -> int:
        """*stream* as the driver takes it: 0 is its default stream."""
        return stream or self.driver.default_stream

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
        stream = stream or self.driver.default_stream
        return self._memory.allocate(self.home(device_id), nbytes, alignment, stream)

    def trim(self, device_id: int) -> None:
        """Give the driver what is kept of freed memory."""
        self._memory.give_back(self.home(device_id))

    def current_stream(self, device_id: int) -> int:
        """The default stream: the driver does not know a current one."""
        if device_id:
            self.check_device(device_id)
        return self.driver.default_stream

    def synchronize(self, device_id: int, stream: int) -> None:
        """Block until the work on *stream* is done."""
        self._order.synchronize(self.home(device_id), self.handle(stream))

    def wait(self, device_id: int, stream: int, on: int) -> None:
        """Make later work on *stream* wait for the work now on *on*, by an event."""
        home, stream, on = self.home(device_id), self.handle(stream), self.handle(on)
        if stream != on:
            self.driver.run(self.driver.place(home), self._wait, home, stream, on)

    def _wait(self, home: int, stream: int, on: int) -> None:
        self._order.wait_here(home, stream, on)
        self._memory.consumers.note(home, stream, home)
        self._memory.consumers.note(home, on, home)

    def normalize_stream(self, device_id: int, stream: object) -> int:
        """The handle for what a caller passed as ``stream=``; -1: do not order."""
        self.check_device(device_id)
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


def address_of(view: memoryview) -> int:
    """The address of the first byte of *view*, whether or not it is read-only."""
    ffi = _ffi()
    return int(ffi.cast("uintptr_t", ffi.from_buffer(view)))


def bytes_at(address: int, nbytes: int) -> memoryview:
    """The memory at *address*, of the host or for a library that does not look at the bytes."""
    ffi = _ffi()
    return memoryview(ffi.buffer(ffi.cast("char *", address), nbytes))
