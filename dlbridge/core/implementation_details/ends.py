"""The ends of a process: what the core does in a child of ``fork()``, and when Python ends.

In the child, in the order of the imports:

1. The registry puts a stub in the place of every backend that the parent has used. Each of its
   members raises the one error that says so (`dlbridge.core.plugins.registry`).
2. The kit forgets what the parent's resources own (`dlbridge.kit.resources`): nothing of the
   parent is given back.
3. Locks of `fork_lock` are free: a thread that held one does not exist.

When Python ends, in the reverse order of the imports:

1. Structs that the exchange table has lent get a deleter that is a harmless function of C, as
   consumers may hold them until after Python has ended. Blocks of shared memory stay mapped: a
   device may be writing to them still.
2. The ``__del__`` of memory does nothing any more, and those that other threads run are awaited,
   for two seconds at most (`end_finalizers`): a thread that Python ends inside of one would end
   the process.
3. The kit's owners give nothing back: drivers may be unloaded by then, and the system reclaims
   what they gave.
4. The structs of our capsules get that harmless deleter, too.

Backends have no order of their own: what a driver needs beside that is theirs.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import Any

Ending = Callable[[], Any]


def in_child(function: Ending) -> Ending:
    """*function*, which is called in each child of ``fork()``, where the system has that."""
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=function)
    return function


def at_exit(function: Ending) -> Ending:
    """*function*, which is called when Python ends: before those that were registered earlier."""
    atexit.register(function)
    return function


def fork_lock() -> Any:
    """A lock that is free in a child of ``fork()``, and reentrant: a finalizer may come inside."""
    lock: Any = threading.RLock()
    in_child(lock._at_fork_reinit)
    return lock
