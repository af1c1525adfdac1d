"""Large pageable memory, copied by several threads: to a device through a ring of pinned chunks.

A driver's own pageable copies are one thread's memcpy; here several threads copy the next
chunks while the DMA engine moves the last. Only the calling thread talks to the driver: the
helpers do nothing but memcpy and make pages, so the stream's order, also that of a default stream
of its own, is the caller's.

A copy may be cut off by an exception anywhere. No lock of Python's is waited for: a finalizer or a
signal handler may copy as well. Each step of a helper that must not be done twice, or left half
done, is one call of a function in C.

Which copies are staged was measured. The thread is in the stream's context, and the stream is not
capturing.
"""

from __future__ import annotations

import ctypes
import os
import sys
from _thread import start_new_thread
from collections import deque
from contextlib import suppress
from ctypes import c_uint64
from itertools import starmap
from mmap import PAGESIZE
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from dlbridge.errors import DeviceMemoryError, Error

from .driver import StreamDriver
from .resources import Owner, Resources, call, do_all

__all__ = [
    "DIRECT",
    "PLAN",
    "Helpers",
    "HostCopies",
    "Job",
    "NoRing",
    "PagesJob",
    "Plan",
    "Ring",
    "StagedCopies",
    "Stager",
]


# Helpers ------------------------------------------------------------------------------


_memmove = ctypes.memmove
"""The function itself, and none of Python's, which a signal handler could enter."""


_POPULATE_WRITE = 23  # madvise(2): MADV_POPULATE_WRITE, since Linux 5.14; before, an error
_madvise: Any = max  # which does nothing, where the system has no such call
if sys.platform == "linux":
    _madvise = ctypes.CDLL(None).madvise
    _madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


_MOST = (os.cpu_count() or 1) + 4
"""Threads."""


class Job:
    """One memcpy, done once: by a helper, or by its owner if no helper has begun it.

    Its owner keeps it where it is found again before a helper gets it, and waits for its end
    before the memory is used or freed.

    Parameters
    ----------
    target, source : int
        Addresses.
    nbytes : int
        How much.
    """

    __slots__ = ("_arguments", "_ended", "_news")

    def __init__(self, target: int, source: int, nbytes: int) -> None:
        self._arguments = iter([(target, source, nbytes)])
        self._ended: list[object] = []
        self._news: SimpleQueue[None] = SimpleQueue()

    def work(self) -> None:
        """Copy, unless somebody has begun; ctypes drops the GIL meanwhile."""
        # Taken, copied and noted in C: no signal handler comes between, and nobody else.
        self._ended.extend(starmap(_memmove, self._arguments))

    def help(self) -> None:
        """As a helper: `work`, and wake the owner."""
        self.work()
        self._news.put(None)

    def wait(self) -> None:
        """Block until the bytes are there."""
        self.work()
        self._wait_for_end()

    def cancel(self) -> None:
        """Block until nobody copies: what has begun ends, and else nothing begins."""
        self._ended.extend(self._arguments)
        self._wait_for_end()

    def _wait_for_end(self) -> None:
        while not self._ended:
            with suppress(Empty):  # an exception may have come after it, so not for ever
                self._news.get(timeout=0.05)


class PagesJob(Job):
    """The pages of memory that is written next, made as by a write, which changes nothing in it.

    Where the system cannot do that, or not for this memory, the write makes them.

    Parameters
    ----------
    start : int
        The address of a page.
    nbytes : int
        How much, in whole pages.
    """

    __slots__ = ()

    def __init__(self, start: int, nbytes: int) -> None:
        super().__init__(start, nbytes, _POPULATE_WRITE)

    def work(self) -> None:
        """Make the pages, unless somebody has begun."""
        self._ended.extend(starmap(_madvise, self._arguments))


class Helpers:
    """Threads that are started when a job finds none idle."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        # Both are taken from by `pop`, which is one step.
        self._idle: list[None] = []
        self._to_start: list[None] = [None] * _MOST

    def put(self, job: Job) -> None:
        """Have *job* done soon. Where no thread can be started its owner does it, in `Job.wait`."""
        self._jobs.put(job)
        try:
            self._idle.pop()
        except IndexError:
            self._start()

    def close(self) -> None:
        """End the threads; there are no jobs any more."""
        for _ in range(_MOST - len(self._to_start)):
            self._jobs.put(None)

    def _start(self) -> None:
        try:
            self._to_start.pop()
        except IndexError:  # one of the threads takes it when it has time
            return
        begun: list[int] = []
        try:
            begun.extend(map(start_new_thread, [self._run], [()]))
        except RuntimeError as exc:
            if not str(exc).startswith("can't"):  # no: a signal handler's
                raise
        finally:
            if not begun:  # at the limit of threads, or while the interpreter ends
                self._to_start.append(None)

    def _run(self) -> None:
        jobs = self._jobs
        while True:
            if jobs.empty():
                self._idle.append(None)
            job = jobs.get()
            if job is None:
                return
            job.help()


# A ring -------------------------------------------------------------------------------


class Plan(NamedTuple):
    """How to stage pageable memory."""

    chunk: int
    """Bytes in each chunk."""
    threads: int
    """Helper threads, at least 1."""

    @property
    def slots(self) -> int:
        """Chunks in the ring; each thread fills one while one of its own is moved."""
        return 2 * self.threads


PLAN = Plan(4 << 20, 4)
"""The fastest of six with 1 to 8 threads and chunks of 1 to 4 MiB, on an H100 with 16 cores
(docs/benchmarks/cuda-gpu.md)."""


class NoRing(DeviceMemoryError):
    """There is no pinned memory for a ring, and nothing was copied."""


class _Chunks:
    """What a driver gave for a ring."""

    def __init__(self) -> None:
        self.cell = c_uint64()
        self.codes: list[int] = []
        """The statuses of the driver's calls that take the memory back."""
        self.events: list[Any] = []


class Ring(Owner[_Chunks]):
    """The pinned chunks of one copy at a time, on one device, and their events.

    The memory is kept for the life of the process: page-locking costs as much as copying a few
    times over.

    Parameters
    ----------
    rings : Resources
        Those of its device.
    driver : StreamDriver
        The driver; the thread is in the device's context.
    plan : Plan
        How many chunks, and how large.
    """

    __slots__ = ("_driver", "chunks", "events", "has_all_events", "plan")

    def __init__(self, rings: Resources[_Chunks], driver: StreamDriver, plan: Plan) -> None:
        super().__init__(rings, _Chunks())
        self.plan = plan
        self.has_all_events = True
        """False from before a DMA is queued until its event is recorded."""
        self._driver = driver
        size, cell, self.events = plan.chunk * plan.slots, self.resource.cell, self.resource.events
        driver.allocate_pinned(size, cell)
        for _ in range(plan.slots):
            call(self.events, driver.create_event)
        self.chunks = range(cell.value, cell.value + size, plan.chunk)

    def record(self, slot: int, stream: int) -> None:
        """Note that the DMA of *slot* is the last work on *stream* now."""
        self._driver.record_event(self.events[slot], stream)
        self.has_all_events = True

    def wait_for_dma(self, slot: int) -> None:
        """Block until the DMA engine no longer reads *slot*."""
        self._driver.wait_for_event(self.events[slot])


class Stager:
    """Staged copies to the memory of one device.

    Parameters
    ----------
    driver : StreamDriver
        The driver.
    device_id : int
        The device of the streams that the copies are queued on.
    plan : Plan, optional
        How many chunks each ring has, and how large.
    """

    def __init__(self, driver: StreamDriver, device_id: int, plan: Plan = PLAN) -> None:
        self._driver = driver
        self._device_id = device_id
        self._plan = plan
        self._rings: Resources[_Chunks] = Resources(self._give_back)
        self._idle: list[Ring] = []  # list methods are atomic
        self._unknown: list[Ring] = []  # a DMA may use them
        self._helpers = Helpers()

    def to_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy host bytes at *source* to *target*, in the order of *stream*.

        *source* has been read on return; the last chunks may still be moving.
        It is called by `StreamDriver.run`, in the device's context.

        Copies never wait for one another's ring: one of them may stand in a
        stream behind work that waits for the other.
        """
        held: list[Ring] = []
        home = self._idle
        try:
            # A ring comes and goes by one step of C: no signal handler's exception loses one.
            while not held:
                try:
                    held.extend(starmap(self._idle.pop, [()]))
                except IndexError:
                    self._idle.append(self._make_ring())
            self._fill(held[0], target, source, nbytes, stream)
        except BaseException:
            if held and not held[0].has_all_events:
                home = self._unknown  # if this wait is cut off: one for the device ends captures
                self._driver.wait_for_stream(stream)
                held[0].has_all_events = True
                home = self._idle
            raise
        finally:
            home.extend(held)  # its events tell the next user which DMA still runs

    def close(self) -> None:
        """Give everything back; no copy runs, and the thread is in the device's context."""
        self._idle.clear()
        self._unknown.clear()
        self._helpers.close()

    def _make_ring(self) -> Ring:
        try:
            return Ring(self._rings, self._driver, self._plan)
        except Error as exc:
            raise NoRing(str(exc)) from exc

    def _give_back(self, chunks: _Chunks) -> bool:
        """Free what a ring had, which no DMA uses any more."""
        with suppress(Error):
            self._driver.run(self._driver.contexts[self._device_id], self._free, chunks)
        return True

    def _free(self, chunks: _Chunks) -> None:
        while chunks.events:
            self._driver.destroy_event(chunks.events.pop())
        if chunks.cell.value and chunks.codes[-1:] != [0]:
            self._driver.free_pinned(chunks.cell.value, chunks.codes)

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
            do_all(lambda entry: entry[-1].cancel(), filling)

    def _send(
        self, ring: Ring, target: int, stream: int, slot: int, start: int, size: int, job: Job
    ) -> None:
        job.wait()
        ring.has_all_events = False
        self._driver.copy_from_host(target + start, ring.chunks[slot], size, stream)
        ring.record(slot, stream)


# Copies by the driver, or staged ------------------------------------------------------


DIRECT = 16 << 20
"""Bytes up to which the driver copies pageable memory to the device. On an H100 its call took 0.6
of the ring's time at 16 MiB and 2.4 times as long at 64 MiB; nothing between was measured."""


class HostCopies:
    """Copies by the driver, which stages pageable memory itself.

    Parameters
    ----------
    driver : StreamDriver
        The driver.
    """

    def __init__(self, driver: StreamDriver) -> None:
        self.driver = driver

    def from_host(self, device_id: int, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy of host bytes at *source*, which may be read until *stream* is done."""
        self.driver.copy_from_host(target, source, nbytes, stream)

    def to_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy of device memory at *source* to the host."""
        self.driver.copy_to_host(target, source, nbytes, stream)


class StagedCopies(HostCopies):
    """Copies of large pageable memory to the device through a ring of pinned chunks.

    Such memory has been read when `from_host` returns. To the host the driver copies, with one
    thread: into memory that is there a ring was as fast (0.9 to 1.1 times its speed on an H100).
    New memory is made by several threads before: an H100's machine copied 64 MiB at 10.7 GB/s into
    memory that is there, at 2.9 into new memory, and at 13 through a ring with 4 threads, which
    touched it first.

    Parameters
    ----------
    driver : StreamDriver
        The driver.
    """

    def __init__(self, driver: StreamDriver) -> None:
        super().__init__(driver)
        self._stagers: dict[int, Stager] = {}
        self._helpers = Helpers()

    def from_host(self, device_id: int, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy of host bytes at *source*."""
        if nbytes > DIRECT and self.is_staged(device_id, source, nbytes):
            home = self.driver.stream_device(stream, device_id)
            if home is not None:
                try:
                    self.stager(home).to_device(target, source, nbytes, stream)
                    return
                except NoRing:  # the driver has a buffer of its own
                    pass
        self.driver.copy_from_host(target, source, nbytes, stream)

    def to_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy to the host, once the pages of large memory are there."""
        if nbytes > DIRECT:
            self._make_pages(target, nbytes)
        self.driver.copy_to_host(target, source, nbytes, stream)

    def _make_pages(self, target: int, nbytes: int) -> None:
        start, end = target + -target % PAGESIZE, target + nbytes
        step = (end - start) // PLAN.threads // PAGESIZE * PAGESIZE
        jobs = [PagesJob(start + number * step, step) for number in range(PLAN.threads)]
        try:
            for job in jobs:
                self._helpers.put(job)
            for job in jobs:
                job.wait()
        finally:  # after an exception: the memory may be freed
            do_all(Job.cancel, jobs)

    def is_staged(self, device_id: int, address: int, nbytes: int) -> bool:
        """Whether the ring is faster: for large memory that the device reads slowly."""
        driver = self.driver
        return (
            nbytes > DIRECT
            and not driver.reads_pageable(device_id)
            and driver.locate(address, device_id).kind == "pageable"
        )

    def stager(self, device_id: int) -> Stager:
        """The stager for streams of a device."""
        stager = self._stagers.get(device_id)
        return stager or self._stagers.setdefault(device_id, Stager(self.driver, device_id))
