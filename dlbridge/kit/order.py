"""The order of several streams: events, what graph capture forbids, the streams of consumers.

Streams are asked before anything is queued: a call that a capture forbids would not only fail but
end the caller's capture. So the refusal is ours, and the capture stays whole.

DLPack's deleter carries no stream (dmlc/dlpack#176): a consumer may drop a tensor while its
kernel still runs on a stream of its own. But it named that stream when it took the tensor
(``__dlpack__(stream=)``), and then the stream was made to wait for the producer's. These waits
are noted here; a free waits for every stream that took part in one since the memory was
allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

from dlbridge.errors import Error, ExchangeError

from .driver import StreamDriver, StreamState
from .resources import shared_lock
from .streams import owner

__all__ = [
    "KEPT",
    "Consumer",
    "Consumers",
    "EventPool",
    "consumer_of",
    "has_nothing_to_wait_for",
    "refuse_capture",
    "refuse_disturbing",
]

# Events -------------------------------------------------------------------------------


class EventPool:
    """Unused events of each context. Safe from any thread and from finalizers.

    Parameters
    ----------
    driver : StreamDriver
        Makes, records and destroys the events.
    """

    def __init__(self, driver: StreamDriver) -> None:
        self._driver = driver
        self._unused: dict[Hashable, list[Any]] = {}  # list methods are atomic

    def record(self, context: Hashable, stream: int) -> Any:
        """Record an event on *stream*; `give_back` it after use.

        Parameters
        ----------
        context : Hashable
            The context of *stream* (`StreamDriver.context_of`).
        stream : int
            Its handle.

        Returns
        -------
        Any
            The event. It means the work that is on *stream* now.
        """
        return self._driver.run(context, self.record_here, context, stream)

    def record_here(self, context: Hashable, stream: int) -> Any:
        """As `record`, in *context*."""
        try:
            event = self._unused[context].pop()
        except (KeyError, IndexError):
            event = self._driver.create_event()
        try:
            self._driver.record_event(event, stream)
        except BaseException:
            self.give_back(context, event)
            raise
        return event

    def give_back(self, context: Hashable, event: Any) -> None:
        """Keep *event* for the next use, if its context stays.

        Another context may be destroyed and its handle given to the next one; an event of it is
        destroyed at once, which the driver does when the work that names it is done.
        """
        unused = self._unused.get(context)
        if unused is None:
            try:
                if not self._driver.run(context, self._can_keep, context, event):
                    return
            except Error:  # the context was destroyed, and the event with it
                return
            unused = self._unused.setdefault(context, [])
        unused.append(event)

    def _can_keep(self, context: Hashable, event: Any) -> bool:
        if self._driver.is_lasting(context):
            return True
        self._driver.destroy_event(event)
        return False

    def count(self, context: Hashable) -> int:
        """Number of unused events of *context*."""
        return len(self._unused.get(context, ()))

    def clear(self) -> None:
        """Destroy all unused events."""
        for context in list(self._unused):
            events = self._unused.pop(context, [])
            while events:
                self._driver.run(context, self._driver.destroy_event, events.pop())


# Capture ------------------------------------------------------------------------------


_RUNS = StreamState.RUNS


def refuse_capture(driver: StreamDriver, stream: int, what: str) -> None:
    """Refuse what cannot be done on a stream that captures.

    Parameters
    ----------
    driver : StreamDriver
        The driver of *stream*.
    stream : int
        Its handle.
    what : str
        What memory or work on it would be: ``"allocated"``.

    Raises
    ------
    dlbridge.errors.ExchangeError
        If work on *stream* would not run now.
    """
    if driver.stream_state(stream) is not _RUNS:
        raise ExchangeError(
            f"stream {stream:#x} is capturing a {driver.api} graph, or would disturb one: memory "
            f"and work on it cannot be {what} now. Do it before the capture begins"
        )


def refuse_disturbing(driver: StreamDriver, stream: int) -> None:
    """Refuse work on the default stream that would end somebody's capture.

    Work on a stream that is itself captured may go on: it becomes a node of the graph.

    Raises
    ------
    dlbridge.errors.ExchangeError
        If a blocking stream captures, and *stream* is the default stream.
    """
    if stream == driver.default_stream and driver.stream_state(stream) is StreamState.BLOCKED:
        raise ExchangeError(
            f"a blocking stream is capturing a {driver.api} graph, which work on the default "
            "stream would end. Capture on a non-blocking stream, or use another stream for this"
        )


def has_nothing_to_wait_for(driver: StreamDriver, stream: int, on: int) -> bool:
    """Whether capture leaves no order to make between two streams.

    Parameters
    ----------
    driver : StreamDriver
        Their driver.
    stream, on : int
        The stream that is to wait, and the one that it is to wait for.

    Raises
    ------
    dlbridge.errors.ExchangeError
        If a graph would have to wait for work outside it.
    """
    waiting, working = driver.stream_state(stream), driver.stream_state(on)
    if waiting is working is not StreamState.BLOCKED:
        return False  # both run; or both are captured, and the wait is an edge of the graph
    if working is StreamState.CAPTURED:
        return True  # that work does not run now: its reader waits for the graph's launch
    if waiting is StreamState.CAPTURED and working is StreamState.RUNS and driver.is_idle(on):
        return True
    raise ExchangeError(
        f"stream {stream:#x} cannot wait for stream {on:#x} while a {driver.api} graph is "
        "captured: a graph cannot wait for work outside it. Synchronize before the capture "
        "begins, or pass stream=-1 if the work is known to be done"
    )


# Consumers ----------------------------------------------------------------------------


KEPT = 32
"""Of so many streams the objects are kept alive, those that were noted last."""

_FEW = 256


class Consumer(NamedTuple):
    """What an event is recorded on, later, to be behind the work that is on a stream now."""

    stream: int
    """A handle, or `driver.ALL_STREAMS`."""
    home: int
    """The device whose default stream it is, if it is one."""
    context: Any = None
    """Its context; if None, where the driver says that the stream is."""


def consumer_of(driver: StreamDriver, stream: int, home: int) -> tuple[Consumer, object]:
    """What stands for *stream*, which exists now, and what has to be held meanwhile.

    The stream itself where something is known that keeps it, else what is behind all its work.
    """
    stream = driver.all_threads(stream)
    if stream == driver.default_stream:
        return Consumer(stream, home), None
    keeper = owner(stream, home)
    if keeper is not None:
        return Consumer(stream, home), keeper
    driver.note_capture(stream)
    return Consumer(*_stand_in(driver, stream, home)), None


def _stand_in(driver: StreamDriver, stream: int, home: int) -> tuple[int, int, Any]:
    stands, context = driver.stand_in(stream, home)
    return stands, home, None if context == driver.contexts[home] else context


class Consumers:
    """Notes which streams took part in waits, and when. Safe from any thread and finalizer.

    Parameters
    ----------
    driver : StreamDriver
        Tells what stands for a stream.
    births : Callable
        The `latest` when the memory came that is still there.
    """

    def __init__(self, driver: StreamDriver, births: Callable[[], Iterable[int]] = tuple) -> None:
        self._driver = driver
        self._births = births
        # By device and consumer: the number of the note, and what is held.
        self._seen: dict[tuple[int, Consumer], tuple[int, object]] = {}
        self.latest = 0
        """How many notes were made. Memory that came after the last one has no consumers."""
        self._limit = _FEW
        self._lock = shared_lock()  # re-entered by a finalizer that frees

    def note(self, device_id: int, stream: int, home: int) -> None:
        """Note that memory of *device_id* may be used on *stream* from now on.

        Parameters
        ----------
        device_id : int
            The memory's device.
        stream : int
            A stream that exists; the thread is in a context of the driver.
        home : int
            The device whose default stream it is, if it is one.
        """
        consumer, keeper = consumer_of(self._driver, stream, home)
        dropped: list[object] = []  # not under the lock: they may destroy streams
        with self._lock:
            self.latest += 1
            key = device_id, consumer
            dropped.append(self._seen.pop(key, None))
            self._seen[key] = self.latest, keeper
            if keeper is not None and len(self._seen) > KEPT:
                self._keep_few(dropped)
            if len(self._seen) > self._limit:
                self._forget(dropped)

    def uses(self, device_id: int, born: int, own: int) -> list[tuple[Consumer, object]]:
        """The streams, beside *own*, that the free of some memory has to wait for.

        Parameters
        ----------
        device_id : int
            Where the memory is.
        born : int
            `latest` when it came there.
        own : int
            The stream in whose order it is freed.

        Returns
        -------
        list of (Consumer, object)
            Each with what has to be held.
        """
        return [
            (consumer, keeper)
            for (device, consumer), (when, keeper) in self._seen.copy().items()
            if device == device_id and when > born and consumer[:2] != (own, device_id)
        ]

    def _keep_few(self, dropped: list[object]) -> None:
        """Let what is behind the work of the oldest streams stand for them. Under the lock."""
        kept = [
            key
            for key, (_, keeper) in self._seen.items()
            if keeper is not None and keeper is not True
        ]
        for device_id, consumer in kept[:-KEPT]:
            when, keeper = self._seen.pop((device_id, consumer))
            dropped.append(keeper)
            self._driver.note_capture(consumer.stream)
            stands = Consumer(*_stand_in(self._driver, consumer.stream, consumer.home))
            before = self._seen.get((device_id, stands), (0, None))
            self._seen[device_id, stands] = max(before, (when, None))

    def _forget(self, dropped: list[object]) -> None:
        """Drop what is older than all memory that is still there. Called under the lock."""
        oldest = min(self._births(), default=self.latest)
        for key, (when, _) in self._seen.copy().items():
            if when <= oldest:
                dropped.append(self._seen.pop(key, None))
        self._limit = max(_FEW, 2 * len(self._seen))
