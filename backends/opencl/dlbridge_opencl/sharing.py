"""Record which queues of users may have work on a buffer.

A `pyopencl.array.Array` has a queue of its own, whether it came from the user
or was given to the user here. Our work on its memory must come after the work
on that queue.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from .forking import in_child, inherited

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyopencl as cl

__all__ = [
    "QUEUES",
    "Borrowed",
    "all_queues",
    "exports",
    "give_out",
    "may_be_exported",
    "queues_of",
]

QUEUES: dict[int, list[cl.CommandQueue]] = inherited({})
"""data -> the users' queues"""
exports = 0
"""The number of calls of `may_be_exported`."""
lock = threading.RLock()
"""The lock of these tables and of the pool, which finalizers acquire. Nothing waits for
another lock or for the driver while it holds this one. Re-entrant, because the garbage
collector may call a finalizer in the thread that holds it."""


class Borrowed:
    """Owner of a user's array over *data*; its queue is recorded while this lives."""

    # What the destructor finds if a signal handler has cut __init__ off.
    _data = 0
    _queue: cl.CommandQueue | None = None

    def __init__(self, data: int, queue: cl.CommandQueue, *owners: object) -> None:
        self._data = data
        self._queue = queue
        self._owners = owners
        with lock:
            QUEUES.setdefault(data, []).append(queue)

    # The defaults outlive the module: its names are cleared when the process ends.
    def __del__(
        self,
        queues: dict[int, list[cl.CommandQueue]] = QUEUES,
        lock: threading.RLock = lock,
        in_child: Callable[[], bool] = in_child,
    ) -> None:
        if in_child():
            return  # a thread of the parent may have held the lock
        with lock:
            known = queues.get(self._data, [])
            if self._queue in known:
                known.remove(self._queue)
            if not known:
                queues.pop(self._data, None)


def give_out(data: int, queue: cl.CommandQueue) -> None:
    """Record that a user got our *data* with *queue*, until `memory.free`."""
    with lock:
        known = QUEUES.setdefault(data, [])
        if queue not in known:
            known.append(queue)


def may_be_exported() -> None:
    """Record that a consumer may have got any memory that exists now, for a queue of its own.

    Nothing says which memory, nor when the consumer is done with it.
    """
    global exports
    with lock:
        exports += 1


def all_queues() -> set[cl.CommandQueue]:
    """The users' queues that may have work on any memory."""
    # Of copies: finalizers may change both meanwhile.
    return {queue for known in list(QUEUES.values()) for queue in list(known)}


def queues_of(data: int) -> list[cl.CommandQueue]:
    """The users' queues that may have work on *data*."""
    return list(QUEUES.get(data, ()))
