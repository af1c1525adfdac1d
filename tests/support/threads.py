"""Threads for tests: several that begin at once, and one that waits for the GIL."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def at_once(count: int, work: Callable[[], Any]) -> list[Any]:
    """The results of *work* in *count* threads that begin together; an exception of one is raised."""
    barrier = threading.Barrier(count)

    def begin(_: int) -> Any:
        barrier.wait()
        return work()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def others_run_during(call: Callable[[], object]) -> bool:
    """Whether *call* releases the GIL: a thread that waits for it gets it during a call, or never."""
    go, ran = threading.Event(), []
    thread = threading.Thread(target=lambda: ran.append(go.wait()))
    thread.start()
    interval, end = sys.getswitchinterval(), time.monotonic() + 60
    sys.setswitchinterval(1000)  # nobody takes the GIL from this thread
    try:
        go.set()
        while not ran and time.monotonic() < end:  # a busy machine may not wake it at once
            call()
        return bool(ran)
    finally:
        sys.setswitchinterval(interval)
        thread.join()
