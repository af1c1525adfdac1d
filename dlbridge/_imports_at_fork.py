"""Imports and forks: what a child of ``fork()`` does about imports of other threads.

The first use of a name imports a module. If another thread is importing during the fork, the child
inherits the lock of that import and would wait for ever. These hooks must be registered before that
first use: `dlbridge` imports this module first.
"""

from __future__ import annotations

import _thread
import importlib
import os
import sys
import time


def _imports_of_others() -> list[tuple[str, int]]:
    """The modules that other threads are importing now, each with the thread."""
    me = _thread.get_ident()
    # importlib has no public API for this; these names are the same in 3.11 to 3.15.
    locks = importlib._bootstrap._module_locks.copy()  # type: ignore[attr-defined]
    found = [(name, lock.owner) for name, ref in locks.items() if (lock := ref()) is not None]
    return [(name, owner) for name, owner in found if owner not in (None, me)]


def _is_inside(thread: int) -> bool:
    """Whether *thread* is in a function or module of ours; it may import any other one there."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("dlbridge"):
            return True
        frame = frame.f_back
    return False


def _wait_for_imports() -> None:
    """Before a fork: wait for imports of other threads; 5 s at most: they may wait for this one."""
    end = time.monotonic() + 5
    while any(_is_inside(thread) for _, thread in _imports_of_others()):
        if time.monotonic() > end:
            break
        time.sleep(0.001)


def _drop_imports() -> None:
    """In a child: drop imports of threads that are not there any more; a later use imports again.

    Those of other packages, too: ours import them, and an import may begin behind the wait.
    """
    for name, _ in _imports_of_others():
        importlib._bootstrap._module_locks.pop(name, None)  # type: ignore[attr-defined]
        sys.modules.pop(name, None)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_wait_for_imports, after_in_child=_drop_imports)
