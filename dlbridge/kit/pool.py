"""Device memory from a pool, allocated and freed in stream order; plain where there is none."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from ctypes import c_uint64
from typing import Any

from dlbridge.errors import Error

from .claims import is_done
from .driver import StreamDriver
from .events import EventPool
from .memory import Memory
from .status import CaptureError, NoPoolError, StreamGoneError

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
        self._plain: set[int] = set()  # what is not of a pool though the device has one
        # (device, stream) -> an event behind its last free. Not the streams themselves: a
        # destroyed one must not be waited for, and its handle may be another's.
        self._last_frees: dict[tuple[int, int], tuple[Hashable, Any]] = {}

    def obtain(self, device_id: int, nbytes: int, stream: int, cell: c_uint64) -> None:
        """Memory of the pool; plain memory while a capture forbids the pool's functions."""
        pool = self.driver.pool(device_id)
        if pool is not None:
            try:
                self.driver.allocate_async(pool, nbytes, stream, cell)
                self._plain.discard(cell.value)  # of a free that was cut off
                return
            except (CaptureError, NoPoolError):  # ROCm refuses beside any stream's capture
                pass
        self._obtain_plain(device_id, nbytes, cell)

    def obtain_after_trim(self, device_id: int, nbytes: int, stream: int, cell: c_uint64) -> None:
        """Memory of the pool; plain memory if that may have room where the pool finds none."""
        if self.driver.pools_find_all_room:
            self.obtain(device_id, nbytes, stream, cell)
        else:
            self._obtain_plain(device_id, nbytes, cell)

    def _obtain_plain(self, device_id: int, nbytes: int, cell: c_uint64) -> None:
        has_pool = self.driver.pool(device_id) is not None
        self.driver.allocate(nbytes, cell)
        if has_pool:
            self._plain.add(cell.value)

    def release(self, device_id: int, pointer: int, stream: int, codes: list[int]) -> None:
        """Free behind the work on *stream*; without a pool, after waiting for it."""
        is_plain = self.driver.pool(device_id) is None or pointer in self._plain
        if not is_plain:
            try:
                if not is_done(codes):
                    self.driver.free_async(pointer, stream, codes)
            except StreamGoneError:
                pass
            else:
                self._remember(device_id, stream)
                return
        if not is_done(codes):
            self.wait_before_free(stream)
            was_plain = pointer in self._plain
            self._plain.discard(pointer)  # before another thread can be given the address
            try:
                self.driver.free(pointer, codes)
            except BaseException:
                if was_plain and not is_done(codes):
                    self._plain.add(pointer)  # it will be tried again
                raise

    def trim(self, device_id: int, stream: int) -> None:
        """Wait for the frees on the way, then give the system what the pool keeps."""
        for key in [key for key in list(self._last_frees) if key[0] == device_id]:
            place, event = self._last_frees.pop(key, (None, None))
            if event is not None:
                self.driver.wait_event(stream, event)
                self.events.give_back(place, event)
        super().trim(device_id, stream)
        pool = self.driver.pool(device_id)
        if pool is not None:
            self.driver.trim_pool(pool)

    def _remember(self, device_id: int, stream: int) -> None:
        place, event = self._last_frees.pop((device_id, stream), (None, None))
        if event is not None:
            self.events.give_back(place, event)
        try:
            place = self.driver.place_of(stream, device_id)
            event = self.events.record(place, stream)
            kept = self._last_frees.setdefault((device_id, stream), (place, event))
            if kept[1] is not event:  # another thread's free was faster
                self.events.give_back(place, event)
            if len(self._last_frees) > FREES_KEPT:
                oldest = next(iter(list(self._last_frees)))
                place, event = self._last_frees.pop(oldest, (None, None))
                if event is not None:
                    self.events.give_back(place, event)
        except Error as exc:  # the free itself is queued
            _log.warning("a free of %s memory will not be waited for: %s", self.name, str(exc))
