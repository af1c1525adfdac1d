"""Queues of work: done at once, or late and elsewhere as on a real device."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Stream", "by_handle"]

_current = threading.local()
_handles = itertools.count(0x5AFE_0000_0001)


class Stream:
    """A queue of work on one device; what this ecosystem's users pass as ``stream=``.

    With *delay* (seconds) each piece of work runs that much later, on the
    stream's own thread; without it, before `enqueue` returns. In a ``with``
    block it is the thread's current stream.
    """

    def __init__(self, device_id: int = 0, delay: float = 0.0) -> None:
        self.device_id = device_id
        self.handle = next(_handles)
        self.delay = delay
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._outer: list[Stream | None] = []
        if delay:
            # The thread holds the queue and not the stream, so that a stream
            # which nobody holds ends, and its thread with it.
            threading.Thread(target=_run, args=(self._work, delay), daemon=True).start()
        by_handle[self.handle] = self

    def enqueue(self, work: Callable[[], object]) -> None:
        """Do *work* after all that was enqueued before it."""
        if self.delay:
            self._work.put(work)  # re-entrant: a finalizer may call this
        else:
            work()

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
        self._work.put(None)


by_handle: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()


def _run(queue: SimpleQueue[Callable[[], object] | None], delay: float) -> None:
    while (work := queue.get()) is not None:
        time.sleep(delay)
        work()
        del work  # it holds memory, and the next one may be long in coming
