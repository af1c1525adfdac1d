"""Page-locked host memory, and host memory that is page-locked in place."""

from __future__ import annotations

import mmap
import threading

from dlbridge.errors import ExchangeError

from .driver import StreamDriver
from .events import EventPool
from .memory import Memory

__all__ = ["PinnedMemory"]


class PinnedMemory(Memory):
    """Page-locked memory that every device can use at its host address.

    It is not kept for re-use: copies of other libraries may still run on streams that are
    unknown here, and only the driver's own free waits for those.

    Parameters
    ----------
    driver : StreamDriver
        The driver.
    events : EventPool
        Its events.
    name : str
        The device's name, for messages.
    """

    def __init__(self, driver: StreamDriver, events: EventPool, name: str) -> None:
        super().__init__(driver, events, name)
        self._imports: dict[int, int] = {}  # where an import begins -> users of it
        self._ends: dict[int, int] = {}  # of those imports that we page-locked
        self._lock = threading.RLock()  # re-entered by a finalizer that frees

    def import_refusal(self, device_id: int, address: int, nbytes: int) -> str:
        """Say why host memory cannot be page-locked in place.

        Parameters
        ----------
        device_id : int
            The device whose driver is asked.
        address, nbytes : int
            The memory.

        Returns
        -------
        str
            The reason; empty if it can be locked, or is locked already.
        """
        first = self.driver.locate(address, device_id).kind
        last = self.driver.locate(address + nbytes - 1, device_id).kind
        ours = list(self._ends.items())
        if any(start <= address and address + nbytes <= end for start, end in ours):
            return ""
        if any(start < address + nbytes and address < end for start, end in ours):
            return "a part of it is page-locked already, by another import"
        if {first, last} == {"host", "pageable"}:
            return "a part of it is page-locked already, and the rest is not"
        if first == last == "host":
            return ""
        if {first, last} != {"pageable"}:
            kind = first if first != "pageable" else last
            return f"it is {kind} memory, which cannot be page-locked"
        if address % mmap.PAGESIZE:
            return f"it does not begin at a page of {mmap.PAGESIZE} bytes, which are locked whole"
        return ""

    def import_host(
        self, device_id: int, address: int, nbytes: int, readonly: bool
    ) -> tuple[int, int]:
        """Use somebody's memory in place until `free`, page-locked if it is not yet.

        Returns
        -------
        tuple[int, int]
            What to free, and how many bytes behind it *address* is: memory inside an import
            shares its lock.

        Raises
        ------
        dlbridge.errors.ExchangeError
            As `import_refusal` says, or if the driver refuses; the memory has to be copied then.
        """
        with self._lock:
            refusal = self.import_refusal(device_id, address, nbytes)
            if refusal:
                raise ExchangeError(
                    f"the memory at {address:#x} cannot be used in place: {refusal}"
                )
            for start, end in list(self._ends.items()):
                # no call from here to the count, so that no finalizer comes between
                if start in self._ends and start <= address and address + nbytes <= end:
                    self._imports[start] += 1
                    return start, address - start
            if self.driver.locate(address, device_id).kind != "host":
                with self.driver.at(self.driver.place(device_id)), self.driver.relaxed():
                    self.driver.lock_pages(device_id, address, nbytes, readonly)
                self._ends[address] = address + nbytes
            self._imports[address] = self._imports.get(address, 0) + 1
            self.consumers.begin(address)
            return address, 0

    def is_shared(self, pointer: int) -> bool:
        """Whether several imports share *pointer*."""
        return self._imports.get(pointer, 0) > 1

    def obtain(self, device_id: int, nbytes: int, stream: int) -> int:
        """New page-locked memory."""
        return self.driver.allocate_pinned(nbytes)

    def release(self, device_id: int, pointer: int, stream: int) -> None:
        """Free or unlock *pointer*, after the work on *stream*."""
        imported = pointer in self._imports
        if not imported or pointer in self._ends:
            self.wait_before_free(stream)  # also if others remain, who do not know the stream
        if not imported:
            self.driver.free_pinned(pointer)
            return
        with self._lock:
            if self._imports[pointer] > 1:
                self._imports[pointer] -= 1
                return
            if pointer in self._ends:  # else somebody else page-locked it, and will undo it
                self.driver.unlock_pages(pointer)
                del self._ends[pointer]
            del self._imports[pointer]
