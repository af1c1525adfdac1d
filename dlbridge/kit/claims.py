"""Memory between a driver and its owner: an exception of a signal handler loses none of it.

Such an exception may come at every call of a Python function and after every call of a C function.
So a driver writes what it gives into an object that exists before (`Given`), and the status of
what it takes back is put into a list by the call itself (`Freed.codes`); both are done in C. An
object that the exception drops on the way is not lost either: its destructor goes on with it.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from _thread import start_new_thread
from collections.abc import Callable, Hashable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .driver import LastingStream

__all__ = ["Freed", "Given", "is_done", "uninterrupted"]


def is_done(codes: list[int]) -> bool:
    """Whether the driver has taken the memory back: 0 is success in every API."""
    return codes[-1:] == [0]


def uninterrupted(work: Callable[[], object]) -> None:
    """Do *work*, whose calls of the driver depend on each other, where no signal handler runs.

    That is in a thread of its own: Python runs handlers in the main thread only. The exception
    of a handler that comes meanwhile is raised when *work* is done. It takes about 0.1 ms.
    """
    # While the interpreter ends, a thread begins and does nothing.
    if threading.get_ident() != threading.main_thread().ident or sys.is_finalizing():
        work()
        return
    raised: list[BaseException] = []
    begun: list[int] = []
    ended: list[bool] = []
    # No Event: it stays locked for good where an exception cuts its `wait` off.
    done: SimpleQueue[None] = SimpleQueue()

    def run() -> None:
        try:
            work()
        except BaseException as exc:
            raised.append(exc)
        finally:
            ended.append(True)
            done.put(None)

    def wait() -> None:
        while not ended:
            with suppress(Empty):
                done.get(timeout=0.05)  # an exception may have come after it, so not for ever

    try:
        begun.extend(map(start_new_thread, [run], [()]))  # in C: it is known whether it has begun
        wait()
    except BaseException as exc:
        if begun:
            wait()
        elif isinstance(exc, RuntimeError) and str(exc).startswith("can't"):
            work()  # no thread can be started: at the end of the process, or at its limit
            return
        raise
    if raised:
        raise raised.pop()  # its traceback would keep it in the list


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
