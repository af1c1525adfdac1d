"""Who wants to know what is copied: the traces that are active, and the log.

Each move asks. This module stands below all others of the core, so that a tensor can, too.
"""

from __future__ import annotations

import threading
from sys import modules
from typing import Any

TRACES: list[Any] = []
"""The active traces of all threads. While it is empty, a move that does nothing needs no plan."""


class _Inside(threading.local):
    copy = False


INSIDE = _Inside()
"""Whether this thread is in an operation that is recorded whole: its steps are not, once more."""


def traces_of_this_thread() -> list[Any]:
    """Those that record this thread."""
    return [each for each in TRACES.copy() if each.thread in (None, threading.get_ident())]


_log: Any = None
"""The logger ``dlbridge``; None while nobody has imported logging, and so asked for a log."""


def is_recording() -> bool:
    """Whether a trace of this thread, or the log, takes what is copied now."""
    global _log
    if TRACES and traces_of_this_thread():
        return not INSIDE.copy
    if _log is None and "logging" in modules:
        import logging

        _log = logging.getLogger("dlbridge")
    log = _log
    if not log or (log.level or log.parent.level) > 10:  # before what takes five times as long
        return False
    return log.isEnabledFor(10) and not INSIDE.copy
