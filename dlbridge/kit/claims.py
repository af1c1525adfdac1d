"""Memory between a driver and its owner: an exception of a signal handler loses none of it.

Such an exception may come at every call of a Python function and after every call of a C function.
So a driver writes what it gives into an object that exists before (`Given`), and the status of
what it takes back is put into a list by the call itself (`Freed.codes`); both are done in C. An
object that the exception drops on the way is not lost either: its destructor goes on with it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .driver import LastingStream

__all__ = ["Freed", "Given", "is_done"]


def is_done(codes: list[int]) -> bool:
    """Whether the driver has taken the memory back: 0 is success in every API."""
    return codes[-1:] == [0]


class _Owner(Protocol):
    def give_up(self, freed: Freed) -> None: ...
    def put_back(self, freed: Freed) -> None: ...


class Given:
    """Memory that a driver gives, until the caller has taken it from `cell`; else it is freed.

    Parameters
    ----------
    owner : object
        What frees it: its method ``give_up`` is called with a `Freed`.
    device_id, stream : int
        As for the free.
    """

    __slots__ = ("cell", "device_id", "owner", "stream")

    def __init__(self, owner: _Owner, device_id: int, stream: int) -> None:
        self.cell = ctypes.c_uint64()
        self.owner = owner
        self.device_id = device_id
        self.stream = stream

    def give_up(self) -> None:
        """Free what is in the cell, and empty it."""
        cell = self.cell
        pointer = cell.value
        # From here to the call of `Freed` there is no call, so that no handler can come between.
        cell.value = 0
        self.owner.give_up(Freed((self.owner, self.device_id, pointer, self.stream)))

    def __del__(self) -> None:
        cell = getattr(self, "cell", None)  # none if __init__ was cut off
        if cell and not sys.is_finalizing():
            self.give_up()


class Freed(list[Any]):
    """Memory that its owner has given up, until the driver has it: then the list is empty.

    It is made of ``(memory, device_id, pointer, stream)``, which a list takes in C.
    """

    has_begun = False
    """Whether the attributes below are known, and the pointer is what the driver gave."""
    codes: list[int]
    """The statuses of the driver's calls that take it back."""
    numbers: frozenset[int] = frozenset()
    """Of the streams that had the handle of its stream."""
    consumers: list[tuple[LastingStream, int | None]]
    """Streams whose work so far has no event yet."""
    events: list[tuple[Hashable, Any]]
    """Behind the work of the other consumers."""

    @property
    def device_id(self) -> int:
        """The device that the memory is on."""
        return int(self[1])

    @property
    def pointer(self) -> int:
        """What the driver gave."""
        return int(self[2])

    @property
    def stream(self) -> int:
        """The stream behind whose work it is freed."""
        return int(self[3])

    def __del__(self) -> None:
        if self and not sys.is_finalizing():
            again = Freed(self)  # Python calls no __del__ twice
            again.__dict__.update(self.__dict__)
            self[0].put_back(again)
