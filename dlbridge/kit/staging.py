"""Pageable memory, copied through a ring of pinned chunks that several threads fill.

A driver's own pageable copies are one thread's memcpy; here several threads copy the next
chunks while the DMA engine moves the last. Only the calling thread talks to the driver: the
helpers do nothing but memcpy, so the stream's order, also that of a default stream of its own,
is the caller's. The sizes of chunks and rings are chosen in `tuning`.
"""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from ctypes import c_uint64
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge.errors import DeviceMemoryError, Error

from .claims import uninterrupted
from .driver import StreamDriver
from .helpers import Helpers, Job, cancel_all

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ARENA", "DIRECT", "NoRing", "Plan", "Ring", "Stager"]

ARENA = 32 << 20
"""Bytes of pinned memory that every ring of `tuning.CANDIDATES` fits in."""


class Plan(NamedTuple):
    """How to stage pageable memory."""

    chunk: int
    """Bytes in each chunk."""
    threads: int
    """Helper threads; with 0 nothing is staged."""

    @property
    def slots(self) -> int:
        """Chunks in the ring; each thread fills one while one of its own is moved."""
        return 2 * self.threads


DIRECT = Plan(0, 0)


class NoRing(DeviceMemoryError):
    """There is no pinned memory for a ring, and nothing was copied."""


class Ring:
    """The pinned chunks of one copy at a time, on one device, and their events.

    The memory is kept for the life of the process: page-locking costs as much as copying a few
    times over. It is made where no signal handler comes (`claims.uninterrupted`).

    Parameters
    ----------
    driver : StreamDriver
        The driver.
    device_id : int
        The device whose streams use the ring.
    plan : Plan
        How many chunks, and how large.
    spare : list of int
        As for `Stager`.
    """

    def __init__(self, driver: StreamDriver, device_id: int, plan: Plan, spare: list[int]) -> None:
        self.plan = plan
        self.events: list[Any] = []
        self.has_all_events = True
        """False from before a DMA is queued until its event is recorded."""
        self._driver = driver
        self._spare = spare
        with driver.at(driver.place(device_id)), driver.relaxed():
            size = plan.chunk * plan.slots
            self._is_spare = size <= ARENA and bool(spare)
            if self._is_spare:
                try:
                    self._memory = spare.pop()
                except IndexError:  # another thread was faster
                    self._is_spare = False
            if not self._is_spare:
                cell = c_uint64()
                driver.allocate_pinned(size, cell)
                self._memory = cell.value
            try:
                for _ in range(plan.slots):
                    self.events.append(driver.create_event())
            except BaseException:
                self.close()
                raise
        self.chunks = range(self._memory, self._memory + size, plan.chunk)

    def close(self) -> None:
        """Free the chunks; the thread is in the device's place, and no DMA runs."""
        with self._driver.relaxed(), ExitStack() as cleanup:  # each, also if another fails
            if self._is_spare:
                self._spare.append(self._memory)
            else:
                cleanup.callback(self._driver.free_pinned, self._memory, [])
            for event in self.events:
                cleanup.callback(self._driver.destroy_event, event)

    def record(self, slot: int, stream: int) -> None:
        """Note that the DMA of *slot* is the last work on *stream* now."""
        self._driver.record_event(self.events[slot], stream)
        self.has_all_events = True

    def wait_for_dma(self, slot: int) -> None:
        """Block until the DMA engine no longer reads or writes *slot*."""
        self._driver.wait_for_event(self.events[slot])


class Stager:
    """Staged copies to and from the memory of one device.

    Parameters
    ----------
    driver : StreamDriver
        The driver.
    device_id : int
        The device of the streams that the copies are queued on.
    spare : list of int
        Pinned memory, each of `ARENA` bytes, that rings take before they allocate, and give back.
    """

    def __init__(
        self, driver: StreamDriver, device_id: int, spare: list[int] | None = None
    ) -> None:
        self._driver = driver
        self._spare = [] if spare is None else spare
        self._device_id = device_id
        self._free: dict[Plan, list[Ring]] = {}  # list methods are atomic
        self._unknown: list[Ring] = []  # a DMA may use them
        self._helpers = Helpers()

    def to_device(self, target: int, source: int, nbytes: int, stream: int, plan: Plan) -> None:
        """Copy host bytes at *source* to *target*, in the order of *stream*.

        *source* has been read on return; the last chunks may still be moving.
        The thread is in the device's place.
        """
        self._with_ring(plan, stream, lambda ring: self._fill(ring, target, source, nbytes, stream))

    def to_host(self, target: int, source: int, nbytes: int, stream: int, plan: Plan) -> None:
        """Copy device bytes at *source* to host *target*; all there on return."""
        self._with_ring(
            plan, stream, lambda ring: self._drain(ring, target, source, nbytes, stream)
        )

    def close(self) -> None:
        """Give everything back; no copy runs, and the thread is in the device's place."""
        with ExitStack() as cleanup:  # each, also if another fails
            for rings in (*self._free.values(), self._unknown):
                for ring in rings:
                    cleanup.callback(ring.close)
            self._free.clear()
            cleanup.callback(self._helpers.close)

    def _with_ring(self, plan: Plan, stream: int, work: Callable[[Ring], None]) -> None:
        """Run *work*, whose DMA is on *stream*, with a ring that nobody else uses.

        Copies never wait for one another's ring: one of them may stand in a
        stream behind work that waits for the other.
        """
        free = self._free.setdefault(plan, [])
        held: list[Ring] = []
        home = free
        try:
            # A ring comes and goes by one step of C: no signal handler's exception loses one.
            while not held:
                try:
                    held.extend(starmap(free.pop, [()]))
                except IndexError:
                    uninterrupted(lambda: free.append(self._make_ring(plan)))
            work(held[0])
        except BaseException:
            if held and not held[0].has_all_events:
                home = self._unknown  # if this wait is cut off: one for the device ends captures
                self._driver.wait_for_stream(stream)
                held[0].has_all_events = True
                home = free
            raise
        finally:
            home.extend(held)  # its events tell the next user which DMA still runs

    def _make_ring(self, plan: Plan) -> Ring:
        try:
            return Ring(self._driver, self._device_id, plan, self._spare)
        except Error as exc:
            raise NoRing(str(exc)) from exc

    def _fill(self, ring: Ring, target: int, source: int, nbytes: int, stream: int) -> None:
        filling: deque[tuple[int, int, int, Job]] = deque()
        try:
            for index, start in enumerate(range(0, nbytes, ring.plan.chunk)):
                if len(filling) == ring.plan.threads:
                    self._send(ring, target, stream, *filling[0])
                    filling.popleft()
                slot = index % ring.plan.slots
                size = min(ring.plan.chunk, nbytes - start)
                ring.wait_for_dma(slot)
                job = Job(ring.chunks[slot], source + start, size)
                filling.append((slot, start, size, job))
                self._helpers.put(job)
            while filling:
                self._send(ring, target, stream, *filling[0])
                filling.popleft()
        finally:  # after a failure: no helper may still write to the ring
            cancel_all(job for *_, job in filling)

    def _send(
        self, ring: Ring, target: int, stream: int, slot: int, start: int, size: int, job: Job
    ) -> None:
        job.wait()
        ring.has_all_events = False
        self._driver.copy_from_host(target + start, ring.chunks[slot], size, stream)
        ring.record(slot, stream)

    def _drain(self, ring: Ring, target: int, source: int, nbytes: int, stream: int) -> None:
        moving: deque[tuple[int, int, int]] = deque()
        emptied: dict[int, Job] = {}  # slot -> its copy to the target
        try:
            for index, start in enumerate(range(0, nbytes, ring.plan.chunk)):
                slot = index % ring.plan.slots
                size = min(ring.plan.chunk, nbytes - start)
                job = emptied.get(slot)
                if job is not None:
                    job.wait()
                else:  # the ring's last user may have left it with a DMA on another stream
                    ring.wait_for_dma(slot)
                ring.has_all_events = False
                self._driver.copy_to_host(ring.chunks[slot], source + start, size, stream)
                ring.record(slot, stream)
                moving.append((slot, start, size))
                if len(moving) > ring.plan.threads:
                    self._empty(ring, target, emptied, *moving.popleft())
            while moving:
                self._empty(ring, target, emptied, *moving.popleft())
            for job in emptied.values():
                job.wait()
        finally:  # after a failure: no helper still writes to the target
            cancel_all(emptied.values())

    def _empty(
        self, ring: Ring, target: int, emptied: dict[int, Job], slot: int, start: int, size: int
    ) -> None:
        ring.wait_for_dma(slot)
        job = emptied[slot] = Job(target + start, ring.chunks[slot], size)
        self._helpers.put(job)
