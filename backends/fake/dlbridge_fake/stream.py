"""Queues of work, which is done at once, or later in another thread as on a real device."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING

from dlbridge.errors import DeviceError
from dlbridge.kit.limits import whole_number

if TYPE_CHECKING:
    from collections.abc import Callable

    Queue = SimpleQueue[Callable[[], object] | None]

__all__ = ["Stream", "by_handle"]


class Stream:
    """A queue of work on one device: the object that users pass as ``stream=``.

    With ``DLBRIDGE_FAKE_DELAY_US=n`` in the environment each piece of work runs
    n microseconds late, in the stream's own thread; without it, before
    `enqueue` returns. In a ``with`` block it is the thread's current stream.

    Parameters
    ----------
    device_id
        The device, 0 or 1.

    Examples
    --------
    >>> import dlbridge
    >>> from dlbridge_fake import Stream
    >>> with dlbridge.use_stream("ext_dev:0", Stream()):
    ...     tensor = dlbridge.zeros(3, "float32", "ext_dev:0")
    """

    def __init__(self, device_id: int = 0) -> None:
        self.device_id = device_id
        self._forks = _forks
        self.handle = next(_handles)
        self._outer: list[Stream | None] = []
        self._work: Queue | None = None
        if delay := whole_number("DLBRIDGE_FAKE_DELAY_US", 0, _CHOICE, _HOUR):
            self._work = SimpleQueue()
            # The thread refers to the queue and not to the stream. So a stream to
            # which nothing else refers is deleted, and its thread ends.
            threading.Thread(target=_run, args=(self._work, delay / 1e6), daemon=True).start()
        by_handle[self.handle] = self

    def enqueue(self, work: Callable[[], object]) -> None:
        """Do *work* after all work that was enqueued before it."""
        if self._work is None:
            work()
            return
        if self._forks != _forks:
            raise DeviceError(
                "ext_dev: the threads that do the work do not exist after os.fork(): use the "
                "device in the child only, or start processes with multiprocessing's 'spawn' method"
            )
        self._work.put(work)  # re-entrant: a finalizer may enqueue work during this call

    def synchronize(self) -> None:
        """Block until all enqueued work is done."""
        done = threading.Event()
        self.enqueue(done.set)
        done.wait()

    def finish(self) -> None:
        """As `synchronize`, for a destructor: at once where a wait would never end.

        That is a forked child, and any thread that does the work of a stream. A destructor
        may run there, and the work that it would wait for may be waiting for this thread.
        """
        if self._forks == _forks and not getattr(_current, "is_worker", False):
            self.synchronize()

    def wait(self, on: Stream) -> None:
        """Make later work here wait for the work now on *on*, without blocking the host."""
        if on is not self:
            done = threading.Event()
            on.enqueue(done.set)
            self.enqueue(done.wait)

    @staticmethod
    def current(device_id: int) -> Stream | None:
        """The stream of the ``with`` block that this thread is in, if it is on *device_id*."""
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


_HOUR = 3_600_000_000
"""Microseconds."""

_CHOICE = f"a number of microseconds, up to {_HOUR} (an hour), such as 1000, or to 0 for no delay"

_current = threading.local()
_handles = itertools.count(0x5AFE_0000_0001)
by_handle: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
_forks = 0
"""How many forks lie between this process and the first one."""


def _after_fork() -> None:
    # A child inherits streams without their threads: waiting for one would never end.
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _run(queue: Queue, delay: float) -> None:
    _current.is_worker = True
    while (work := queue.get()) is not None:
        time.sleep(delay)
        work()
        del work  # it keeps memory alive, and the next work may come much later
