"""Moving a tensor to a device: the steps of a plan, and how each is run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.structs import FLAG_SUBBYTE_PADDED
from dlbridge.core.plugins.cpu import MIN_ALIGNMENT
from dlbridge.core.plugins.lookup import plugin_of
from dlbridge.core.plugins.streams import current_use
from dlbridge.core.tensor.array_tensor import make_tensor
from dlbridge.core.tensor.memory import Memory, view_memory
from dlbridge.core.tensor.operand import operand_of, operand_of_new
from dlbridge.core.tensor.ordering import access, host_access
from dlbridge.core.tensor.tensor import TRACES
from dlbridge.core.values.devices import Device
from dlbridge.errors import Error, ExchangeError

from .allocate import allocate, allocate_like, allocate_with
from .copies import copy_elements
from .host_and_device import packed_bytes
from .memory_imports import import_from_device
from .plans import plan_device_copy, plan_host_copy, plan_move, why_no_host_view
from .traces import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.core.tensor.operand import Operand
    from dlbridge.core.tensor.tensor import Tensor

    from .steps import Plan
    from .within_host import Progress

    _Place = tuple[Tensor, Operand]
    StepFunction = Callable[[Tensor, Operand, Device, Progress | None, int], _Place]

__all__ = ["aligned", "copy_of", "copy_to_host", "move", "run", "to_compact_host"]

_CPU = Device.of(1, 0)


def move(tensor: Tensor, target: Device, copy: bool | None) -> Tensor:
    """Plan a move of *tensor* to *target*, and run it."""
    operand = operand_of(tensor)
    return run(plan_move(operand, target, copy), tensor, operand)


def aligned(tensor: Tensor, alignment: int, copy: bool | None) -> Tensor:
    """*tensor*, or a copy where a driver has mapped or imported its memory at another address."""
    operand = operand_of(tensor)
    place = operand.byte_offset + (operand.data if operand.device.is_address else 0)
    if not operand.size or not place % alignment:
        return tensor
    if copy is False:
        raise ExchangeError(
            f"copy=False, but {operand.device} has the memory at {place:#x}, which is not a "
            f"multiple of {alignment} bytes; pass copy=None to allow a copy"
        )
    steps = plan_move(operand, operand.device, None, tensor.origin, alignment)
    return run(steps, tensor, operand)


def copy_of(tensor: Tensor) -> Tensor:
    """A compact copy on the same device."""
    return move(tensor, tensor.device, True)


def copy_to_host(tensor: Tensor) -> Tensor:
    """A copy on the CPU."""
    return move(tensor, _CPU, True)


def to_compact_host(tensor: Tensor) -> Tensor:
    """The elements on the CPU, row-major without gaps; a copy only if needed."""
    host = move(tensor, _CPU, None)
    return host if host.is_contiguous() else copy_to_host(host)


def run(plan: Plan, tensor: Tensor, operand: Operand, progress: Progress | None = None) -> Tensor:
    """Run the steps of a *plan* made for *tensor*; the result is on ``plan.target``."""
    start = time.perf_counter()
    plan.address = _address(operand)
    if TRACES:
        plan.origin = tensor.origin
    for step in plan.steps:
        try:
            tensor, operand = _STEPS[step.kind](
                tensor, operand, step.target, progress, plan.alignment
            )
        except Error as exc:
            if step.kind not in ("host import", "memory import") or not plan.may_copy:
                raise
            # Backends look before; a driver may know more (a limit, a read-only mapping).
            plan.steps.clear()
            refused = f"it was refused in place: {exc}"
            if step.kind == "host import":
                plan_host_copy(plan, operand, refused)
            else:
                plan_device_copy(plan, operand, why_no_host_view(operand), refused)
            return run(plan, tensor, operand, progress)
    if operand.device is not plan.target:  # an empty tensor
        tensor = allocate(plan.target, operand.dtype, operand.shape, padded=operand.padded)
        operand = operand_of(tensor)
    plan.result_address = _address(operand)
    plan.seconds = time.perf_counter() - start
    if TRACES:
        record(plan)
    return tensor


def _address(operand: Operand) -> int:
    """`Tensor.data_ptr` of the operand's tensor."""
    if not operand.size:
        return 0
    return operand.data + operand.byte_offset if operand.device.is_address else operand.data


def _share(tensor: Tensor, operand: Operand, _target: Device, *_rest: Any) -> _Place:
    return tensor, operand


def _relabel(tensor: Tensor, operand: Operand, target: Device, *_rest: Any) -> _Place:
    if operand.memory is not None:
        host_access(operand.memory)
    low, _ = operand.span()
    start = operand.data + operand.byte_offset + low
    memory = Memory(target, start, f"{operand.device} memory", tensor)
    return _same_layout(operand, memory, -low)


def _copy(
    _tensor: Tensor, operand: Operand, target: Device, progress: Progress | None, alignment: int
) -> _Place:
    if not operand.size:  # without the backend, which may not be here
        flags = operand.flags & FLAG_SUBBYTE_PADDED
        memory = Memory(target, 0, "dlbridge.empty")
        new = make_tensor(memory, 0, operand.dtype, operand.shape, flags=flags)
        return new, operand_of(new)
    new, there = allocate_like(operand, target, alignment)
    copy_elements(there, operand, progress)
    there.is_new = False
    return new, there


def _upload(
    tensor: Tensor, operand: Operand, target: Device, progress: Progress | None, alignment: int
) -> _Place:
    plugin = plugin_of(target)
    usual = progress is None and alignment <= MIN_ALIGNMENT
    if not usual or operand.nbytes > plugin.content_limit:
        return _copy(tensor, operand, target, progress, alignment)
    content, flags = packed_bytes(operand), operand.flags
    new, memory = allocate_with(plugin, target, content, operand.dtype, operand.shape, flags)
    there = operand_of_new(new, memory, operand)
    there.is_new = False
    return new, there


def _host_view(_tensor: Tensor, operand: Operand, target: Device, *_rest: Any) -> _Place:
    plugin = plugin_of(operand.device)
    viewed: Any = operand.memory
    stream = access(viewed, viewing=True)
    low, nbytes = operand.span()
    start, writable = operand.byte_offset + low, not operand.readonly
    memory = view_memory(plugin, viewed, stream, target, start, nbytes, writable)
    return _same_layout(operand, memory, -low)


def _host_import(tensor: Tensor, operand: Operand, target: Device, *_rest: Any) -> _Place:
    plugin = plugin_of(target)
    low, nbytes = operand.span()
    start = operand.data + operand.byte_offset + low
    origin = f"host memory of {tensor.origin}"
    memory, use = Memory(target, 0, origin, tensor), current_use(target, plugin)
    given = target.index, start, nbytes, operand.readonly, use.handle
    offset = memory.take(use, "import_host", plugin.import_host, *given)
    memory.is_import, memory.host_start = True, start - offset
    return _same_layout(operand, memory, offset - low)


def _memory_import(tensor: Tensor, operand: Operand, target: Device, *_rest: Any) -> _Place:
    memory, offset = import_from_device(tensor, operand, target)
    return _same_layout(operand, memory, offset + operand.byte_offset)


_STEPS: dict[str, StepFunction] = {
    "share": _share,
    "relabel": _relabel,
    "host view": _host_view,
    "host import": _host_import,
    "memory import": _memory_import,
    "copy": _copy,
    "pack": _copy,
    "upload": _upload,
    "download": _copy,
    "peer copy": _copy,
}


def _same_layout(operand: Operand, memory: Memory, byte_offset: int) -> _Place:
    tensor = make_tensor(
        memory,
        byte_offset,
        operand.dtype,
        operand.shape,
        operand.strides,
        readonly=operand.readonly,
        flags=operand.flags,
    )
    return tensor, operand_of(tensor)
