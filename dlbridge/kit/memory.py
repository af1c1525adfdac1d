"""Allocation, and frees that wait for their turn."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable
from contextlib import suppress
from typing import Any

from dlbridge.errors import DeviceMemoryError, Error

from .capture import refuse_capture
from .consumers import Consumer, Consumers
from .driver import StreamDriver, StreamState
from .events import EventPool
from .status import CaptureError, StreamGoneError

__all__ = ["Memory"]

_log = logging.getLogger(__name__)


class _Freed:
    """Memory that its owner has given up, until it can be freed."""

    __slots__ = ("consumers", "device_id", "events", "pointer", "released", "stream")

    def __init__(
        self,
        device_id: int,
        pointer: int,
        stream: int,
        consumers: list[tuple[Consumer, int | None]],
    ) -> None:
        self.device_id = device_id
        self.pointer = pointer
        self.stream = stream
        self.consumers = consumers  # streams whose work so far has no event yet
        self.events: list[tuple[Hashable, Any]] = []
        self.released = False


class Memory(ABC):
    """One kind of memory. A subclass says how to obtain and release it.

    Parameters
    ----------
    driver : StreamDriver
        The driver.
    events : EventPool
        Its events.
    name : str
        The device's name, for messages.
    """

    polls = False
    """Whether a free is put off until the streams that still use the memory are done; else the
    stream of the free is made to wait for them."""

    def __init__(self, driver: StreamDriver, events: EventPool, name: str) -> None:
        self.driver = driver
        self.events = events
        self.name = name
        self.consumers = Consumers(driver)
        self._base: dict[int, int] = {}  # over-aligned pointer -> what the driver gave
        self._freed: deque[_Freed] = deque()
        self._said_lost = ""

    @abstractmethod
    def obtain(self, device_id: int, nbytes: int, stream: int) -> int:
        """Memory for work on *stream*; DeviceMemoryError if there is no room."""

    @abstractmethod
    def release(self, device_id: int, pointer: int, stream: int) -> None:
        """Free *pointer* behind the work on *stream*, or after waiting for it."""

    def trim(self, device_id: int, stream: int) -> None:
        """Give kept memory back to the system, so that a second try has a chance.

        *stream* is done then.
        """
        self.driver.wait_for_stream(stream)

    def is_shared(self, pointer: int) -> bool:
        """Whether others go on using *pointer* after one free."""
        return False

    def allocate(self, device_id: int, nbytes: int, alignment: int, stream: int) -> int:
        """Allocate memory for work on *stream*.

        Parameters
        ----------
        device_id : int
            The device, counted from 0.
        nbytes : int
            At least 1.
        alignment : int
            A power of two, in bytes.
        stream : int
            The handle of a stream that exists.

        Returns
        -------
        int
            An address at a multiple of *alignment*.

        Raises
        ------
        dlbridge.errors.DeviceMemoryError
            If there is no room, also after kept memory was given back.
        dlbridge.errors.ExchangeError
            While *stream* is capturing.
        """
        driver = self.driver
        with driver.at(driver.place(device_id)), driver.relaxed():
            driver.require_stream(stream, device_id)
            refuse_capture(driver, stream, "allocated")
            self.settle()
            pointer = self._obtain_or_make_room(device_id, nbytes, stream)
            self.consumers.begin(pointer)
            if pointer % alignment:  # 256 is what drivers give without being asked
                self.free(device_id, pointer, stream)
                base = self._obtain_or_make_room(device_id, nbytes + alignment, stream)
                pointer = -(-base // alignment) * alignment
                self._base[pointer] = base
                self.consumers.begin(pointer)
            return pointer

    def free(self, device_id: int, pointer: int, stream: int) -> None:
        """Free *pointer* once the work on *stream*, and that of all consumers, is done.

        It never raises. While one of the streams is capturing, the memory is kept until a later
        call: a free would become part of the graph, or end the capture.
        """
        if self.driver.guard.in_child:
            return  # the parent's memory, which it will free itself
        stream = self.driver.all_threads(stream)  # this may run in another thread
        consumers = self.consumers.end(device_id, pointer, stream, self.is_shared(pointer))
        base = self._base.pop(pointer, pointer)
        self._freed.append(_Freed(device_id, base, stream, consumers))
        self.settle()

    def settle(self, wait: bool = False) -> None:
        """Free what can be freed now; failures are logged, for a finalizer has no caller.

        Parameters
        ----------
        wait : bool
            Block for the streams that still use the memory.
        """
        for _ in range(len(self._freed)):
            try:
                freed = self._freed.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                self._free(freed, wait)
            except CaptureError:  # it began after we asked, or the driver refuses beside any
                freed.released = False
            except Error as exc:
                freed.released = True  # the memory is lost
                self._report(freed, str(exc))  # its text: a record must not keep callers' frames
                with suppress(Error):
                    for place, event in freed.events:
                        self.events.give_back(place, event)
            finally:
                if not freed.released:
                    self._freed.append(freed)

    def wait_before_free(self, stream: int) -> None:
        """Block until the work on *stream* is done, or all work if it was destroyed.

        The latter can end graph captures, and drivers have nothing else that would wait: a
        stream has to outlive the tensors last used on it where somebody captures.
        """
        try:
            self.driver.wait_for_stream(stream)
        except StreamGoneError:
            self.driver.wait_for_device()

    def _free(self, freed: _Freed, wait: bool) -> None:
        driver, device_id, stream = self.driver, freed.device_id, freed.stream
        with driver.at(driver.place(device_id)), driver.relaxed():
            if (
                driver.exists(stream, device_id)
                and driver.stream_state(stream) is not StreamState.RUNS
            ):
                return
            if not self._mark(freed):
                return
            while freed.events:
                place, event = freed.events[-1]
                if wait or not (self.polls and driver.polls_events):
                    with suppress(StreamGoneError):  # then `release` waits for everything
                        driver.wait_event(stream, event)
                elif not driver.is_event_done(event):
                    return
                freed.events.pop()
                self.events.give_back(place, event)
            freed.released = True
            self.release(device_id, freed.pointer, stream)

    def _mark(self, freed: _Freed) -> bool:
        """Put an event behind the work of each consumer; False while one is capturing."""
        driver = self.driver
        while freed.consumers:
            consumer, number = freed.consumers[-1]
            stream, home = consumer
            with driver.at(driver.place(home)):
                try:
                    if not driver.exists(stream, home):
                        raise StreamGoneError("destroyed")
                    if driver.stream_state(stream) is not StreamState.RUNS:
                        return False
                    if number is not None and driver.stream_id(stream, home) != number:
                        raise StreamGoneError("its handle belongs to a new stream")
                    place = driver.place_of(stream, home)
                    freed.events.append((place, self.events.record(place, stream)))
                except StreamGoneError:  # its work may still run, and nothing tells when it ends
                    driver.wait_for_device()
                    self.consumers.forget(freed.device_id, consumer, number)
            freed.consumers.pop()
        return True

    def _report(self, freed: _Freed, why: str) -> None:
        lost = self.driver.table.lost
        if lost and lost == self._said_lost:
            return  # every free fails now, and the first one has said why
        self._said_lost = lost
        _log.error("%s memory at %#x is not freed: %s", self.name, freed.pointer, why)

    def _obtain_or_make_room(self, device_id: int, nbytes: int, stream: int) -> int:
        try:
            return self.obtain(device_id, nbytes, stream)
        except DeviceMemoryError:
            self._make_room(device_id, stream)
        try:
            return self.obtain(device_id, nbytes, stream)
        except DeviceMemoryError as exc:
            free, total = self.driver.room()
            raise DeviceMemoryError(
                f"no room for {nbytes} bytes of {self.name} memory (device {device_id} has {free} "
                f"of {total} bytes free); {exc}"
            ) from exc

    def _make_room(self, device_id: int, stream: int) -> None:
        """Finish the frees that are on the way.

        Only streams with frees on them are waited for: a wait for the whole device ends every
        capture of the context (CUDA programming guide, stream capture, "Prohibited and
        Unhandled Operations"; CHECK_SUPPORTED_DURING_CAPTURE in AMD's code).
        """
        self.settle(wait=True)
        self.trim(device_id, stream)
