"""trace: the plans of what ran in a block, as lists, sums and tables."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

from dlbridge.extending import TRACES, bytes_text, did_you_mean, html_table, public_in

if TYPE_CHECKING:
    from dlbridge import Plan

_Function = TypeVar("_Function", bound=Callable[..., Any])


@public_in("dlbridge")
class Trace:
    """The plans that ran in a ``with trace()`` block, in order; ``print(t)`` lists them.

    It is a sequence of its plans: one without plans is false, so ask ``trace is None`` for none.

    Attributes
    ----------
    plans : list of Plan
        One for each move, for each tensor that was loaded from a file, and for each other
        operation of dlbridge that has copied or filled memory.
    thread : int or None
        The number of the thread that is recorded; None: all of them.

    Examples
    --------
    >>> with bridge.trace() as t:
    ...     moved = bridge.to_device([1.0, 2.0], "cpu")
    >>> [plan.nbytes for plan in t.plans]
    [16]
    >>> len(t), t[0].nbytes, sum(plan.copies for plan in t)
    (1, 16, 1)
    """

    def __init__(self, thread: int | None = None) -> None:
        self.plans: list[Plan] = []
        self.thread = thread

    def __len__(self) -> int:
        return len(self.plans)

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.plans)

    @overload
    def __getitem__(self, index: int) -> Plan: ...
    @overload
    def __getitem__(self, index: slice) -> list[Plan]: ...
    def __getitem__(self, index: int | slice) -> Plan | list[Plan]:
        return self.plans[index]

    @property
    def nbytes(self) -> int:
        """The bytes that all moves copied."""
        return sum(plan.nbytes for plan in self.plans)

    @property
    def copies(self) -> int:
        """The number of copies that were made."""
        return sum(plan.copies for plan in self.plans)

    def _total(self) -> str:
        moves = len(self.plans)
        return f"{moves} move{'' if moves == 1 else 's'}, {self.nbytes} bytes copied"

    def __str__(self) -> str:
        lines = [f"{plan}\n  {plan.took}" for plan in self.plans]
        return "\n".join([*lines, self._total()])

    def summary(self) -> str:
        """Return the copies by the line of the program and the reason, those of most bytes first.

        Returns
        -------
        str
            One line for each, and one for the sum. Addresses in the reasons are left out.

        Examples
        --------
        >>> with bridge.trace() as t:
        ...     for _ in range(3):
        ...         moved = bridge.to_device(np.zeros(1000), "cpu", copy=True)
        >>> print(t.summary())  # doctest: +ELLIPSIS
        23.4 KiB in 3 copies, ... us: ...: copy: copy=True was asked for
        3 moves, 24000 bytes copied
        """
        found: dict[str, list[Plan]] = {}
        for plan in self.plans:
            if plan.nbytes:
                reason = re.sub(r"\b0x[0-9a-f]+", "0x...", plan.reasons)
                found.setdefault(f"{plan.where}: {reason}", []).append(plan)
        rows = []
        for text, plans in found.items():
            nbytes, copies = sum(p.nbytes for p in plans), sum(p.copies for p in plans)
            how = f"in {copies} cop{'y' if copies == 1 else 'ies'}"
            microseconds = sum(p.seconds for p in plans) * 1e6
            rows.append((-nbytes, f"{bytes_text(nbytes)} {how}, {microseconds:.0f} us: {text}"))
        return "\n".join([*(row for _, row in sorted(rows)), self._total()])

    def __repr__(self) -> str:
        return f"dlbridge.Trace({self._total()})"

    def _repr_html_(self) -> str:
        """Return the tables that a notebook shows."""
        return "".join([*(plan._repr_html_() for plan in self.plans), html_table(self._total())])

    if not TYPE_CHECKING:  # to a type checker it would say that every name is there

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError, which says what has the moves."""
            hint = did_you_mean(name, dir(self)) or "; trace.plans has a Plan of each move"
            raise AttributeError(
                f"'Trace' object has no attribute {name!r}{'' if name.startswith('_') else hint}"
            )


class TraceBlock:
    """What `trace` gives: the ``with`` block, or a decorator each of whose calls is a block."""

    __slots__ = ("_block",)

    def __init__(self, threads: bool) -> None:
        self._block = _recorded(threads)

    def __enter__(self) -> Trace:
        return self._block.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._block.__exit__(*raised)

    def __call__(self, function: _Function) -> _Function:
        """*function*, each of whose calls is a block."""
        return self._block(function)

    def __repr__(self) -> str:
        return f"<{_HOW}>"

    if not TYPE_CHECKING:  # to a type checker it would say that every name is there

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError, which says how to get the trace."""
            hint = "" if name.startswith("_") else f"; {_HOW}"
            raise AttributeError(f"'TraceBlock' object has no attribute {name!r}{hint}")


_HOW = "write `with dlbridge.trace() as trace:`, and read the trace in the block or after it"


@public_in("dlbridge")
def trace(*, threads: bool = False) -> TraceBlock:
    """Record the moves that this thread makes inside the block, and all that it copies by dlbridge.

    An object of no array library, such as a dataset in a file, may be read once more
    for it: where its memory was shared, a second array of it has the same address.

    Parameters
    ----------
    threads : bool
        Whether all other threads are recorded, too.

    Returns
    -------
    context manager
        Of a `Trace`, which fills while the block runs. As a decorator it records each call.

    Notes
    -----
    The logger ``dlbridge`` says each copy in one line at the level DEBUG, of all threads and
    without a block. What other libraries copy by themselves is in neither: what numpy does in
    ``np.from_dlpack(t, copy=True)``, for example.

    Examples
    --------
    >>> with bridge.trace() as t:
    ...     moved = bridge.to_device(np.zeros(1000), "cpu", copy=True)
    >>> t.nbytes, t.copies
    (8000, 1)
    """
    return TraceBlock(threads)


@contextmanager
def _recorded(threads: bool) -> Iterator[Trace]:
    """One block."""
    new = Trace(None if threads else threading.get_ident())
    TRACES.append(new)
    try:
        yield new
    finally:
        TRACES.remove(new)
