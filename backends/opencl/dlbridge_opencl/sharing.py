"""Which of the users' queues may have work on a buffer, beside ours.

A `pyopencl.array.Array` has a queue of its own, whether it came from the user
or was given out here. Work of ours on its memory must come after what is there.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = [
    "Borrowed",
    "all_queues",
    "exports",
    "forget",
    "give_out",
    "is_shared",
    "may_be_exported",
    "queues_of",
]

_queues: dict[int, list[cl.CommandQueue]] = {}  # data -> the users' queues
_exports = 0
lock = threading.RLock()
"""The one lock that finalizers take: with a second, two threads could wait for each other.
Re-entrant, because the garbage collector may call one in the middle."""


class Borrowed:
    """Owner of a user's *array* over *data*: its queue counts as long as this lives."""

    def __init__(self, data: int, queue: cl.CommandQueue, *owners: object) -> None:
        self._data = data
        self._queue = queue
        self._owners = owners
        with lock:
            _queues.setdefault(data, []).append(queue)

    # The defaults outlive the module, whose names are gone when the process ends.
    def __del__(
        self,
        queues: dict[int, list[cl.CommandQueue]] = _queues,
        lock: threading.RLock = lock,
    ) -> None:
        with lock:
            known = queues.get(self._data, [])
            if self._queue in known:
                known.remove(self._queue)
            if not known:
                queues.pop(self._data, None)


def give_out(data: int, queue: cl.CommandQueue) -> None:
    """Note that a user got *data* of ours with *queue*, until `forget`."""
    with lock:
        known = _queues.setdefault(data, [])
        if queue not in known:
            known.append(queue)


def forget(data: int) -> list[cl.CommandQueue]:
    """Forget *data*, which is freed; the queues of users that had it."""
    return _queues.pop(data, [])


def may_be_exported() -> None:
    """Note that somebody may have got any memory there is now, for a queue of theirs.

    Nobody tells us which memory, nor when they let go of it.
    """
    global _exports
    with lock:
        _exports += 1


def exports() -> int:
    """How often `may_be_exported` was called."""
    return _exports


def is_shared(data: int) -> bool:
    """Whether a user has *data*, too."""
    return data in _queues


def all_queues() -> set[cl.CommandQueue]:
    """The users' queues that may have work on any memory."""
    # Copies: finalizers change both in the middle.
    return {queue for known in list(_queues.values()) for queue in list(known)}


def queues_of(data: int) -> list[cl.CommandQueue]:
    """The users' queues that may have work on *data*."""
    return list(_queues.get(data, ()))
