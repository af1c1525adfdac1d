"""The one lock that guards the package's bookkeeping, and the rules that keep it safe.

It is one lock for all devices, because garbage collection may free a tensor of
one device while this thread works for another: two locks could be taken in
either order, and two threads would wait for each other. It is reentrant, because
a finalizer may use Vulkan in the middle of a call of the same thread. It is only
ever taken by ``with``, which a signal handler cannot separate from the release.
Nobody waits for a device or for another lock while holding it.
"""

from __future__ import annotations

import os
import threading
from typing import Any

__all__ = ["holds", "is_reentrant", "package_lock"]

_lock: Any = threading.RLock()


def package_lock() -> Any:
    """The lock; a device keeps the one of the process that opened it."""
    return _lock


def holds(lock: Any) -> bool:
    """Whether the calling thread holds *lock*; False for a lock that cannot say."""
    # threading.Condition asks its lock in the same way.
    owned = getattr(lock, "_is_owned", None)
    return bool(owned and owned())


def is_reentrant(lock: Any) -> bool:
    """Whether a thread that holds *lock* may take it again; a plain lock says no."""
    return not isinstance(lock, type(threading.Lock()))


def _renew() -> None:
    # A thread that held the lock does not exist in the child.
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
