"""Exceptions of a signal handler: in a block of a test, and at any moment of a scene's work."""

from __future__ import annotations

import inspect
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

_Found = TypeVar("_Found")


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


def at_each_step(
    functions: Sequence[Callable[..., object]],
    work: Callable[[], object],
    look: Callable[[], _Found],
    *,
    last_line: str = "",
) -> list[_Found]:
    """Do *work*, with an interruption before one instruction of *functions*, then before another.

    What *look* has found each time, where the exception is treated. *last_line* is the first line
    of a function that is left alone. From CPython 3.12 on it is lines: 3.12 tells also of
    instructions at which no signal handler runs, 3.13 of none.
    """
    last = {}
    for function in functions:
        lines, first = inspect.getsourcelines(function)
        end = next((at for at, line in enumerate(lines) if last_line and last_line in line), None)
        last[function.__code__] = first + (len(lines) if end is None else end)
    found: list[_Found] = []

    def steps_until(wanted: int) -> Any:
        count = 0

        def local(frame: Any, event: str, _argument: object) -> Any:
            nonlocal count
            end = last[frame.f_code]
            if event in ("opcode", "line") and (frame.f_lineno or end) < end:
                count += 1
                if count > wanted:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return local

        def trace(frame: Any, _event: str, _argument: object) -> Any:
            if frame.f_code not in last:
                return None
            frame.f_trace_opcodes = sys.version_info < (3, 12)
            return local

        return trace

    while True:
        before = sys.gettrace()
        sys.settrace(steps_until(len(found)))
        try:
            work()
        except KeyboardInterrupt:
            sys.settrace(before)
            found.append(look())
        else:
            return found
        finally:
            sys.settrace(before)
