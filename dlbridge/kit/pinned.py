"""Page-locked host memory, and host memory that is page-locked in place."""

from __future__ import annotations

import mmap
import threading
from ctypes import c_uint64

from dlbridge.errors import Error, ExchangeError

from .claims import Given, is_done
from .driver import StreamDriver
from .events import EventPool
from .memory import Memory
from .places import puts_place_back

__all__ = ["PinnedMemory"]


class _Import:
    """Host memory that is used in place."""

    __slots__ = ("codes", "end", "users")

    def __init__(self, end: int) -> None:
        self.end = end
        self.users = 1
        self.codes: list[int] = []  # of the driver's call that locks its pages; empty: not ours

    @property
    def is_ours(self) -> bool:
        """Whether we have locked the pages."""
        return is_done(self.codes)


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
        self._imports: dict[int, _Import] = {}  # by the address where it begins
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
        self.driver.guard.check()  # in a forked child nobody may hold the lock
        with self._lock:  # no import begins or ends between the questions
            return self._import_refusal(device_id, address, nbytes)

    def _import_refusal(self, device_id: int, address: int, nbytes: int) -> str:
        first = self.driver.locate(address, device_id).kind
        last = self.driver.locate(address + nbytes - 1, device_id).kind
        ours = [(start, each.end) for start, each in self._imports.copy().items() if each.is_ours]
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

    @puts_place_back
    def import_into(self, given: Given, address: int, nbytes: int, readonly: bool) -> int:
        """Use somebody's memory in place until it is freed, page-locked if it is not yet.

        Returns
        -------
        int
            How many bytes *address* is behind what the cell of *given* has then, and what is to
            be freed: memory inside an import shares its lock.

        Raises
        ------
        dlbridge.errors.ExchangeError
            As `import_refusal` says, or if the driver refuses; the memory has to be copied then.
        """
        device_id, cell = given.device_id, given.cell
        with self._lock:
            refusal = self._import_refusal(device_id, address, nbytes)
            if refusal:
                raise ExchangeError(
                    f"the memory at {address:#x} cannot be used in place: {refusal}"
                )
            for start, each in self._imports.copy().items():
                inside = each.is_ours and start <= address and address + nbytes <= each.end
                # no call from here to the cell, so that no finalizer or handler comes between
                if inside and start in self._imports:
                    each.users += 1
                    cell.value = start
                    return address - start
            is_ours = self.driver.locate(address, device_id).kind != "host"
            self.consumers.begin(address)
            made = _Import(address + nbytes)
            if address in self._imports:  # as above
                self._imports[address].users += 1
                cell.value = address
                return 0
            self._imports[address] = made
            cell.value = address  # from here on the destructor of *given* undoes it
            if is_ours:
                try:
                    with self.driver.at(self.driver.place(device_id)), self.driver.relaxed():
                        self.driver.lock_pages(device_id, address, nbytes, readonly, made.codes)
                except Error as exc:
                    given.give_up()
                    if made.codes and made.codes[-1] in self.driver.cannot_lock:
                        raise ExchangeError(
                            f"the memory at {address:#x} cannot be page-locked in place ({exc}); "
                            "copy it instead"
                        ) from exc
                    raise
            return 0

    def is_shared(self, pointer: int) -> bool:
        """Whether several imports share *pointer*."""
        found = self._imports.get(pointer)
        return found is not None and found.users > 1

    def obtain(self, device_id: int, nbytes: int, stream: int, cell: c_uint64) -> None:
        """New page-locked memory."""
        self.driver.allocate_pinned(nbytes, cell)

    def release(self, device_id: int, pointer: int, stream: int, codes: list[int]) -> None:
        """Free or unlock *pointer*, after the work on *stream*."""
        found = self._imports.get(pointer)
        if not codes and (found is None or found.is_ours):
            self.wait_before_free(stream)  # also if others remain, who do not know the stream
        if found is None and (not codes or codes[0] >= 0):
            if not is_done(codes):
                self.driver.free_pinned(pointer, codes)
            return
        with self._lock:
            if not codes and found is not None:
                # Pages that somebody else has locked, he will unlock.
                what = _NOTHING if found.users > 1 or not found.is_ours else _UNLOCK
                # no call from here to the end, as above: *codes* says what is left to do
                if found.users > 1:
                    found.users -= 1
                else:
                    del self._imports[pointer]
                codes.append(what)
            if codes[0] == _UNLOCK and not is_done(codes):
                self.driver.unlock_pages(pointer, codes)


_NOTHING, _UNLOCK = -1, -2
"""The first of the codes of an import: what is left to do. A driver has no such statuses."""
