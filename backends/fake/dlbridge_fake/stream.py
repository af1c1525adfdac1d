"""Queues of work, which is done at once, or later in another thread as on a real device."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING

from dlbridge.errors import DeviceError
from dlbridge.kit.limits import whole_number

if TYPE_CHECKING:
    from collections.abc import Callable

    Queue = SimpleQueue[Callable[[], object] | None]

__all__ = ["Stream", "by_handle", "current"]


class Stream:
    """A queue of work on one device: the object that users pass as ``stream=``.

    With ``DLBRIDGE_FAKE_DELAY_US=n`` in the environment each piece of work runs
    n microseconds late, in the stream's own thread; without it, before
    `enqueue` returns. In a ``with`` block it is the current stream of its device
    in the thread.

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
        self.handle = next(_handles)
        self._outer: list[Stream | None] = []
        self._errors: deque[Exception] = deque()
        self._work: Queue | None = None
        if delay := whole_number("DLBRIDGE_FAKE_DELAY_US", 0, _CHOICE, _HOUR):
            self._work = SimpleQueue()
            # The thread refers to the queue and not to the stream. So a stream to
            # which nothing else refers is deleted, and its thread ends.
            given = self._work, delay / 1e6, self._errors
            thread = threading.Thread(target=_run, args=given, daemon=True)
            _threads[self.handle] = thread
            thread.start()
        by_handle[self.handle] = self

    def enqueue(self, work: Callable[[], object]) -> None:
        """Do *work* after all work that was enqueued before it."""
        if self._work is None:
            work()
        else:
            self._work.put(work)  # re-entrant: a finalizer may enqueue work during this call

    def synchronize(self) -> None:
        """Block until all enqueued work is done; DeviceError, once, if some of it has failed."""
        self._drain()
        if self._errors:
            failed = self._errors.popleft()
            self._errors.clear()
            raise DeviceError(
                f"ext_dev:{self.device_id}: earlier work on stream {self.handle:#x} has failed: "
                f"{failed}"
            ) from failed

    def finish(self) -> None:
        """Wait, for a destructor, which raises nothing: at once where a wait would never end.

        That is any thread that does the work of a stream. A destructor may run there, and the
        work that it would wait for may be waiting for this thread.
        """
        if not current.is_worker:
            self._drain()

    @staticmethod
    def finish_ended(handle: int) -> None:
        """The same for a stream that is gone: its thread ends once its work is done."""
        thread = _threads.get(handle)
        if thread is not None and not current.is_worker:
            thread.join()

    def _drain(self) -> None:
        done = _Event()
        self.enqueue(done.set)
        done.get()

    def wait(self, on: Stream) -> None:
        """Make later work here wait for the work now on *on*, without blocking the host."""
        if on is not self:
            done = _Event()
            on.enqueue(done.set)
            self.enqueue(done.get)

    def __enter__(self) -> Stream:
        self._outer.append(current.streams.get(self.device_id))
        current.streams[self.device_id] = self
        return self

    def __exit__(self, *exc: object) -> None:
        current.streams[self.device_id] = self._outer.pop()

    def __del__(self) -> None:
        if self._work is not None:
            self._work.put(None)


_HOUR = 3_600_000_000
"""Microseconds."""

_CHOICE = f"a number of microseconds, up to {_HOUR} (an hour), such as 1000, or to 0 for no delay"


class _Current(threading.local):
    """The `streams` of the ``with`` blocks that a thread is in, by their device."""

    is_worker = False
    """In threads that do the work of streams."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream | None] = {}


current = _Current()
_handles = itertools.count(0x5AFE_0000_0001)
by_handle: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
_threads: weakref.WeakValueDictionary[int, threading.Thread] = weakref.WeakValueDictionary()
"""Those that do the work of streams; Python has them as long as they run."""


class _Event(SimpleQueue[None]):
    """What is set when work is done, and waited for by ``get``, once.

    It waits in C: the exception of a signal handler may leave a `threading.Event` locked.
    """

    def set(self) -> None:
        self.put(None)


def _run(queue: Queue, delay: float, errors: deque[Exception]) -> None:
    current.is_worker = True
    while (work := queue.get()) is not None:
        time.sleep(delay)
        try:
            work()
        except Exception as exc:  # the next work is done all the same, as on a device
            errors.append(exc)
        del work  # it keeps memory alive, and the next work may come much later
