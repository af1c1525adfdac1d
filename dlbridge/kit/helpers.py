"""Threads that copy memory, or make its pages, for copies that an exception may cut off anywhere.

Nothing here waits for a lock of Python's: a finalizer or a signal handler may copy as well. Each
step that must not be done twice, or left half done, is one call of a function in C.
"""

from __future__ import annotations

import ctypes
import os
import sys
from _thread import start_new_thread
from contextlib import suppress
from itertools import starmap
from queue import Empty, SimpleQueue
from typing import Any

__all__ = ["Helpers", "Job", "PagesJob"]

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
