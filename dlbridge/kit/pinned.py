"""Page-locked host memory, and host memory that is page-locked in place."""

from __future__ import annotations

import mmap
import threading

from dlbridge.errors import Error, ExchangeError

from .driver import StreamDriver
from .events import EventPool
from .memory import DriverMemory, Memory
from .resources import AllocationOwner

__all__ = ["PinnedMemory"]


class _Pages:
    """Host memory that is used in place, by one import or several."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.users: set[DriverMemory] = set()
        self.locked: list[int] = []  # statuses of the driver's calls that lock and unlock it
        self.unlocked: list[int] = []

    @property
    def are_ours(self) -> bool:
        """Whether we have locked them, and not unlocked."""
        return self.locked[-1:] == [0] != self.unlocked[-1:]


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
        self._pages: set[_Pages] = set()  # that we have locked
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
        with self._lock:  # no import begins or ends between the questions
            return self._import_refusal(device_id, address, nbytes)

    def _import_refusal(self, device_id: int, address: int, nbytes: int) -> str:
        first = self.driver.locate(address, device_id).kind
        last = self.driver.locate(address + nbytes - 1, device_id).kind
        ours = [(each.start, each.end) for each in self._pages.copy() if each.are_ours]
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
        self, device_id: int, address: int, nbytes: int, readonly: bool, stream: int
    ) -> AllocationOwner[DriverMemory]:
        """Somebody's memory in place, page-locked if it is not yet; dropped, it is unlocked.

        Memory inside an import shares its lock.

        Raises
        ------
        dlbridge.errors.ExchangeError
            As `import_refusal` says, or if the driver refuses; the memory has to be copied then.
        """
        driver, end = self.driver, address + nbytes
        made = self.own(device_id, stream)
        memory = made.resource
        with self._lock:
            refusal = self._import_refusal(device_id, address, nbytes)
            if refusal:
                raise ExchangeError(
                    f"the memory at {address:#x} cannot be used in place: {refusal}"
                )
            around = [
                each
                for each in self._pages.copy()
                if each.are_ours and each.start <= address and end <= each.end
            ]
            pages = memory.parts = around[0] if around else _Pages(address, end)
            pages.users.add(memory)
            memory.cell.value = made.data = address
            made.nbytes = nbytes
            if around or driver.locate(address, device_id).kind == "host":
                return made
            self._pages.add(pages)
            try:
                lock = driver.lock_pages, device_id, address, nbytes, readonly, pages.locked
                driver.run(driver.places[device_id], *lock)
            except Error as exc:
                del made  # now, and not with the frames that the exception keeps
                if pages.locked and pages.locked[-1] in driver.cannot_lock:
                    raise ExchangeError(
                        f"the memory at {address:#x} cannot be page-locked in place ({exc}); "
                        "copy it instead"
                    ) from exc
                raise
        return made

    def obtain(self, memory: DriverMemory, nbytes: int) -> None:
        """New page-locked memory."""
        self.driver.allocate_pinned(nbytes, memory.cell)

    def release(self, memory: DriverMemory) -> None:
        """Free *memory*, or let the last of its imports unlock it, after the work on its stream."""
        # Also if others remain, who do not know the stream.
        self.driver.wait_for_stream(memory.stream)
        pages = memory.parts
        if pages is None:
            self.driver.free_pinned(memory.pointer, memory.codes)
            return
        with self._lock:
            pages.users.discard(memory)
            if not pages.users:
                if pages.are_ours:
                    self.driver.unlock_pages(pages.start, pages.unlocked)
                self._pages.discard(pages)
