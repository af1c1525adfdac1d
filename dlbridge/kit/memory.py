"""Allocation, and frees that wait for their turn: from a pool, in stream order; page-locked."""

from __future__ import annotations

import logging
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from contextlib import suppress
from ctypes import c_int, c_uint64
from typing import Any

from dlbridge.errors import DeviceMemoryError, Error, ExchangeError

from .driver import ALL_STREAMS, StreamDriver, StreamState
from .order import Consumer, Consumers, EventPool, consumer_of, refuse_capture, refuse_disturbing
from .resources import AllocationOwner, Resources, shared_lock
from .status import CaptureError, NoPoolError, StreamGoneError

__all__ = ["FREES_KEPT", "DriverMemory", "Memory", "PinnedMemory", "PoolMemory"]

_RUNS = StreamState.RUNS
_log = logging.getLogger(__name__)


class DriverMemory:
    """What a driver gave, and how far its free is.

    Parameters
    ----------
    device_id : int
        The device, counted from 0.
    stream : int
        The stream behind whose work it is freed.
    born : int
        `Consumers.latest` when it came.
    """

    pointer = property(lambda self: self.cell.value)
    """What the driver gave; 0 while it has given nothing."""
    is_plain = False
    """Whether it is of no pool."""
    parts: Any = None
    """What a subclass of `Memory` has to give back beside it."""
    keeper: object = None
    """What keeps its stream while its free is put off; None if nothing is known."""
    must_wait = False
    """Whether its end blocks for all work on it, as for memory that somebody else uses after."""
    consumers: list[tuple[Consumer, object]] | None = None
    """Streams whose work so far has no event yet, and what keeps them; None until its free
    begins."""

    def __init__(self, device_id: int, stream: int, born: int) -> None:
        self.device_id = device_id
        self.stream = stream
        self.born = born
        self.cell = c_uint64()
        self.codes: list[int] = []
        """The statuses of the driver's calls that take it back, where 0 is success in every API."""
        self.events: list[tuple[Hashable, Any, tuple[Consumer, object]]] = []
        """The context of each event behind work of another consumer, the event, the consumer."""


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
        self.resources: Resources[DriverMemory] = Resources(self._give_back)
        self.consumers = Consumers(driver, lambda: [each.born for each in self.resources.all()])
        self._said_lost = ""
        self._used: dict[int, bool] = {}  # the devices on which something was allocated

    @abstractmethod
    def obtain(self, memory: DriverMemory, nbytes: int) -> None:
        """Let the driver fill the cell of *memory*; DeviceMemoryError if there is no room."""

    def obtain_after_trim(self, memory: DriverMemory, nbytes: int) -> None:
        """As `obtain`, which found no room before `trim`."""
        self.obtain(memory, nbytes)

    @abstractmethod
    def release(self, memory: DriverMemory) -> None:
        """Free *memory* behind the work on its stream, or after waiting for it.

        After an exception it is called again, unless the last of ``memory.codes`` is 0.
        """

    def trim(self, device_id: int, stream: int) -> None:
        """Give kept memory back to the system, so that a second try has a chance.

        *stream* is done then.
        """
        self.driver.wait_for_stream(stream)

    def own(self, device_id: int, stream: int) -> AllocationOwner[DriverMemory]:
        """The owner of memory that the driver has not given yet."""
        return AllocationOwner(
            self.resources, DriverMemory(device_id, stream, self.consumers.latest)
        )

    def allocate(
        self,
        device_id: int,
        nbytes: int,
        alignment: int,
        stream: int,
        obtain: Callable[[DriverMemory, int], None] | None = None,
        write: Callable[[int], None] | None = None,
    ) -> AllocationOwner[DriverMemory]:
        """Memory for work on *stream*, freed behind the work on its last stream and consumers'.

        Parameters
        ----------
        device_id : int
            The device, counted from 0.
        nbytes : int
            At least 1.
        alignment : int
            A power of two, in bytes; the address is a multiple of it.
        stream : int
            The handle of a stream that exists.
        obtain : Callable, optional
            Is called in place of `obtain`, and of `obtain_after_trim`.
        write : Callable, optional
            Writes the content to the address that it is given, on *stream*; the thread is in the
            context of the device.

        Raises
        ------
        dlbridge.errors.DeviceMemoryError
            If there is no room, also after kept memory was given back.
        dlbridge.errors.ExchangeError
            While the stream is capturing.
        """
        driver, memory = self.driver, DriverMemory(device_id, stream, self.consumers.latest)
        made = AllocationOwner(self.resources, memory)
        driver.run(
            driver.contexts[device_id], self._obtain, memory, nbytes, alignment, obtain, write
        )
        made.data, made.nbytes = memory.cell.value, nbytes
        if made.data % alignment:  # 256 is what drivers give without being asked
            del made, memory
            made = Memory.allocate(self, device_id, nbytes + alignment, 1, stream, obtain)
            made.data += -made.data % alignment
            made.nbytes = nbytes
            if write is not None:
                driver.run(driver.contexts[device_id], write, made.data)
        return made

    def _obtain(
        self, memory: DriverMemory, nbytes: int, alignment: int, obtain: Any, write: Any
    ) -> None:
        """Fill the cell of *memory*, in its context; and the memory, if it is aligned."""
        driver, device_id, stream = self.driver, memory.device_id, memory.stream
        if stream != driver.default_stream:
            driver.require_stream(stream, device_id)
        # The question by itself, as each call counts: `StreamDriver.stream_state` says what it is.
        captured = c_int()
        if driver.functions.is_capturing(stream, captured) or captured.value:
            refuse_capture(driver, stream, "allocated")
        if self.resources.ended:
            self.settle()
        self._used[device_id] = True
        try:
            (obtain or self.obtain)(memory, nbytes)
        except DeviceMemoryError:
            self._make_room(device_id, stream)
            try:
                (obtain or self.obtain_after_trim)(memory, nbytes)
            except DeviceMemoryError as exc:
                free, total = driver.room()
                raise DeviceMemoryError(
                    f"no room for {nbytes} bytes of {self.name} memory (device {device_id} has "
                    f"{free} of {total} bytes free); {exc}"
                ) from exc
        if write is not None and not memory.cell.value % alignment:
            write(memory.cell.value)

    def _make_room(self, device_id: int, stream: int) -> None:
        """Finish the frees that are on the way.

        Only streams with frees on them are waited for: a wait for the whole device ends every
        capture of the context (CUDA programming guide, stream capture, "Prohibited and
        Unhandled Operations"; CHECK_SUPPORTED_DURING_CAPTURE in AMD's code).
        """
        self.settle(wait=True)
        self.trim(device_id, stream)

    def settle(self, wait: bool = False) -> None:
        """Free what can be freed now; failures are logged, for a finalizer has no caller.

        Parameters
        ----------
        wait : bool
            Block for the streams that still use the memory.
        """
        self.resources.sweep(wait=wait)

    def _give_back(self, memory: DriverMemory, wait: bool = False) -> bool:
        """Free *memory* once the work on its stream, and that of all consumers, is done.

        It raises nothing of its own. While one of the streams is capturing, the memory is kept
        until a later call: a free would become part of the graph, or end the capture.
        """
        if not (memory.cell.value or memory.parts) or (memory.codes and memory.codes[-1] == 0):
            return True
        driver = self.driver
        try:
            return driver.run(
                driver.contexts[memory.device_id], self._free, memory, wait or memory.must_wait
            )
        except Error as exc:  # the memory is lost
            self._report(memory.pointer, str(exc))  # its text: a record must not keep frames
            with suppress(Error):
                for context, event, _ in memory.events:
                    self.events.give_back(context, event)
            return True

    def _free(self, memory: DriverMemory, wait: bool) -> bool:
        driver, consumers = self.driver, memory.consumers
        if consumers is None:
            if memory.stream == driver.default_stream and memory.born == self.consumers.latest:
                consumers = memory.consumers = []  # as most memory
            else:
                consumers = self._begin(memory)
        try:
            captured = c_int()  # as in `_obtain`
            code = driver.functions.is_capturing(memory.stream, captured)
            runs = not (code or captured.value) or driver.stream_state(memory.stream) is _RUNS
            if (
                runs
                and (not consumers or self._mark(memory, wait))
                and (not memory.events or self._has_passed(memory, wait))
            ):
                self.release(memory)
                return True
        except CaptureError:  # it began after we asked, or the driver refuses beside any
            pass
        except StreamGoneError:  # it ended after we asked: all work is waited for, later
            if memory.stream == driver.default_stream:
                raise
            memory.consumers = [*consumers, (Consumer(ALL_STREAMS, memory.device_id), None)]
            memory.stream = driver.default_stream
        self._put_off(memory)
        return False

    def _begin(self, memory: DriverMemory) -> list[tuple[Consumer, object]]:
        """Find out which streams may still use the memory."""
        driver, stream, device_id = self.driver, memory.stream, memory.device_id
        uses: list[tuple[Consumer, object]] = []
        if stream in (0, driver.default_stream):
            stream = driver.default_stream
        elif driver.exists(stream, device_id):
            stream = driver.all_threads(stream)  # this may be another thread
        else:
            uses.append((Consumer(ALL_STREAMS, device_id), None))
            stream = driver.default_stream
        if self.consumers.latest > memory.born:
            uses += self.consumers.uses(device_id, memory.born, stream)
        memory.stream = stream
        memory.consumers = uses
        return uses

    def _put_off(self, memory: DriverMemory) -> None:
        """Keep its stream, or free on the default one, which stays."""
        driver, stream, consumers = self.driver, memory.stream, memory.consumers
        if stream == driver.default_stream or memory.keeper is not None or consumers is None:
            return
        with suppress(Error):
            consumer, memory.keeper = consumer_of(driver, stream, memory.device_id)
            if memory.keeper is None:
                consumers.append((consumer, None))
                memory.stream = driver.default_stream

    def give_back(self, device_id: int) -> None:
        """Give the system what was freed, as far as no work uses it any more.

        It waits for the work on the default stream, and opens no device that was not used.

        Raises
        ------
        dlbridge.errors.ExchangeError
            While a capture is under way that such a wait would end.
        """
        driver, stream = self.driver, self.driver.default_stream
        self.settle()
        if device_id in self._used:
            driver.run(driver.contexts[device_id], self._trim, device_id, stream)

    def _trim(self, device_id: int, stream: int) -> None:
        refuse_disturbing(self.driver, stream)
        self.trim(device_id, stream)

    def _mark(self, memory: DriverMemory, wait: bool) -> bool:
        """Put an event behind the work of each consumer; False while one is capturing.

        Where there is no room (*wait*), a capture may be ended by an event behind all streams.
        """
        driver, consumers = self.driver, memory.consumers
        while consumers:
            _, home, context = consumers[-1][0]
            context = driver.contexts[home] if context is None else context
            if not driver.run(context, self._record, memory, consumers[-1], wait):
                return False
            consumers.pop()
        return True

    def _record(self, memory: DriverMemory, consumer: tuple[Consumer, object], wait: bool) -> bool:
        """Put an event behind the work of a consumer of *memory*, in its context."""
        driver, (stream, home, context) = self.driver, consumer[0]
        can_end = wait and stream == ALL_STREAMS
        if not can_end and driver.stream_state(stream) is not _RUNS:
            return False
        try:
            if context is None:
                context = driver.context_of(stream, home)
            memory.events.append((context, self.events.record(context, stream), consumer))
        except StreamGoneError:  # no event can be behind its work, which may still run
            driver.wait_for_device()
            return True
        if can_end or driver.stream_state(stream) is _RUNS:
            return True
        # Another thread's capture began meanwhile, and may have taken the event: to ask about it
        # would end that (an H100 showed it 25 times in 1,000 captures beside two busy threads).
        self.events.give_back(*memory.events.pop()[:2])
        return False

    def _has_passed(self, memory: DriverMemory, wait: bool) -> bool:
        """Whether the free may be made behind the events of *memory*, which are given back."""
        driver = self.driver
        while memory.events:
            context, event, consumer = memory.events[-1]
            if wait or not (self.polls and driver.polls_events):
                with suppress(StreamGoneError):  # then `release` waits for everything
                    driver.wait_event(memory.stream, event)
            else:
                try:
                    if not driver.is_event_done(event):
                        return False
                except CaptureError:  # it was taken by a capture, and stands for nothing
                    memory.consumers = [*(memory.consumers or ()), consumer]
            memory.events.pop()
            self.events.give_back(context, event)
        return not memory.consumers

    def _report(self, pointer: int, why: str) -> None:
        lost = self.driver.table.lost
        if lost and lost == self._said_lost:
            return  # every free fails now, and the first one has said why
        self._said_lost = lost
        _log.error("%s memory at %#x is not freed: %s", self.name, pointer, why)


# Device memory from a pool, plain where there is none ---------------------------------

FREES_KEPT = 256
"""Of so many streams the last free is remembered, to be waited for when there is no room."""


class PoolMemory(Memory):
    """Memory of each device's pool.

    Parameters
    ----------
    driver : StreamDriver
        The driver; `StreamDriver.pool` is None for a device without pools.
    events : EventPool
        Its events.
    name : str
        The device's name, for messages.
    """

    polls = True

    def __init__(self, driver: StreamDriver, events: EventPool, name: str) -> None:
        super().__init__(driver, events, name)
        # (device, stream) -> an event behind its last free. Not the streams themselves: a
        # destroyed one must not be waited for, and its handle may be another's.
        self._last_frees: dict[tuple[int, int], tuple[Hashable, Any]] = {}

    def obtain(self, memory: DriverMemory, nbytes: int) -> None:
        """Memory of the pool; plain memory while a capture forbids the pool's functions."""
        pool = self.driver.pools[memory.device_id]
        if pool is not None:
            try:
                self.driver.allocate_async(pool, nbytes, memory.stream, memory.cell)
                return
            except (CaptureError, NoPoolError):  # ROCm refuses beside any stream's capture
                pass
        self._obtain_plain(memory, nbytes)

    def obtain_after_trim(self, memory: DriverMemory, nbytes: int) -> None:
        """Memory of the pool; plain memory if that may have room where the pool finds none."""
        if self.driver.pools_find_all_room:
            self.obtain(memory, nbytes)
        else:
            self._obtain_plain(memory, nbytes)

    def _obtain_plain(self, memory: DriverMemory, nbytes: int) -> None:
        memory.is_plain = True
        self.driver.allocate(nbytes, memory.cell)

    def release(self, memory: DriverMemory) -> None:
        """Free behind the work on its stream; without a pool, after waiting for it.

        What several calls gave (``memory.parts``) ends after the wait, by its ``end``.
        """
        driver, stream = self.driver, memory.stream
        if memory.parts is not None:
            driver.wait_for_stream(stream)
            memory.parts.end()
        elif memory.is_plain:
            driver.wait_for_stream(stream)
            driver.free(memory.pointer, memory.codes)
        else:
            driver.free_async(memory.cell.value, stream, memory.codes)
            if stream != driver.default_stream:
                self._remember(memory.device_id, stream)

    def trim(self, device_id: int, stream: int) -> None:
        """Wait for the frees on the way, then give the system what the pool keeps."""
        driver = self.driver
        default = driver.default_stream
        if stream != default and driver.stream_state(default) is StreamState.RUNS:
            self._remember(device_id, default)  # most frees are on it, and leave no event
        for key in [key for key in list(self._last_frees) if key[0] == device_id]:
            context, event = self._last_frees.pop(key, (None, None))
            if event is not None:
                driver.wait_event(stream, event)
                self.events.give_back(context, event)
        super().trim(device_id, stream)
        pool = driver.pools[device_id]
        if pool is not None:
            driver.trim_pool(pool)

    def _remember(self, device_id: int, stream: int) -> None:
        """Put an event behind the last free on *stream*."""
        try:
            last = self._last_frees.pop((device_id, stream), None)
            if last is not None:
                self.events.give_back(*last)
            context = self.driver.context_of(stream, device_id)
            last = context, self.events.record(context, stream)
            kept = self._last_frees.setdefault((device_id, stream), last)
            if kept is not last:  # another thread's free was faster
                self.events.give_back(*last)
            if len(self._last_frees) > FREES_KEPT:
                oldest = next(iter(list(self._last_frees)))
                context, event = self._last_frees.pop(oldest, (None, None))
                if event is not None:
                    self.events.give_back(context, event)
        except Error as exc:  # the free itself is queued
            _log.warning("a free of %s memory will not be waited for: %s", self.name, str(exc))


# Page-locked memory of the host -------------------------------------------------------


class _Pages:
    """Host memory that is used in place, by one import or several."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.users: set[DriverMemory] = set()
        self.locked: list[int] = []  # statuses of the driver's calls that lock and unlock it
        self.unlocked: list[int] = []

    @property
    def are_ours(self) -> bool:
        """Whether we have locked them, and not unlocked."""
        return self.locked[-1:] == [0] != self.unlocked[-1:]


class PinnedMemory(Memory):
    """Page-locked memory that every device can use at its host address.

    It is not kept for re-use: copies of other libraries may still run on streams that are
    unknown here, and only the driver's own free waits for those.

    Parameters
    ----------
    driver : StreamDriver
        The driver.
    events : EventPool
        Its events.
    name : str
        The device's name, for messages.
    """

    def __init__(self, driver: StreamDriver, events: EventPool, name: str) -> None:
        super().__init__(driver, events, name)
        self._pages: set[_Pages] = set()  # that we have locked
        self._lock = shared_lock()  # re-entered by a finalizer that frees

    def import_refusal(self, device_id: int, address: int, nbytes: int) -> str:
        """Say why host memory cannot be page-locked in place.

        Parameters
        ----------
        device_id : int
            The device whose driver is asked.
        address, nbytes : int
            The memory.

        Returns
        -------
        str
            The reason; empty if it can be locked, or is locked already.
        """
        with self._lock:  # no import begins or ends between the questions
            return self._import_refusal(device_id, address, nbytes)

    def _import_refusal(self, device_id: int, address: int, nbytes: int) -> str:
        first = self.driver.locate(address, device_id).kind
        last = self.driver.locate(address + nbytes - 1, device_id).kind
        if self._locked_around(address, nbytes):
            return ""
        end = address + nbytes
        if any(each.start < end and address < each.end for each in self._ours()):
            return "a part of it is page-locked already, by another import"
        if {first, last} == {"host", "pageable"}:
            return "a part of it is page-locked already, and the rest is not"
        if first == last == "host":
            return ""
        if {first, last} != {"pageable"}:
            kind = first if first != "pageable" else last
            return f"it is {kind} memory, which cannot be page-locked"
        if address % mmap.PAGESIZE:
            return f"it does not begin at a page of {mmap.PAGESIZE} bytes, which are locked whole"
        return ""

    def _ours(self) -> list[_Pages]:
        return [each for each in self._pages.copy() if each.are_ours]

    def _locked_around(self, address: int, nbytes: int) -> _Pages | None:
        """The import that the memory is inside, if there is one."""
        around = (p for p in self._ours() if p.start <= address and address + nbytes <= p.end)
        return next(around, None)

    def import_host(
        self, device_id: int, address: int, nbytes: int, readonly: bool, stream: int
    ) -> AllocationOwner[DriverMemory]:
        """Somebody's memory in place, page-locked if it is not yet; dropped, it is unlocked.

        Memory inside an import shares its lock.

        Raises
        ------
        dlbridge.errors.ExchangeError
            As `import_refusal` says, or if the driver refuses; the memory has to be copied then.
        """
        driver = self.driver
        made = self.own(device_id, stream)
        memory = made.resource
        with self._lock:
            refusal = self._import_refusal(device_id, address, nbytes)
            if refusal:
                raise ExchangeError(
                    f"the memory at {address:#x} cannot be used in place: {refusal}"
                )
            around = self._locked_around(address, nbytes)
            pages = memory.parts = around or _Pages(address, address + nbytes)
            pages.users.add(memory)
            memory.cell.value = made.data = address
            made.nbytes = nbytes
            if around or driver.locate(address, device_id).kind == "host":
                return made
            self._pages.add(pages)
            try:
                lock = driver.lock_pages, device_id, address, nbytes, readonly, pages.locked
                driver.run(driver.contexts[device_id], *lock)
            except Error as exc:
                del made  # now, and not with the frames that the exception keeps
                if pages.locked and pages.locked[-1] in driver.cannot_lock:
                    raise ExchangeError(
                        f"the memory at {address:#x} cannot be page-locked in place ({exc}); "
                        "copy it instead"
                    ) from exc
                raise
        return made

    def obtain(self, memory: DriverMemory, nbytes: int) -> None:
        """New page-locked memory."""
        self.driver.allocate_pinned(nbytes, memory.cell)

    def release(self, memory: DriverMemory) -> None:
        """Free *memory*, or let the last of its imports unlock it, after the work on its stream."""
        # Also if others remain, who do not know the stream.
        self.driver.wait_for_stream(memory.stream)
        pages = memory.parts
        if pages is None:
            self.driver.free_pinned(memory.pointer, memory.codes)
            return
        with self._lock:
            pages.users.discard(memory)
            if not pages.users:
                if pages.are_ours:
                    self.driver.unlock_pages(pages.start, pages.unlocked)
                self._pages.discard(pages)
