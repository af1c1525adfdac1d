"""Allocation, and frees that wait for their turn."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from ctypes import c_uint64

from dlbridge.errors import DeviceMemoryError, Error

from .capture import refuse_capture, refuse_disturbing
from .claims import Freed, Given
from .consumers import Consumers
from .driver import ALL_STREAMS, LastingStream, StreamDriver, StreamState
from .events import EventPool
from .places import puts_place_back
from .status import CaptureError, StreamGoneError

__all__ = ["Memory"]

_log = logging.getLogger(__name__)


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
        self._freed: deque[Freed] = deque()
        self._said_lost = ""
        self._used: set[int] = set()  # the devices on which something was allocated

    @abstractmethod
    def obtain(self, device_id: int, nbytes: int, stream: int, cell: c_uint64) -> None:
        """Memory for work on *stream*, into *cell*; DeviceMemoryError if there is no room."""

    def obtain_after_trim(self, device_id: int, nbytes: int, stream: int, cell: c_uint64) -> None:
        """As `obtain`, which found no room before `trim`."""
        self.obtain(device_id, nbytes, stream, cell)

    @abstractmethod
    def release(self, device_id: int, pointer: int, stream: int, codes: list[int]) -> None:
        """Free *pointer* behind the work on *stream*, or after waiting for it.

        After an exception of a signal handler it is called again; *codes* has the statuses of
        the driver's calls that were made before.
        """

    def trim(self, device_id: int, stream: int) -> None:
        """Give kept memory back to the system, so that a second try has a chance.

        *stream* is done then.
        """
        self.driver.wait_for_stream(stream)

    def is_shared(self, pointer: int) -> bool:
        """Whether others go on using *pointer* after one free."""
        return False

    @puts_place_back
    def allocate_into(self, given: Given, nbytes: int, alignment: int) -> None:
        """Allocate memory for work on the stream of *given*, into its cell.

        Parameters
        ----------
        given : Given
            Its device, counted from 0, and the handle of a stream that exists.
        nbytes : int
            At least 1.
        alignment : int
            A power of two, in bytes; the address is a multiple of it.

        Raises
        ------
        dlbridge.errors.DeviceMemoryError
            If there is no room, also after kept memory was given back.
        dlbridge.errors.ExchangeError
            While the stream is capturing.
        """
        driver, device_id, stream, cell = self.driver, given.device_id, given.stream, given.cell
        with driver.at(driver.place(device_id)), driver.relaxed():
            driver.require_stream(stream, device_id)
            refuse_capture(driver, stream, "allocated")
            self.settle()
            self._used.add(device_id)
            number = driver.stream_id(stream, device_id)
            self._obtain_or_make_room(device_id, nbytes, stream, cell)
            self.consumers.begin(cell.value, stream, number)
            if cell.value % alignment:  # 256 is what drivers give without being asked
                given.give_up()
                self._obtain_or_make_room(device_id, nbytes + alignment, stream, cell)
                base = cell.value
                pointer = -(-base // alignment) * alignment
                self._base[pointer] = base
                cell.value = pointer
                self.consumers.begin(pointer, stream, number)
            else:
                self._base.pop(cell.value, None)  # of a free that was cut off

    def give_up(self, freed: Freed) -> None:
        """Free it once the work on its stream, and that of all consumers, is done.

        It raises nothing of its own. While one of the streams is capturing, the memory is kept
        until a later call: a free would become part of the graph, or end the capture.
        """
        if self.driver.guard.in_child:
            freed.clear()
            return  # the parent's memory, which it will free itself
        self._freed.append(freed)
        self.settle()

    def put_back(self, freed: Freed) -> None:
        """Keep *freed*, which was lost on its way, for the next call of `settle`."""
        self._freed.append(freed)

    def _begin(self, freed: Freed) -> None:
        """Find out which streams may still use the memory, and let them last."""
        freed.codes, freed.events = [], []
        freed[3] = self.driver.all_threads(freed.stream)  # this may run in another thread
        given, own = freed.pointer, LastingStream(freed.stream, freed.device_id)
        uses = self.consumers.uses(freed.device_id, given, own)
        freed.numbers, freed.consumers = uses
        base = self._base.get(given, given)
        is_shared = self.is_shared(given)
        freed[2], freed.has_begun = base, True  # no call comes between: it is not repeated
        self._base.pop(given, None)
        if not is_shared:
            self.consumers.end(given)
        if freed.stream != self.driver.default_stream:
            self._outlive(freed)

    @puts_place_back
    def _outlive(self, freed: Freed, later: bool = False) -> None:
        """Free on the default stream, which stays, if the free has to be made *later*."""
        driver, device_id = self.driver, freed.device_id
        with suppress(Error), driver.at(driver.place(device_id)), driver.relaxed():
            lasting = driver.lasting(freed.stream, device_id)
            if lasting.stream == freed.stream:
                return
            runs = driver.stream_state(freed.stream) is StreamState.RUNS
            if later or freed.consumers or not runs:
                freed.consumers.append((lasting, None))
                freed[3] = driver.default_stream

    def give_back(self, device_id: int) -> None:
        """Give the system what was freed, as far as no work uses it any more.

        It waits for the work on the default stream, and opens no device that was not used.

        Raises
        ------
        dlbridge.errors.ExchangeError
            While a capture is under way that such a wait would end.
        """
        driver, stream = self.driver, self.driver.default_stream
        driver.guard.check()
        self.settle()
        if device_id in self._used:
            with driver.at(driver.place(device_id)), driver.relaxed():
                refuse_disturbing(driver, stream)
                self.trim(device_id, stream)

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
                if not freed.has_begun:
                    self._begin(freed)
                self._free(freed, wait)
            except CaptureError:  # it began after we asked, or the driver refuses beside any
                self._outlive(freed, later=True)
            except Error as exc:
                pointer = freed.pointer
                freed.clear()  # the memory is lost
                self._report(pointer, str(exc))  # its text: a record must not keep callers' frames
                with suppress(Error):
                    for place, event in freed.events:
                        self.events.give_back(place, event)
            if freed:
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

    @puts_place_back
    def _free(self, freed: Freed, wait: bool) -> None:
        driver, device_id = self.driver, freed.device_id
        with driver.at(driver.place(device_id)), driver.relaxed():
            keeper = driver.keeper(freed.stream, device_id)  # held to the end of the function
            if keeper is not None:
                if driver.stream_state(freed.stream) is not StreamState.RUNS:
                    return
                self._finish_namesakes(freed)
            elif freed.numbers:  # it existed: its work may still run
                driver.wait_for_device()
                freed[3], freed.numbers = driver.default_stream, frozenset()
            if not self._mark(freed, wait):
                return
            while freed.events:
                place, event = freed.events[-1]
                if wait or not (self.polls and driver.polls_events):
                    with suppress(StreamGoneError):  # then `release` waits for everything
                        driver.wait_event(freed.stream, event)
                elif not driver.is_event_done(event):
                    return
                freed.events.pop()
                self.events.give_back(place, event)
            self.release(device_id, freed.pointer, freed.stream, freed.codes)
            freed.clear()

    def _finish_namesakes(self, freed: Freed) -> None:
        """Wait for all work if the handle of the free's stream was a destroyed stream's before.

        The work of that one may still run, and the new stream is not ordered after it.
        """
        if not freed.numbers:
            return
        try:
            number = self.driver.stream_id(freed.stream, freed.device_id)
        except StreamGoneError:
            return  # `release` waits for everything
        gone = [each for each in freed.numbers if each != number]
        if gone:
            self.driver.wait_for_device()
            freed.numbers -= frozenset(gone)
            for each in gone:
                self.consumers.forget(
                    freed.device_id, LastingStream(freed.stream, freed.device_id), each
                )

    def _mark(self, freed: Freed, wait: bool) -> bool:
        """Put an event behind the work of each consumer; False while one is capturing.

        Where there is no room (*wait*), a capture may be ended by an event behind all streams.
        """
        driver = self.driver
        while freed.consumers:
            consumer, number = freed.consumers[-1]
            stream, home, place = consumer
            with driver.at(driver.place(home) if place is None else place):
                try:
                    keeper = driver.keeper(stream, home)  # held until the next one
                    if keeper is None:
                        raise StreamGoneError("destroyed")
                    can_end = wait and stream == ALL_STREAMS
                    if not can_end and driver.stream_state(stream) is not StreamState.RUNS:
                        return False
                    if number is not None and driver.stream_id(stream, home) != number:
                        raise StreamGoneError("its handle belongs to a new stream")
                    place = driver.place_of(stream, home) if place is None else place
                    freed.events.append((place, self.events.record(place, stream)))
                except StreamGoneError:  # its work may still run, and nothing tells when it ends
                    driver.wait_for_device()
                    self.consumers.forget(freed.device_id, consumer, number)
            freed.consumers.pop()
        return True

    def _report(self, pointer: int, why: str) -> None:
        lost = self.driver.table.lost
        if lost and lost == self._said_lost:
            return  # every free fails now, and the first one has said why
        self._said_lost = lost
        _log.error("%s memory at %#x is not freed: %s", self.name, pointer, why)

    def _obtain_or_make_room(
        self, device_id: int, nbytes: int, stream: int, cell: c_uint64
    ) -> None:
        try:
            self.obtain(device_id, nbytes, stream, cell)
            return
        except DeviceMemoryError:
            self._make_room(device_id, stream)
        try:
            self.obtain_after_trim(device_id, nbytes, stream, cell)
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
