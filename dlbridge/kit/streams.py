"""Streams: valid values of ``stream=``, the order between two, and waiting for one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .capture import has_nothing_to_wait_for, refuse_capture
from .driver import StreamDriver, WrongDeviceError
from .events import EventPool

__all__ = ["NO_ORDER", "StreamOrder", "StreamRules"]

NO_ORDER = -1
"""The ``stream=-1`` with which nothing is ordered (array API 2025.12, ``__dlpack__``)."""


@dataclass(frozen=True)
class StreamRules:
    """The rules for ``stream=`` of one driver."""

    api: str
    """The driver's name, for messages."""
    default: int
    """The handle for None, and for a stream object whose handle is 0."""
    forbidden: Mapping[int, str] = field(default_factory=dict)
    """Integers that are refused, with why and what to pass instead."""
    libraries: Mapping[str, Callable[[Any], object]] = field(default_factory=dict)
    """First part of the module of a library's stream class, to what gives its handle."""
    protocol: str = ""
    """The method (or attribute) of stream objects that gives ``(version, handle)``."""
    advice: str = "an integer"
    """The kinds of streams that can be passed beside None, for messages."""

    def normalize(self, stream: object) -> int:
        """The handle for what a caller passed.

        Parameters
        ----------
        stream : object
            None, an integer, or a stream object of a library.

        Returns
        -------
        int
            The handle; -1 means: do not order.

        Raises
        ------
        ValueError
            For an integer that the rules forbid.
        TypeError
            For what is not a stream; a bool is not one.
        """
        if stream is None:
            return self.default
        if isinstance(stream, bool) or type(stream).__name__ in {"bool", "bool_"}:  # numpy's too
            raise TypeError(f"stream={stream} is a bool, not a {self.api} stream")
        try:
            value = operator.index(stream)  # type: ignore[arg-type]  # TypeError is the answer
        except TypeError:
            value = self._handle_of(stream) or self.default
        if value in self.forbidden:
            raise ValueError(f"stream={value} {self.forbidden[value]}")
        if value < NO_ORDER:
            raise ValueError(
                f"stream={value} is not a valid {self.api} stream: only -1 (no order) is negative"
            )
        if value >= 1 << 64:
            raise ValueError(
                f"stream={value:#x} is not a valid {self.api} stream: a handle has 64 bits"
            )
        return value

    def _handle_of(self, stream: Any) -> int:
        protocol = getattr(stream, self.protocol, None) if self.protocol else None
        library = type(stream).__module__.partition(".")[0]
        try:
            if protocol is not None:
                _version, value = protocol() if callable(protocol) else protocol
            elif library in self.libraries:
                value = self.libraries[library](stream)
            else:
                raise TypeError("it is of a library that is not known here")
            return operator.index(value)
        except (AttributeError, TypeError, ValueError) as exc:
            raise TypeError(
                f"{type(stream).__module__}.{type(stream).__qualname__} is not a {self.api} "
                f"stream; pass None, {self.advice}"
            ) from exc


class StreamOrder:
    """Waits for streams, by the host and by other streams.

    Parameters
    ----------
    driver : StreamDriver
        The driver of the streams.
    events : EventPool
        Its events.
    """

    def __init__(self, driver: StreamDriver, events: EventPool) -> None:
        self._driver = driver
        self._events = events

    def synchronize(self, device_id: int, stream: int) -> None:
        """Block until the work on *stream* is done.

        Raises
        ------
        dlbridge.errors.ExchangeError
            If *stream* is capturing.
        """
        driver = self._driver
        driver.run(driver.place(device_id), self._synchronize, device_id, stream)

    def _synchronize(self, device_id: int, stream: int) -> None:
        driver = self._driver
        driver.require_stream(stream, device_id)
        refuse_capture(driver, stream, "waited for")
        shared = driver.all_threads(stream)
        if shared == stream:
            driver.wait_for_stream(stream)
            return
        # The work may have been queued by another thread, on its own default stream.
        place = driver.place(device_id)
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
        if stream != on:
            self._driver.run(self._driver.place(device_id), self.wait_here, device_id, stream, on)

    def wait_here(self, device_id: int, stream: int, on: int) -> None:
        """As `wait`, for two streams that are not the same, in the place of the device."""
        driver = self._driver
        on = driver.all_threads(on)
        driver.require_stream(stream, device_id)
        driver.require_stream(on, device_id)
        if has_nothing_to_wait_for(driver, stream, on):
            return
        place = driver.place_of(on, device_id)
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
