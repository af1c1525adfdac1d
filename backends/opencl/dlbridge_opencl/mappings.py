"""One mapping of device memory into the host's, unmapped once."""

from __future__ import annotations

from operator import length_hint

import pyopencl as cl

from .forking import never_released

__all__ = ["Mapping"]

# What the driver did not unmap. pyopencl's destructor would ask it again, and an exception in a
# destructor of C++ ends the process.
_kept: list[cl.MemoryMap] = never_released([])


class Mapping:
    """A mapping, the queue for the command that unmaps it, and how far that is.

    Parameters
    ----------
    mapped : cl.MemoryMap
        What `cl.enqueue_map_buffer` has made.
    queue : cl.CommandQueue
        Where it was made.
    """

    __slots__ = ("_mapped", "_to_release", "events", "queue")

    def __init__(self, mapped: cl.MemoryMap, queue: cl.CommandQueue) -> None:
        self._mapped = mapped
        self._to_release = iter([mapped])  # gives it once
        self.queue = queue
        self.events: list[cl.Event] = []
        """Of the command that unmaps it, once that is given."""

    def unmap(self) -> None:
        """Give the command, unless an earlier call has done so; cl.Error if the driver refuses.

        `MemoryMap.release` must not be called twice: it asks the driver each time, and PoCL 3.1
        then takes another mapping of the same address for this one (measured).
        """
        # One step: only C code runs between taking the mapping and storing the event.
        try:
            self.events.extend(map(cl.MemoryMap.release, self._to_release, [self.queue]))
        finally:
            if not self.events and not length_hint(self._to_release):
                self.keep()

    def keep(self) -> None:
        """Never unmap it."""
        _kept.append(self._mapped)
