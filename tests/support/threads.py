"""Threads for tests: several at once, what went wrong in them, and one that waits for the GIL."""

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


def in_threads(work: Callable[[int], object], count: int = 8) -> list[object]:
    """Run *work(number)* in *count* threads; what they raised, and what was in lists they returned."""
    failures: list[object] = []

    def run(number: int) -> None:
        try:
            found = work(number)
            failures.extend(found if isinstance(found, list) else [])
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures
