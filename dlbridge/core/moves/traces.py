"""A record of every `to_device` that ran, for ``with dlbridge.trace() as t:``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dlbridge.core.public import public

from .plans import Plan

__all__ = ["ANYWHERE", "Trace", "record", "trace"]


@public
class Trace:
    """The plans that ran in a ``with trace()`` block, in order; ``print(t)`` lists them.

    Attributes
    ----------
    plans : list of Plan
        One for each move.

    Examples
    --------
    >>> with bridge.trace() as t:
    ...     moved = bridge.to_device([1.0, 2.0], "cpu")
    >>> [plan.nbytes for plan in t.plans]
    [0]
    """

    def __init__(self) -> None:
        self.plans: list[Plan] = []

    @property
    def nbytes(self) -> int:
        """The bytes that all moves copied."""
        return sum(plan.nbytes for plan in self.plans)

    @property
    def copies(self) -> int:
        """The number of copies that were made."""
        return sum(plan.copies for plan in self.plans)

    def __str__(self) -> str:
        lines = [f"{plan}\n  took {plan.seconds * 1e6:.0f} us" for plan in self.plans]
        return "\n".join([*lines, f"{len(self.plans)} moves, {self.nbytes} bytes copied"])


class _Active(threading.local):
    def __init__(self) -> None:
        self.traces: list[Trace] = []


_active = _Active()

ANYWHERE: list[Trace] = []
"""The traces of all threads: while it is empty, nothing needs to be recorded."""


@public
@contextmanager
def trace() -> Iterator[Trace]:
    """Record the moves that this thread makes inside the block.

    Yields
    ------
    Trace
        It fills while the block runs.

    Examples
    --------
    >>> with bridge.trace() as t:
    ...     moved = bridge.to_device(np.zeros(1000), "cpu", copy=True)
    >>> t.nbytes, t.copies
    (8000, 1)
    """
    new = Trace()
    ANYWHERE.append(new)
    _active.traces.append(new)
    try:
        yield new
    finally:
        _active.traces.remove(new)
        ANYWHERE.remove(new)


def record(plan: Plan) -> None:
    """Add *plan*, which has just run, to the traces of this thread."""
    for active in _active.traces:
        active.plans.append(plan)
