"""Queues of work: done at once, or late and elsewhere as on a real device."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Queue = SimpleQueue[Callable[[], object] | None]

__all__ = ["Stream", "by_handle"]


class Stream:
    """A queue of work on one device; what this ecosystem's users pass as ``stream=``.

    With ``DLBRIDGE_FAKE_DELAY_US=n`` in the environment each piece of work runs
    n microseconds late, on the stream's own thread; without it, before
    `enqueue` returns. In a ``with`` block it is the thread's current stream.
    """

    def __init__(self, device_id: int = 0) -> None:
        self.device_id = device_id
        self.handle = next(_handles)
        self._outer: list[Stream | None] = []
        self._work: Queue | None = None
        if delay := int(os.environ.get("DLBRIDGE_FAKE_DELAY_US", "0")):
            self._work = SimpleQueue()
            # The thread holds the queue and not the stream, so that a stream
            # which nobody holds ends, and its thread with it.
            threading.Thread(target=_run, args=(self._work, delay / 1e6), daemon=True).start()
        by_handle[self.handle] = self

    def enqueue(self, work: Callable[[], object]) -> None:
        """Do *work* after all that was enqueued before it."""
        if self._work is None:
            work()
        else:
            self._work.put(work)  # re-entrant, so a finalizer may come in here

    def synchronize(self) -> None:
        """Block until all that was enqueued is done."""
        done = threading.Event()
        self.enqueue(done.set)
        done.wait()

    def wait(self, on: Stream) -> None:
        """Make later work here wait for what is on *on* now, without blocking the host."""
        if on is not self:
            done = threading.Event()
            on.enqueue(done.set)
            self.enqueue(done.wait)

    @staticmethod
    def current(device_id: int) -> Stream | None:
        """The stream whose ``with`` block this thread is in, if it is on *device_id*."""
        stream: Stream | None = getattr(_current, "stream", None)
        return stream if stream is not None and stream.device_id == device_id else None

    def __enter__(self) -> Stream:
        self._outer.append(getattr(_current, "stream", None))
        _current.stream = self
        return self

    def __exit__(self, *exc: object) -> None:
        _current.stream = self._outer.pop()

    def __del__(self) -> None:
        if self._work is not None:
            self._work.put(None)


_current = threading.local()
_handles = itertools.count(0x5AFE_0000_0001)
by_handle: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()


def _run(queue: Queue, delay: float) -> None:
    while (work := queue.get()) is not None:
        time.sleep(delay)
        work()
        del work  # it holds memory, and the next one may be long in coming
