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
from itertools import count
from typing import NamedTuple

from .driver import LastingStream, StreamDriver, StreamState

__all__ = ["Consumers", "Uses"]

_FEW = 256


class Uses(NamedTuple):
    """What the free of some memory has to look at."""

    own: frozenset[int]
    """The numbers under which the stream of the free was known. With any other number it is a
    new stream that has the handle of a destroyed one."""
    others: list[tuple[LastingStream, int | None]]
    """The other streams to wait for, and their numbers where the driver has such."""


class _Seen(NamedTuple):
    """When a handle was last noted, the number of its stream, and the same for earlier streams.

    *before* is 0 if no earlier stream had the handle. A negative number stands for those: no
    stream has one.
    """

    when: int
    number: int | None
    before: int

    def numbers(self, born: int) -> list[int | None]:
        """The numbers of the streams that were noted after *born*."""
        found = [self.number] if self.when > born else []
        return [*found, -self.before] if self.before > born else found


class Consumers:
    """Notes which streams took part in waits, and when. Safe from any thread and finalizer.

    Parameters
    ----------
    driver : StreamDriver
        Tells streams apart that had the same handle one after the other.
    births : Callable
        When the memory came that is still there, by the `clock`.
    """

    def __init__(self, driver: StreamDriver, births: Callable[[], Iterable[int]] = tuple) -> None:
        self._driver = driver
        self._births = births
        self.clock = count(1)  # next() is atomic
        self._seen: dict[tuple[int, LastingStream], _Seen] = {}  # by device and consumer
        self.latest = 0
        """When the last note was made: memory that is younger has no consumers."""
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
        lasting = self._driver.lasting(stream, home)
        number = None
        if lasting.stream == stream and self._driver.stream_state(stream) is StreamState.RUNS:
            number = self._driver.stream_id(stream, home)
        key = device_id, lasting
        with self._lock:
            last = self._seen.get(key)
            before = 0
            if last is not None:
                is_new = number != last.number and None not in (number, last.number)
                before = last.when if is_new else last.before
            self.latest = when = next(self.clock)
            self._seen[key] = _Seen(when, number, before)
            if len(self._seen) > self._limit:
                self._forget()

    def uses(
        self, device_id: int, born: int, stream: LastingStream, number: int | None = None
    ) -> Uses:
        """Find the streams, beside *stream*, that the free of some memory has to wait for.

        Parameters
        ----------
        device_id : int
            Where the memory is.
        born : int
            When it came there, by the `clock`.
        stream : LastingStream
            The stream in whose order it is freed.
        number : int, optional
            The number of that stream when the memory came, if it is known.

        Returns
        -------
        Uses
            The streams, and the numbers that tell whether they are still the same ones.
        """
        own = {number}
        others = []
        for (device, other), seen in self._seen.copy().items():
            if device != device_id:
                continue
            numbers = seen.numbers(born)
            if other == stream:
                own.update(numbers)
            else:
                others += [(other, number) for number in numbers]
        return Uses(frozenset(number for number in own if number is not None), others)

    def forget(self, device_id: int, consumer: LastingStream, number: int | None) -> None:
        """Drop a stream that was found destroyed, if its handle was not noted again."""
        key = device_id, consumer
        with self._lock:
            last = self._seen.get(key)
            if last is None:
                return
            if last.number == number:
                self._seen.pop(key, None)
            elif number == -last.before:
                self._seen[key] = last._replace(before=0)

    def _forget(self) -> None:
        """Drop what is older than all memory that is still there. Called under the lock."""
        oldest = min(self._births(), default=next(self.clock))
        for key, seen in self._seen.copy().items():
            if seen.when < oldest:
                self._seen.pop(key, None)
        self._limit = max(_FEW, 2 * len(self._seen))
