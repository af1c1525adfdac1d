"""Events that are used again: recording one costs less than making one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from dlbridge.errors import Error

from .driver import StreamDriver

__all__ = ["EventPool"]


class EventPool:
    """Unused events of each place. Safe from any thread and from finalizers.

    Parameters
    ----------
    driver : StreamDriver
        Makes, records and destroys the events.
    """

    def __init__(self, driver: StreamDriver) -> None:
        self._driver = driver
        self._unused: dict[Hashable, list[Any]] = {}  # list methods are atomic

    def record(self, place: Hashable, stream: int) -> Any:
        """Record an event on *stream*; `give_back` it after use.

        Parameters
        ----------
        place : Hashable
            The place of *stream* (`StreamDriver.place_of`).
        stream : int
            Its handle.

        Returns
        -------
        Any
            The event. It means the work that is on *stream* now.
        """
        return self._driver.run(place, self.record_here, place, stream)

    def record_here(self, place: Hashable, stream: int) -> Any:
        """As `record`, in *place*."""
        try:
            event = self._unused[place].pop()
        except (KeyError, IndexError):
            event = self._driver.create_event()
        try:
            self._driver.record_event(event, stream)
        except BaseException:
            self.give_back(place, event)
            raise
        return event

    def give_back(self, place: Hashable, event: Any) -> None:
        """Keep *event* for the next use, if its place stays.

        Another place may be destroyed and its handle given to the next one; an event of it is
        destroyed at once, which the driver does when the work that names it is done.
        """
        unused = self._unused.get(place)
        if unused is None:
            try:
                if not self._driver.run(place, self._can_keep, place, event):
                    return
            except Error:  # the place was destroyed, and the event with it
                return
            unused = self._unused.setdefault(place, [])
        unused.append(event)

    def _can_keep(self, place: Hashable, event: Any) -> bool:
        if self._driver.is_lasting(place):
            return True
        self._driver.destroy_event(event)
        return False

    def count(self, place: Hashable) -> int:
        """Number of unused events of *place*."""
        return len(self._unused.get(place, ()))

    def clear(self) -> None:
        """Destroy all unused events."""
        for place in list(self._unused):
            events = self._unused.pop(place, [])
            while events:
                self._driver.run(place, self._driver.destroy_event, events.pop())
