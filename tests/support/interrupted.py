"""Exceptions of a signal handler: in a block of a test, and at any moment of a scene's work."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Alarm(Exception):
    """An exception that is no KeyboardInterrupt."""


@contextmanager
def handled(error: type[BaseException], number: int = signal.SIGTERM) -> Iterator[None]:
    """The signal *number* raises *error* inside the block, wherever it arrives."""

    def handler(*_: object) -> None:
        raise error

    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def interrupted(
    work: Callable[[], object],
    exception: type[BaseException],
    times: int,
    *,
    may: Callable[[], bool] = lambda: True,
    spread: float = 1,
) -> None:
    """Do *work* again and again while signals come, until *times* exceptions have arrived.

    Where *may* is false, a signal comes again a little later. They come within 2 ms of a turn's
    begin, and *spread* times as long.
    """

    def handler(*_: object) -> None:
        if may():
            raise exception
        signal.setitimer(signal.ITIMER_REAL, 150e-6)

    def turn(delay: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, delay)
        limit = time.monotonic() + 0.01 * spread
        while time.monotonic() < limit:  # one that a destructor meets, Python only prints
            work()
        signal.setitimer(signal.ITIMER_REAL, 0)
        time.sleep(0)  # a signal that came just before is raised here

    signal.signal(signal.SIGALRM, handler)
    heard, delay = 0, 0
    while heard < times:
        delay = (delay + 7) % 1999
        try:  # around a call: CPython 3.13 leaves out the jump of a loop inside the block
            turn(20e-6 + delay * 1e-6 * spread)
        except exception:
            heard += 1
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
