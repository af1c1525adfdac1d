"""Plans: what a move does, in words; and those of what ran, for traces and the log.

What is done is chosen in ``transfer``, without words. They are for `dlbridge.explain`, traces and
errors only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge.core.public import for_guests, public
from dlbridge.core.traces import INSIDE, is_recording, traces_of_this_thread
from dlbridge.core.values.text import bytes_text, html_table

if TYPE_CHECKING:
    import numpy as np

    from dlbridge.core.tensor.tensor import Tensor
    from dlbridge.core.values.devices import Device
    from dlbridge.core.values.dtypes import DType

    Array = np.ndarray[Any, Any]


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
        from an object that has no memory to share, such as a list), ``fill``,
        ``convert`` (to another dtype), ``write`` (into a file), ``pickle``.
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
    where : str
        The file, the line and the function of the program that it ran for: of the first frame
        outside dlbridge. Empty until it ran.

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
        self.where = ""

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

    @property
    def reasons(self) -> str:
        """What copies and why, in one line."""
        return "; ".join(f"{step.kind}: {step.reason}" for step in self.steps if step.nbytes)

    @property
    def took(self) -> str:
        """How long it took, and where in the program, in words."""
        return f"took {self.seconds * 1e6:.0f} us, {self.where}"

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


# Records of what ran, for ``with dlbridge.trace() as t:`` and the log ---------------------


def record_run(plan: Plan, before: Tensor | None, after: Tensor, seconds: float) -> None:
    """Give the traces of this thread, and the log, *plan*, which has made *after* of *before*."""
    plan.address, plan.result_address = (0 if t is None else t.data_ptr() for t in (before, after))
    _record(plan, seconds)


def _record(plan: Plan, seconds: float) -> None:
    if INSIDE.copy:
        return
    plan.seconds = seconds
    frame = sys._getframe(1)
    ours = "dlbridge", "contextlib"  # no places of the user's program
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in ours:
        frame = frame.f_back
    plan.where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
    for active in traces_of_this_thread():
        active.plans.append(plan)
    if plan.nbytes and "logging" in sys.modules:
        import logging

        logging.getLogger("dlbridge").debug("%s: %s; %s", plan._head(), plan.reasons, plan.took)


@for_guests
def recorded(
    reason: str, tensor: Tensor, target: Device | None = None, kind: str = "", result: Any = None
) -> AbstractContextManager[object]:
    """Return a block whose copy `dlbridge.trace` and the log shall have, if it ends well.

    It is for what copies and is no move. The moves and copies inside the block are parts of it,
    and not recorded by themselves. Without a trace and without the log it does nothing.
    A description's ``expose`` needs none: the trace shows what it copies.

    Parameters
    ----------
    reason : str
        Why it is copied.
    tensor : Tensor
        What is copied; of no bytes, nothing is recorded.
    target : Device, optional
        Where to; the device of *tensor* if None.
    kind : str
        As in `dlbridge.Step`. If it is empty, a copy between the two devices.
    result : array, optional
        What the elements become, if its ``dtype`` and ``nbytes`` are others: *reason* ends with
        the dtype.

    Returns
    -------
    context manager
        For one ``with``, at once.

    Examples
    --------
    >>> from dlbridge.extending import recorded
    >>> t = bridge.zeros(3)
    >>> with bridge.trace() as trace:
    ...     with recorded("an example", t):
    ...         twin = t.numpy().copy()
    >>> trace.nbytes
    12
    """
    if not is_recording() or not tensor.nbytes:
        return _NOTHING
    source = tensor.device
    target = target or source
    if not kind and source is target:
        kind = "copy"
    elif not kind:
        kind = "upload" if source.is_host else "download" if target.is_host else "peer copy"
    plan = Plan(tensor.dtype, tensor.shape, tensor.origin, source, target)
    nbytes = tensor.nbytes
    if result is not None:
        nbytes, reason = result.nbytes, f"{reason} {result.dtype}"
    plan.add(kind, source, target, nbytes, reason)
    plan.address = tensor.data_ptr()
    return _running(plan)


@for_guests
def running(plan: Plan) -> AbstractContextManager[object]:
    """Return a block that does what a plan says: traces and the log get it, if it ends well.

    The moves and copies inside the block are parts of it, and not recorded by themselves.

    Parameters
    ----------
    plan : Plan
        Its steps, in order; `recorded` makes one for a copy.

    Returns
    -------
    context manager
        For one ``with``, at once.

    Examples
    --------
    >>> from dlbridge.extending import CPU, running
    >>> plan = bridge.Plan(bridge.dtype("uint8"), (3,), "an example", CPU, CPU)
    >>> plan.add("read", CPU, CPU, 3, "it was asked for")
    >>> with bridge.trace() as trace:
    ...     with running(plan):
    ...         t = bridge.asarray([1, 2, 3])
    >>> trace.nbytes
    3
    """
    return _running(plan) if is_recording() else _NOTHING


_NOTHING = nullcontext()


def array_copy(tensor: Tensor, array: Array) -> Array:
    """A copy of *array*, which shows *tensor*."""
    if not is_recording():
        return array.copy()
    with recorded("numpy(copy=True) was asked for", tensor):
        return array.copy()


def as_one() -> AbstractContextManager[object]:
    """A block whose copies are parts of what is recorded behind it, if anything is."""
    return _as_one() if is_recording() else _NOTHING


@contextmanager
def _as_one() -> Iterator[None]:
    INSIDE.copy = True
    try:
        yield
    finally:
        INSIDE.copy = False


@contextmanager
def _running(plan: Plan) -> Iterator[None]:
    start = time.perf_counter()
    with _as_one():
        yield
    _record(plan, time.perf_counter() - start)
