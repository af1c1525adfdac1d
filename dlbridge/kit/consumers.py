"""The streams that may still use memory when it is freed.

DLPack's deleter carries no stream (dmlc/dlpack#176): a consumer may drop a tensor while its
kernel still runs on a stream of its own. But it named that stream when it took the tensor
(``__dlpack__(stream=)``), and then the stream was made to wait for the producer's. These waits
are noted here; a free waits for every stream that took part in one since the memory was
allocated.
"""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from .driver import StreamDriver, StreamState

__all__ = ["Consumer", "Consumers"]

_FEW = 256


class Consumer(NamedTuple):
    """A stream, and the device whose default stream it is if it is one."""

    stream: int
    home: int


class Consumers:
    """Notes which streams took part in waits, and when. Safe from any thread and finalizer.

    Parameters
    ----------
    driver : StreamDriver
        Tells streams apart that had the same handle one after the other.
    """

    def __init__(self, driver: StreamDriver) -> None:
        self._driver = driver
        self._clock = count(1)  # next() is atomic
        self._born: dict[int, int] = {}  # pointer -> when it was allocated
        self._seen: dict[tuple[int, Consumer], tuple[int, int | None]] = {}
        # (device, consumer) -> (when it was last noted, its unique number)
        self._limit = _FEW

    def begin(self, pointer: int) -> None:
        """Remember when *pointer* was allocated, or first imported."""
        self._born.setdefault(pointer, next(self._clock))

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
        stream = self._driver.all_threads(stream)
        number = None
        if self._driver.stream_state(stream) is StreamState.RUNS:
            number = self._driver.stream_id(stream, home)
        self._seen[device_id, Consumer(stream, home)] = next(self._clock), number
        if len(self._seen) > self._limit:
            self._forget()

    def end(
        self, device_id: int, pointer: int, stream: int, shared: bool = False
    ) -> list[tuple[Consumer, int | None]]:
        """Find the streams, beside *stream*, that a free of *pointer* has to wait for.

        Parameters
        ----------
        device_id : int
            Where the memory is.
        pointer : int
            An address that `begin` was told; it is forgotten.
        stream : int
            The stream in whose order it is freed.
        shared : bool
            Others go on using it; then it is not forgotten.

        Returns
        -------
        list[tuple[Consumer, int | None]]
            The streams, and their unique numbers where the driver has such.
        """
        born = self._born.get(pointer, 0) if shared else self._born.pop(pointer, 0)
        if not self._seen:
            return []
        own = Consumer(stream, device_id)
        return [
            (other, number)
            for (device, other), (when, number) in list(self._seen.items())
            if device == device_id and other != own and when > born
        ]

    def forget(self, device_id: int, consumer: Consumer, number: int | None) -> None:
        """Drop a stream that was found destroyed, if its handle was not noted again."""
        found = self._seen.get((device_id, consumer))
        if found is not None and found[1] == number:
            self._seen.pop((device_id, consumer), None)

    def _forget(self) -> None:
        """Drop what is older than all memory that is still there."""
        oldest = min(list(self._born.values()), default=next(self._clock))
        for key, (when, _) in list(self._seen.items()):
            if when < oldest:
                self._seen.pop(key, None)
        self._limit = max(_FEW, 2 * len(self._seen))
