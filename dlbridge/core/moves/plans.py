"""Plans: what a move does, in words; and traces, which collect the plans of moves that ran.

What is done is chosen in ``transfer``, without words. They are for `dlbridge.explain`, traces and
errors only.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge.core.public import public
from dlbridge.core.traces import TRACES
from dlbridge.core.values.text import bytes_text, html_table

if TYPE_CHECKING:
    from dlbridge.core.tensor.tensor import Tensor
    from dlbridge.core.values.devices import Device
    from dlbridge.core.values.dtypes import DType


@public
class Step(NamedTuple):
    """One step of a move.

    Attributes
    ----------
    kind : str
        ``share``, ``relabel`` (host memory under another name), ``host view``
        (a device's memory addressed by the host), ``host import`` (host memory
        used by a device), ``memory import`` (memory of another driver of the
        same device), ``by library`` (the library that made the array brings
        it to the CPU), or a copy: ``copy``, ``pack``, ``upload``, ``download``,
        ``peer copy``, ``as library``, ``read`` (into new memory, from a file or
        from an object that has no memory to share, such as a list).
    source, target : Device
        From where to where.
    nbytes : int
        The bytes that it copies, 0 for none. A reversed or transposed tensor
        comes to the host with the gaps between its elements.
    reason : str
        Why the step is needed, or why nothing is copied.

    Examples
    --------
    >>> bridge.plan(np.zeros(4), "cpu", copy=True).steps[0].kind
    'copy'
    """

    kind: str
    source: Device
    target: Device
    nbytes: int
    reason: str

    def __str__(self) -> str:
        if self.kind == "as library" and not self.nbytes:
            return self.reason  # which says that nothing is copied
        cost = f"{bytes_text(self.nbytes)} copied" if self.nbytes else "no copy"
        return f"{self.kind}: {self.source} -> {self.target}, {cost}: {self.reason}"


@public
class Plan:
    """The steps of one move, in order. ``print(plan)`` explains them.

    Attributes
    ----------
    dtype, shape, origin : DType, tuple of int, str
        The tensor: its type, extents in elements, and the source of its memory.
    source, target : Device
        From where to where.
    may_copy : bool
        Whether it may copy if a driver refuses to use the memory in place.
    steps : list of Step
        In order.
    address, result_address : int
        `Tensor.data_ptr` at the start and of the result; 0 until it ran.
    seconds : float
        How long it took; 0 until it ran.

    Examples
    --------
    >>> print(bridge.plan(np.zeros(4, "float32"), "cpu"))
    float32 (4,) from numpy.ndarray: cpu:0 -> cpu:0, no copy
      1. share: cpu:0 -> cpu:0, no copy: it is there already: the same memory
    """

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        origin: str,
        source: Device,
        target: Device,
        *,
        may_copy: bool = True,
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.origin = origin
        self.source = source
        self.target = target
        self.may_copy = may_copy
        self.steps: list[Step] = []
        self.address = self.result_address = 0
        self.seconds: float = 0.0

    @property
    def what(self) -> str:
        """The dtype, shape and origin of the tensor, as text."""
        return f"{self.dtype} {self.shape} from {self.origin}"

    @property
    def nbytes(self) -> int:
        """The bytes that all steps copy."""
        return sum(step.nbytes for step in self.steps)

    @property
    def copies(self) -> int:
        """The number of steps that copy."""
        return sum(step.nbytes > 0 for step in self.steps)

    def add(self, kind: str, source: Device, target: Device, nbytes: int, reason: str) -> None:
        """Append a step.

        Parameters
        ----------
        kind, source, target, nbytes, reason
            As in `Step`.

        Examples
        --------
        >>> plan = bridge.plan(np.zeros(4), "cpu")
        >>> plan.add("copy", plan.source, plan.target, 32, "an example")
        >>> plan.nbytes
        32
        """
        self.steps.append(Step(kind, source, target, nbytes, reason))

    def _head(self) -> str:
        copies = "no copy" if not self.copies else f"{bytes_text(self.nbytes)} copied"
        return f"{self.what}: {self.source} -> {self.target}, {copies}"

    def __str__(self) -> str:
        lines = [f"  {number}. {step}" for number, step in enumerate(self.steps, 1)]
        return "\n".join([self._head(), *lines])

    def __repr__(self) -> str:
        return f"dlbridge.Plan({self._head()})"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        rows = [
            (step.kind, step.source, step.target, bytes_text(step.nbytes), step.reason)
            for step in self.steps
        ]
        return html_table(self._head(), ("step", "from", "to", "copied", "reason"), rows)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan in plain values, for JSON.

        Returns
        -------
        dict
            ``what``, ``source``, ``target``, ``nbytes`` and ``steps``, a list of
            dictionaries with the attributes of `Step`.

        Examples
        --------
        >>> bridge.plan(np.zeros(4), "cpu", copy=True).as_dict()["nbytes"]
        32
        """
        return {
            "what": self.what,
            "source": str(self.source),
            "target": str(self.target),
            "nbytes": self.nbytes,
            "steps": [
                {**step._asdict(), "source": str(step.source), "target": str(step.target)}
                for step in self.steps
            ],
        }


# Records of `to_device` and `load`, for ``with dlbridge.trace() as t:`` -----------------


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
        moves = len(self.plans)
        return f"{moves} move{'' if moves == 1 else 's'}, {self.nbytes} bytes copied"

    def __str__(self) -> str:
        lines = [f"{plan}\n  took {plan.seconds * 1e6:.0f} us" for plan in self.plans]
        return "\n".join([*lines, self._total()])

    def __repr__(self) -> str:
        return f"dlbridge.Trace({self._total()})"

    def _repr_html_(self) -> str:
        """Return the tables that a notebook shows."""
        return "".join([*(plan._repr_html_() for plan in self.plans), html_table(self._total())])


class _Active(threading.local):
    traces: tuple[Trace, ...] = ()
    """Replaced and never changed: without an ``__init__``, a finalizer always finds it."""


_active = _Active()


@public
@contextmanager
def trace() -> Iterator[Trace]:
    """Record the moves that this thread makes inside the block.

    An object of no array library, such as a dataset in a file, may be read once more
    for it: where its memory was shared, a second array of it has the same address.

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


def record_run(plan: Plan, before: Tensor | None, after: Tensor, seconds: float) -> None:
    """Give the traces of this thread *plan*, which has made *after* of *before*, if of a tensor."""
    plan.address = 0 if before is None else before.data_ptr()
    plan.result_address = after.data_ptr()
    plan.seconds = seconds
    for active in _active.traces:
        active.plans.append(plan)
