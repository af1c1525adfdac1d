"""A record of every `to_device` and `load` that ran, for ``with dlbridge.trace() as t:``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dlbridge.core.moves.plans import Plan
from dlbridge.core.public import public
from dlbridge.core.tensor.tensor import TRACES
from dlbridge.core.values.units import table


@public
class Trace:
    """The plans that ran in a ``with trace()`` block, in order; ``print(t)`` lists them.

    Attributes
    ----------
    plans : list of Plan
        One for each move, and for each tensor that was loaded from a file.

    Examples
    --------
    >>> with bridge.trace() as t:
    ...     moved = bridge.to_device([1.0, 2.0], "cpu")
    >>> [plan.nbytes for plan in t.plans]
    [16]
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

    def _total(self) -> str:
        return f"{len(self.plans)} moves, {self.nbytes} bytes copied"

    def __str__(self) -> str:
        lines = [f"{plan}\n  took {plan.seconds * 1e6:.0f} us" for plan in self.plans]
        return "\n".join([*lines, self._total()])

    def __repr__(self) -> str:
        return f"dlbridge.Trace({self._total()})"

    def _repr_html_(self) -> str:
        """Return the tables that a notebook shows."""
        return "".join([*(plan._repr_html_() for plan in self.plans), table(self._total())])


class _Active(threading.local):
    traces: tuple[Trace, ...] = ()
    """Replaced and never changed: without an ``__init__``, a finalizer always finds it."""


_active = _Active()


@public
@contextmanager
def trace() -> Iterator[Trace]:
    """Record the moves that this thread makes inside the block.

    An object of no array library, such as a dataset in a file, may be read once more
    for it: whether its memory was shared is found by asking with copy=False.

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
    # The dictionary of this thread: a generator that a signal handler has interrupted may end
    # in another thread.
    mine = vars(_active)
    TRACES.append(new)
    _active.traces = (*_active.traces, new)
    try:
        yield new
    finally:
        mine["traces"] = tuple(each for each in mine["traces"] if each is not new)
        TRACES.remove(new)


def is_recording() -> bool:
    """Whether a trace of this thread is active."""
    return bool(_active.traces)


def record(plan: Plan) -> None:
    """Add *plan*, which has just run, to the traces of this thread."""
    for active in _active.traces:
        active.plans.append(plan)
