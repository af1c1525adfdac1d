"""The planner of moves to a device: which steps, with or without a copy, and why.

`plan_move` is the only planner: `dlbridge.explain` prints its plan and
`dlbridge.to_device` runs it. It avoids copies; between two kinds of device
that do not share memory it goes through the host. ``transfer`` runs the steps.
A trace records the plans that ran.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge.core.dlpack.exports import check_copy
from dlbridge.core.moves.copies import bytes_to_host, can_copy_natively, is_faster_on_device
from dlbridge.core.plugins.lookup import identity_of, plugin_of
from dlbridge.core.public import for_guests, public
from dlbridge.core.tensor.operand import require_compact
from dlbridge.core.traces import TRACES
from dlbridge.core.values.devices import CPU, Device
from dlbridge.core.values.text import bytes_text, html_table
from dlbridge.errors import BackendUnavailable, ExchangeError

if TYPE_CHECKING:
    from dlbridge.core.plugins.registry import Plugin
    from dlbridge.core.tensor.operand import Operand
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


def copy_of_plan(plan: Plan, origin: str) -> Plan:
    """A copy of *plan* with another *origin*, whose list of steps is a copy, too."""
    what = plan.dtype, plan.shape, origin, plan.source, plan.target
    copied = Plan(*what, may_copy=plan.may_copy)
    copied.steps += plan.steps
    return copied


def plan_move(operand: Operand, target: Device, copy: bool | None) -> Plan:
    """The plan that brings a tensor to *target*; whoever shows it adds the origin of the tensor.

    A driver may refuse a host import that its backend has allowed: then the
    move copies after all, and the trace says why.

    ExchangeError where *copy* is False and a step would copy, naming it; or
    where the tensor is on a device that no backend here can use.
    """
    if copy is not None:
        check_copy(copy)
    what = operand.dtype, operand.shape, "", operand.device, target
    plan = Plan(*what, may_copy=copy is not False)
    _plan_steps(plan, operand, "copy=True was asked for" if copy is True else "")
    if not operand.contiguous and operand.dtype.is_subbyte and not operand.padded and plan.copies:
        require_compact(operand)  # before a driver is called
    if not plan.may_copy:
        for step in plan.steps:
            if step.nbytes:
                raise ExchangeError(
                    f"copy=False, but {step.kind} {step.source} -> {step.target} would copy "
                    f"{bytes_text(step.nbytes)}: {step.reason}; pass copy=None to allow it"
                )
    return plan


def _plan_steps(plan: Plan, operand: Operand, forced: str) -> None:
    """Add the steps to *plan*; *forced* is why the memory is not shared in any case."""
    source, target = plan.source, plan.target
    if operand.size == 0 and forced and target is source:
        # Nothing is copied, but the copy is a new tensor: it is writable.
        plan.add("copy", source, target, 0, f"{forced}, and there are no elements to copy")
    elif operand.size == 0:
        plan.add("share", source, target, 0, "it has no elements")
    elif target is source:
        _plan_stay(plan, operand, forced)
    elif source.is_host and target is CPU and not forced:
        plan.add("relabel", source, target, 0, f"the CPU reads {source.name} memory in place")
    elif source.is_host:
        _plan_from_host(plan, operand, forced)
    else:
        _plan_from_device(plan, operand, forced)


def plan_by_library(operand: Operand, target: Device, copy: bool | None) -> Plan:
    """The plan for a tensor of a device that only its own library can read."""
    here, nbytes = operand.device, 0 if copy is False else operand.nbytes
    plan = Plan(operand.dtype, operand.shape, "", here, target, may_copy=copy is not False)
    reason = f"no backend here serves {here}; the library of the array is asked"
    plan.add("by library", here, target, nbytes, reason)
    return plan


def _plan_stay(plan: Plan, operand: Operand, forced: str) -> None:
    here = operand.device
    if not forced:
        plan.add("share", here, here, 0, "it is there already: the same memory")
    elif refusal := "" if here.is_host else _why_not_on_device(operand):
        reason = f"{forced}, and {refusal}"
        plan.add("download", here, CPU, bytes_to_host(operand), reason)
        plan.add("upload", CPU, here, operand.nbytes, "and back")
    else:
        plan.add("copy", here, here, operand.nbytes, forced)


def _why_not_on_device(operand: Operand) -> str:
    """Why a copy on the device of *operand* goes through the host; empty if it does not."""
    here = operand.device
    if not can_copy_natively(operand, here):
        return f"{here} does not copy these strides by itself"
    if not is_faster_on_device(operand):
        return f"{here} copies these strides in so many calls that the host is faster"
    return ""


def _plan_from_device(plan: Plan, operand: Operand, forced: str) -> None:
    source, target = operand.device, plan.target
    plugin = _plugin_of_source(source)
    if source.name == target.name and can_copy_natively(operand, target):
        plan.add("peer copy", source, target, operand.nbytes, f"{source.name} copies by itself")
        return
    refusal = forced or why_no_host_view(operand, plugin)
    if target.is_host:
        if not refusal and target is CPU:
            plan.add("host view", source, target, 0, f"the host addresses {source} memory in place")
        else:
            reason = refusal or "another kind of memory"
            plan.add("download", source, target, bytes_to_host(operand), reason)
        return
    apart = source.name != target.name and not forced
    why = why_no_memory_import(operand, target) if apart else None
    if why == "":
        reason = f"{target} is the same device, and uses this memory in place"
        plan.add("memory import", source, target, 0, reason)
    else:
        plan_device_copy(plan, operand, refusal, why or "")


def plan_device_copy(plan: Plan, operand: Operand, refusal: str, why: str) -> None:
    """Add the steps that copy between two kinds of device, through the host.

    *refusal* is why the host cannot address the memory, if it cannot, and *why* is why
    the other device cannot.
    """
    source, target = operand.device, plan.target
    if refusal:
        plan.add("download", source, CPU, bytes_to_host(operand), refusal)
    else:
        plan.add("host view", source, CPU, 0, f"the host addresses {source} memory in place")
    reason = f"{source} and {target} share no memory" + (f": {why}" if why else "")
    plan.add("upload", CPU, target, operand.nbytes, reason)


def _plan_from_host(plan: Plan, operand: Operand, forced: str) -> None:
    target = plan.target
    low, nbytes = operand.span()
    start = operand.data + operand.byte_offset + low
    refusal = forced or host_import_refusal(target, start, nbytes, asked=not plan.may_copy)
    if refusal:
        plan_host_copy(plan, operand, refusal)
    else:
        reason = f"{target} uses this host memory in place"
        plan.add("host import", operand.device, target, 0, reason)


def plan_host_copy(plan: Plan, operand: Operand, refusal: str) -> None:
    """Add the steps that copy host memory; *refusal* is why it cannot be used in place."""
    source, target = operand.device, plan.target
    if target.is_host:
        reason = f"{target.name} is memory of its own: {refusal}"
        plan.add("copy", source, target, operand.nbytes, reason)
        return
    if not operand.contiguous:
        # The refusal comes first: compact memory would be copied as well.
        reason = f"{refusal}, and strides {operand.strides} are packed before an upload"
        plan.add("pack", source, source, operand.nbytes, reason)
    plan.add("upload", source, target, operand.nbytes, refusal)


@for_guests
def host_import_refusal(device: Device, address: int, nbytes: int, *, asked: bool = True) -> str:
    """Return why a device does not use some memory of the host in place.

    Parameters
    ----------
    device : Device
        A backend here serves it.
    address, nbytes : int
        The memory.
    asked : bool
        Whether the user wants this memory, so that a drawback of the device does not count.

    Returns
    -------
    str
        The reason, for a message. Empty if it does: then ``to_device(t, device, copy=False)``
        is a tensor in place.

    Examples
    --------
    >>> from dlbridge.extending import host_import_refusal
    >>> t = bridge.zeros(3)
    >>> host_import_refusal(bridge.device("ext_dev:0"), t.data_ptr(), t.nbytes)
    'the device cannot reach host memory (set DLBRIDGE_FAKE_SHARED=1)'
    """
    plugin = plugin_of(device)
    if plugin.host_import_refusal is None:
        return f"{device} cannot use host memory in place"
    return plugin.host_import_refusal(device.index, address, nbytes, asked)


def why_no_host_view(operand: Operand, plugin: Plugin | None = None) -> str:
    """Why the host cannot address the memory in place; empty if it can.

    *plugin* is the backend of its device, if it is known.
    """
    device = operand.device
    if device.is_host or not operand.size:
        return ""
    if plugin is None:
        plugin = _plugin_of_source(device)
    if plugin.host_view_refusal is None:
        return f"the host cannot address {device} memory"
    return plugin.host_view_refusal(device.index, operand.data)


def _plugin_of_source(device: Device) -> Plugin:
    try:
        return plugin_of(device)
    except BackendUnavailable as exc:
        raise ExchangeError(
            f"the tensor is on {device}, and no backend here can read it: {exc}"
        ) from exc


def why_no_memory_import(operand: Operand, target: Device) -> str | None:
    """Why *target* cannot use the memory of another backend; empty if it can.

    None where one of the two backends does not do such things at all.
    """
    source = operand.device
    exporter, importer = plugin_of(source), plugin_of(target)
    if exporter.memory_export_refusal is None or importer.memory_import_refusal is None:
        return None
    here, there = identity_of(source).uuid, identity_of(target).uuid
    if here is None or here != there:
        return f"their UUIDs are not the same ({here} and {there})"
    refusal = exporter.memory_export_refusal(source.index, operand.data)
    return refusal or importer.memory_import_refusal(target.index)


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


def record(plan: Plan) -> None:
    """Add *plan*, which has just run, to the traces of this thread."""
    for active in _active.traces:
        active.plans.append(plan)
