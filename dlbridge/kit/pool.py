"""Device memory from a pool, allocated and freed in stream order; plain where there is none."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Any

from dlbridge.errors import Error

from .driver import StreamDriver, StreamState
from .events import EventPool
from .memory import DriverMemory, Memory
from .status import CaptureError, NoPoolError

__all__ = ["FREES_KEPT", "PoolMemory"]

_log = logging.getLogger(__name__)

FREES_KEPT = 256
"""Of so many streams the last free is remembered, to be waited for when there is no room."""


class PoolMemory(Memory):
    """Memory of each device's pool.

    Parameters
    ----------
    driver : StreamDriver
        The driver; `StreamDriver.pool` is None for a device without pools.
    events : EventPool
        Its events.
    name : str
        The device's name, for messages.
    """

    polls = True

    def __init__(self, driver: StreamDriver, events: EventPool, name: str) -> None:
        super().__init__(driver, events, name)
        # (device, stream) -> an event behind its last free. Not the streams themselves: a
        # destroyed one must not be waited for, and its handle may be another's.
        self._last_frees: dict[tuple[int, int], tuple[Hashable, Any]] = {}

    def obtain(self, memory: DriverMemory, nbytes: int) -> None:
        """Memory of the pool; plain memory while a capture forbids the pool's functions."""
        pool = self.driver.pools[memory.device_id]
        if pool is not None:
            try:
                self.driver.allocate_async(pool, nbytes, memory.stream, memory.cell)
                return
            except (CaptureError, NoPoolError):  # ROCm refuses beside any stream's capture
                pass
        self._obtain_plain(memory, nbytes)

    def obtain_after_trim(self, memory: DriverMemory, nbytes: int) -> None:
        """Memory of the pool; plain memory if that may have room where the pool finds none."""
        if self.driver.pools_find_all_room:
            self.obtain(memory, nbytes)
        else:
            self._obtain_plain(memory, nbytes)

    def _obtain_plain(self, memory: DriverMemory, nbytes: int) -> None:
        memory.is_plain = True
        self.driver.allocate(nbytes, memory.cell)

    def release(self, memory: DriverMemory) -> None:
        """Free behind the work on its stream; without a pool, after waiting for it.

        What several calls gave (``memory.parts``) ends after the wait, by its ``end``.
        """
        driver, stream = self.driver, memory.stream
        if memory.parts is not None:
            driver.wait_for_stream(stream)
            memory.parts.end()
        elif memory.is_plain:
            driver.wait_for_stream(stream)
            driver.free(memory.pointer, memory.codes)
        else:
            driver.free_async(memory.cell.value, stream, memory.codes)
            if stream != driver.default_stream:
                self._remember(memory.device_id, stream)

    def trim(self, device_id: int, stream: int) -> None:
        """Wait for the frees on the way, then give the system what the pool keeps."""
        driver = self.driver
        default = driver.default_stream
        if stream != default and driver.stream_state(default) is StreamState.RUNS:
            self._remember(device_id, default)  # most frees are on it, and leave no event
        for key in [key for key in list(self._last_frees) if key[0] == device_id]:
            place, event = self._last_frees.pop(key, (None, None))
            if event is not None:
                driver.wait_event(stream, event)
                self.events.give_back(place, event)
        super().trim(device_id, stream)
        pool = driver.pools[device_id]
        if pool is not None:
            driver.trim_pool(pool)

    def _remember(self, device_id: int, stream: int) -> None:
        """Put an event behind the last free on *stream*."""
        try:
            last = self._last_frees.pop((device_id, stream), None)
            if last is not None:
                self.events.give_back(*last)
            place = self.driver.place_of(stream, device_id)
            last = place, self.events.record(place, stream)
            kept = self._last_frees.setdefault((device_id, stream), last)
            if kept is not last:  # another thread's free was faster
                self.events.give_back(*last)
            if len(self._last_frees) > FREES_KEPT:
                oldest = next(iter(list(self._last_frees)))
                place, event = self._last_frees.pop(oldest, (None, None))
                if event is not None:
                    self.events.give_back(place, event)
        except Error as exc:  # the free itself is queued
            _log.warning("a free of %s memory will not be waited for: %s", self.name, str(exc))
