"""Work that is cut off at each place in turn: by an allocation that fails, or by a trace function.

`each_failure` does the work once for each place, and prints what was wrong afterwards. It is for
processes of their own, which may crash.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Look = Callable[[], list[int]]

ENOUGH = 40
"""So many turns in which nothing fails: the work makes no further allocation, or has no more lines."""

OTHERS = (
    "without exception set",  # CPython, at a call
    "without setting an exception",
    "can't allocate lock",
    "an exception that cannot be described",  # of a callback, where the description was cut off
    "its exchange table failed without an error",
)
"""Errors that are as good as the expected one."""


class Cut(BaseException):
    """What a trace function raises: as a KeyboardInterrupt, no failure of the work."""


@dataclass
class Found:
    """What the turns of some works have shown."""

    failed: int = 0
    wrong: list[str] = field(default_factory=list)
    rises: int = 0
    """Turns after which more references were counted, and none fewer.

    Destructors that are cut off give nothing up; and CPython before 3.13 loses the arguments of a
    call for which a cell gets no memory (``def f(x): return lambda: x`` shows it).
    """


def each_failure(
    how: str,
    works: dict[str, Callable[[], object]],
    look: Look,
    folders: tuple[str, ...],
    least: int,
) -> None:
    """Do each of *works* with each of its failures; print what was wrong.

    There must be *least* failures in all.
    """
    found = Found()
    for name, work in works.items():
        before = len(found.wrong)
        if how == "allocations":
            failing_allocations(work, look, found)
        else:
            failing_lines(work, look, folders, found)
        for wrong in found.wrong[before:]:
            print(f"{name}, {wrong}")
    assert found.failed >= least, found.failed
    assert found.rises * 10 < found.failed, (found.rises, found.failed)


def failing_allocations(work: Callable[[], object], look: Look, found: Found) -> None:
    """Do *work* again and again, with one more allocation before the one that fails.

    The error is to be a MemoryError, where the work cannot do without the memory; and nothing that
    *look* counts is to be less afterwards.
    """
    from _testcapi import remove_mem_hooks, set_nomemory

    def turn(number: int) -> BaseException | None:
        set_nomemory(number, number + 1)
        try:
            work()
        except BaseException as error:
            remove_mem_hooks()
            return error
        remove_mem_hooks()
        return None

    _each(turn, work, look, MemoryError, found)


def failing_lines(
    work: Callable[[], object], look: Look, folders: tuple[str, ...], found: Found
) -> None:
    """The same for a trace function that raises before one line, then another, of files in *folders*."""

    def turn(number: int) -> BaseException | None:
        left = number

        def local(_frame: Any, event: str, _argument: object) -> Any:
            nonlocal left
            if event == "line":
                left -= 1
                if left < 0:
                    sys.settrace(None)
                    raise Cut
            return local

        def trace(frame: Any, _event: str, _argument: object) -> Any:
            return local if frame.f_code.co_filename.startswith(folders) else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            work()
        except BaseException as error:
            sys.settrace(before)
            return error
        sys.settrace(before)
        return None

    _each(turn, work, look, Cut, found)


def _shown(error: BaseException | None) -> Iterator[BaseException]:
    """The exceptions that a traceback of *error* shows."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _each(
    turn: Callable[[int], BaseException | None],
    work: Callable[[], object],
    look: Look,
    expected: type[BaseException],
    found: Found,
) -> None:
    printed: list[object] = []
    sys.unraisablehook = lambda given: printed.append(given.exc_type)
    for _ in range(3):  # caches, and first uses
        work()
    gc.collect()
    gc.freeze()
    before, idle = look(), 0
    for number in itertools.count():
        printed.clear()
        error = turn(number)
        idle = idle + 1 if error is None and not printed else 0
        if idle > ENOUGH:
            break
        found.failed += not idle
        if not isinstance(error, expected | None) and not any(w in str(error) for w in OTHERS):
            last = traceback.extract_tb(error.__traceback__)[-1]
            found.wrong.append(f"{number}: {error!r} ({Path(last.filename).name}:{last.lineno})")
        if any(isinstance(each, ctypes.ArgumentError) for each in _shown(error)):
            found.wrong.append(f"{number}: {error!r} shows the ArgumentError of ctypes")
        error = None
        work()  # takes away what waits for the next call
        gc.collect()
        after = look()
        changes = [now - earlier for now, earlier in zip(after, before, strict=True)]
        if min(changes) < 0:
            found.wrong.append(f"{number}: the counts changed by {changes}")
        found.rises += max(changes) > 0
        before = after
