"""The streams that may still use memory when it is freed.

DLPack's deleter carries no stream (dmlc/dlpack#176): a consumer may drop a tensor while its
kernel still runs on a stream of its own. But it named that stream when it took the tensor
(``__dlpack__(stream=)``), and then the stream was made to wait for the producer's. These waits
are noted here; a free waits for every stream that took part in one since the memory was
allocated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from .driver import StreamDriver
from .stream_owners import owner

__all__ = ["KEPT", "Consumer", "Consumers", "consumer_of"]

KEPT = 32
"""Of so many streams the objects are kept alive, those that were noted last."""

_FEW = 256


class Consumer(NamedTuple):
    """What an event is recorded on, later, to be behind the work that is on a stream now."""

    stream: int
    """A handle, or `driver.ALL_STREAMS`."""
    home: int
    """The device whose default stream it is, if it is one."""
    place: Any = None
    """Its place; if None, where the driver says that the stream is."""


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
    stands, place = driver.stand_in(stream, home)
    return stands, home, None if place == driver.places[home] else place


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
        self._lock = threading.RLock()  # re-entered by a finalizer that frees

    def note(self, device_id: int, stream: int, home: int) -> None:
        """Note that memory of *device_id* may be used on *stream* from now on.

        Parameters
        ----------
        device_id : int
            The memory's device.
        stream : int
            A stream that exists; the thread is in a place of the driver.
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
