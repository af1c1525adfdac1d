"""The members that all backends on a `StreamDriver` share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from cffi import FFI

from dlbridge.errors import ExchangeError
from dlbridge.protocol import API

from .driver import StreamDriver
from .events import EventPool
from .memory import Memory
from .streams import StreamOrder, StreamRules

__all__ = ["StreamBackend", "address_of"]

_ffi = FFI()


class StreamBackend:
    """One kind of memory; ``data`` is an address.

    Provides `dlbridge.protocol.Backend` without copies, ``SupportsStreams``,
    ``SupportsDeviceNames`` and ``SupportsDeviceInfo``.

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

    api = API
    device_type: ClassVar[int]
    name: ClassVar[str]

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
        self.check_device(device_id)
        return device_id

    def handle(self, stream: int) -> int:
        """*stream* as the driver takes it: 0 is its default stream."""
        return stream or self.driver.default_stream

    def allocate(self, device_id: int, nbytes: int, alignment: int, stream: int) -> int:
        """Allocate *nbytes* bytes at a multiple of *alignment*."""
        return self._memory.allocate(self.home(device_id), nbytes, alignment, self.handle(stream))

    def free(self, device_id: int, data: int, stream: int) -> None:
        """Free *data* after the work on *stream*, and that of streams that waited meanwhile."""
        self._memory.free(self.home(device_id), data, self.handle(stream))

    def current_stream(self, device_id: int) -> int:
        """The default stream: the driver does not know a current one."""
        return self.driver.default_stream

    def synchronize(self, device_id: int, stream: int) -> None:
        """Block until the work on *stream* is done."""
        self._order.synchronize(self.home(device_id), self.handle(stream))

    def wait(self, device_id: int, stream: int, on: int) -> None:
        """Make later work on *stream* wait for the work now on *on*, by an event."""
        home, stream, on = self.home(device_id), self.handle(stream), self.handle(on)
        self._order.wait(home, stream, on)
        if stream != on:
            driver = self.driver
            with driver.at(driver.place(home)):
                self._memory.consumers.note(home, stream, home)
                self._memory.consumers.note(home, on, home)

    def normalize_stream(self, device_id: int, stream: object) -> int:
        """The handle for what a caller passed as ``stream=``; -1: do not order."""
        return self._rules.normalize(stream)

    def find_device(self, name: str) -> int:
        """The first device with *name* in its name, its UUID or its PCI address.

        Raises
        ------
        LookupError
            If there is none; it lists the devices.
        """
        known = []
        for device_id in range(self.device_count()):
            found = self.driver.device_info(device_id)
            words = f"{found['name']} {found['uuid']} {found['pci']}"
            if name.casefold() in words.casefold():
                return device_id
            known.append(f"{device_id}: {words}")
        raise LookupError(
            f"no {self.driver.device_name} device is called {name!r}; there are {'; '.join(known)}"
        )

    def device_info(self, device_id: int) -> Mapping[str, object]:
        """Name, memory in bytes, UUID, PCI address, driver and more."""
        return self.driver.device_info(self.home(device_id))

    def check_device(self, device_id: int) -> None:
        """ExchangeError if *device_id* does not exist."""
        count = self.device_count()
        if not 0 <= device_id < count:
            raise ExchangeError(
                f"there is no {self.name}:{device_id}: {count} device"
                f"{'s' if count != 1 else ''} here, counted from 0"
            )


def address_of(view: memoryview) -> int:
    """The address of the first byte of *view*, whether or not it is read-only."""
    return int(_ffi.cast("uintptr_t", _ffi.from_buffer(view)))
