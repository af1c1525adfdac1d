"""How a tensor would get to a device: the steps, the bytes each copies, and why.

`make_plan` is the one planner: `dlbridge.explain` prints its plan and
`dlbridge.to_device` runs it. It prefers no copy; between two kinds of device
that share no memory it goes through the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dlbridge.core.plugins.lookup import backend_of, supports
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import DType
from dlbridge.core.values.layout import reach
from dlbridge.errors import BackendUnavailable, ExchangeError
from dlbridge.protocol import SupportsHostImport, SupportsHostView

from .regions import bytes_to_host, copies_by_itself

__all__ = ["Plan", "Step", "make_plan"]

_CPU = Device.of(1, 0)


@dataclass(frozen=True)
class Step:
    """One step of a move.

    *kind* is ``share``, ``relabel`` (host memory under another name),
    ``host view`` (a device's memory addressed by the host), ``host import``
    (host memory used by a device), or a copy: ``copy``, ``pack``, ``upload``,
    ``download``, ``peer copy``, ``as library``. *nbytes* is what it copies; a
    reversed or transposed tensor comes to the host with the gaps between its
    elements.
    """

    kind: str
    source: Device
    target: Device
    nbytes: int
    reason: str

    def __str__(self) -> str:
        cost = f"{_bytes(self.nbytes)} copied" if self.nbytes else "no copy"
        return f"{self.kind}: {self.source} -> {self.target}, {cost}: {self.reason}"


@dataclass
class Plan:
    """The steps of one move, in order. ``print(plan)`` explains them."""

    dtype: DType
    shape: tuple[int, ...]
    origin: str
    source: Device
    target: Device
    steps: list[Step] = field(default_factory=list)
    address: int = 0
    """Where the tensor was: `Tensor.data_ptr` at the start; 0 until it ran."""
    result_address: int = 0
    """Where it is: `Tensor.data_ptr` of the result; 0 until it ran."""
    seconds: float = 0.0
    """How long it took; 0 until it ran."""
    may_copy: bool = True
    """Whether it may copy after all where a driver refuses memory in place."""

    @property
    def what(self) -> str:
        """The tensor in words."""
        return f"{self.dtype} {self.shape} from {self.origin}"

    @property
    def nbytes(self) -> int:
        """Bytes that are copied in all."""
        return sum(step.nbytes for step in self.steps)

    @property
    def copies(self) -> int:
        """How many steps copy."""
        return sum(step.nbytes > 0 for step in self.steps)

    def add(self, kind: str, source: Device, target: Device, nbytes: int, reason: str) -> None:
        """Append a step."""
        self.steps.append(Step(kind, source, target, nbytes, reason))

    def __str__(self) -> str:
        copies = "no copy" if not self.copies else f"{_bytes(self.nbytes)} copied"
        head = f"{self.what}: {self.source} -> {self.target}, {copies}"
        lines = [f"  {number}. {step}" for number, step in enumerate(self.steps, 1)]
        return "\n".join([head, *lines])

    def as_dict(self) -> dict[str, Any]:
        """The plan in plain values, for JSON."""
        return {
            "what": self.what,
            "source": str(self.source),
            "target": str(self.target),
            "nbytes": self.nbytes,
            "steps": [
                {
                    "kind": step.kind,
                    "source": str(step.source),
                    "target": str(step.target),
                    "nbytes": step.nbytes,
                    "reason": step.reason,
                }
                for step in self.steps
            ],
        }


def make_plan(tensor: Tensor, target: Device, copy: bool | None) -> Plan:
    """The plan that brings *tensor* to *target*.

    A driver may know a reason against a host import that its backend does not:
    then the move copies after all, and the trace says why.

    ExchangeError where *copy* is False and a step would copy, naming it; or
    where the tensor is on a device that no backend here can use. TypeError for
    a *copy* that is no bool: 0 would be taken for None.
    """
    if copy is not None and not isinstance(copy, bool):
        raise TypeError(f"copy must be True, False or None, not {copy!r}")
    plan = Plan(
        tensor.dtype,
        tensor.shape,
        tensor.origin,
        tensor.device,
        target,
        may_copy=copy is not False,
    )
    if tensor.size == 0:
        plan.add("share", tensor.device, target, 0, "it has no elements")
    elif target is tensor.device:
        _stay(plan, tensor, copy)
    else:
        _move(plan, tensor, copy)
    if copy is False:
        for step in plan.steps:
            if step.nbytes:
                raise ExchangeError(
                    f"copy=False, but {step.kind} {step.source} -> {step.target} would copy "
                    f"{_bytes(step.nbytes)}: {step.reason}; pass copy=None to allow it"
                )
    return plan


def _stay(plan: Plan, tensor: Tensor, copy: bool | None) -> None:
    here = tensor.device
    if copy is True and not here.is_host and not copies_by_itself(tensor, here):
        reason = f"copy=True was asked for, and {here} does not copy these strides by itself"
        plan.add("download", here, _CPU, bytes_to_host(tensor), reason)
        plan.add("upload", _CPU, here, tensor.nbytes, "and back")
    elif copy is True:
        plan.add("copy", here, here, tensor.nbytes, "copy=True was asked for")
    else:
        plan.add("share", here, here, 0, "it is there already: the same memory")


def _move(plan: Plan, tensor: Tensor, copy: bool | None) -> None:
    source, target = tensor.device, plan.target
    if source.is_host and target is _CPU and copy is not True:
        plan.add("relabel", source, target, 0, f"the CPU reads {source.name} memory in place")
        return
    if source.is_host:
        _from_host(plan, tensor, copy)
        return
    _backend_of_source(source)
    if source.name == target.name and copies_by_itself(tensor, target):
        plan.add("peer copy", source, target, tensor.nbytes, f"{source.name} copies by itself")
        return
    refusal = "copy=True was asked for" if copy is True else why_no_host_view(tensor)
    if target.is_host:
        if not refusal and target is _CPU:
            plan.add("host view", source, target, 0, f"the host addresses {source} memory in place")
        else:
            reason = refusal or "another kind of memory"
            plan.add("download", source, target, bytes_to_host(tensor), reason)
        return
    if refusal:
        plan.add("download", source, _CPU, bytes_to_host(tensor), refusal)
    else:
        plan.add("host view", source, _CPU, 0, f"the host addresses {source} memory in place")
    plan.add("upload", _CPU, target, tensor.nbytes, f"{source} and {target} share no memory")


def _from_host(plan: Plan, tensor: Tensor, copy: bool | None) -> None:
    target = plan.target
    refusal = "copy=True was asked for" if copy is True else why_no_host_import(tensor, target)
    if refusal:
        copy_from_host(plan, tensor, refusal)
    else:
        reason = f"{target} uses this host memory in place"
        plan.add("host import", tensor.device, target, 0, reason)


def copy_from_host(plan: Plan, tensor: Tensor, refusal: str) -> None:
    """Add the steps that copy host memory, which cannot be used in place for *refusal*."""
    source, target = tensor.device, plan.target
    if target.is_host:
        plan.add("copy", source, target, tensor.nbytes, f"{target.name} is memory of its own")
        return
    if not tensor.is_contiguous():
        # The refusal comes first: compact memory would be copied as well.
        reason = f"{refusal}, and strides {tensor.strides} are packed before an upload"
        plan.add("pack", source, source, tensor.nbytes, reason)
    plan.add("upload", source, target, tensor.nbytes, refusal)


def why_no_host_import(tensor: Tensor, target: Device) -> str:
    """Why *target* cannot use the host memory of *tensor* in place; empty if it can."""
    plugin = backend_of(target)
    if not supports(plugin, SupportsHostImport):
        return f"{target} cannot use host memory in place"
    start, nbytes = host_span(tensor)
    return plugin.host_import_refusal(target.index, start, nbytes)


def host_span(tensor: Tensor) -> tuple[int, int]:
    """Address and length in bytes of all that *tensor* reaches in host memory."""
    low, high = reach(tensor.shape, tensor.strides)
    size = tensor.dtype.nbytes(1) if not tensor.dtype.is_subbyte else 1
    if tensor.dtype.is_subbyte and not tensor.is_padded:
        return tensor.data_ptr(), tensor.nbytes
    return tensor.data_ptr() + low * size, (high - low) * size


def why_no_host_view(tensor: Tensor) -> str:
    """Why the host cannot address the memory of *tensor* in place; empty if it can."""
    if tensor.device.is_host or not tensor.size:
        return ""
    plugin = _backend_of_source(tensor.device)
    if not supports(plugin, SupportsHostView):
        return f"the host cannot address {tensor.device} memory"
    return plugin.host_view_refusal(tensor.device.index, tensor._memory.data)


def _backend_of_source(device: Device) -> Any:
    try:
        return backend_of(device)
    except BackendUnavailable as exc:
        raise ExchangeError(
            f"the tensor is on {device}, and no backend here can read it: {exc}"
        ) from exc


def _bytes(count: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024 or (unit == "bytes" and count < 10_000):
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024  # type: ignore[assignment]  # a float from here on
    return f"{count:.1f} GiB"
