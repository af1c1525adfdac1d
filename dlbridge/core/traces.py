"""Who wants to know what is copied: the traces that are active, and the log.

Each move asks. This module stands below all others of the core, so that a tensor can, too.
"""

from __future__ import annotations

import threading
from functools import cache
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
    me = threading.get_ident()
    return [each for each in TRACES.copy() if each.thread in (None, me)]


@cache
def logger() -> Any:
    """The logger ``dlbridge``."""
    import logging

    return logging.getLogger("dlbridge")


def is_recording() -> bool:
    """Whether a trace of this thread, or the log, takes what is copied now."""
    if TRACES and traces_of_this_thread():
        return not INSIDE.copy
    if "logging" not in modules:  # who has not imported it has asked for no log
        return False
    log = logger()
    # The first question is a part of the second one, and takes a fifth of its time.
    return (log.level or log.parent.level) <= 10 and log.isEnabledFor(10) and not INSIDE.copy
