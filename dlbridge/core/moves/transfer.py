"""New memory on a device, and the steps of a plan: how each is run."""

from __future__ import annotations

import time
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.structs import FLAG_IS_COPIED
from dlbridge.core.moves.copies import copy_elements, drain_then_release, packed_bytes
from dlbridge.core.moves.plans import (
    copy_of_plan,
    plan_device_copy,
    plan_host_copy,
    plan_move,
    record,
    why_no_host_view,
)
from dlbridge.core.plugins.cpu import MIN_ALIGNMENT
from dlbridge.core.plugins.lookup import identity_of, plugin_of
from dlbridge.core.plugins.streams import current_use, finish
from dlbridge.core.public import for_guests
from dlbridge.core.tensor.array_tensor import tensor_on
from dlbridge.core.tensor.memory import Memory, access
from dlbridge.core.tensor.operand import operand_of, wait_for_work
from dlbridge.core.traces import TRACES
from dlbridge.core.values.devices import CPU, Device
from dlbridge.core.values.dtypes import DType
from dlbridge.errors import Error
from dlbridge.protocol import ExportedMemory, Span

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.core.moves.plans import Plan
    from dlbridge.core.moves.within_host import Progress
    from dlbridge.core.plugins.registry import Plugin
    from dlbridge.core.tensor.operand import Operand
    from dlbridge.core.tensor.tensor import Tensor

    _Place = tuple[Tensor, Operand]
    StepFunction = Callable[[Tensor, Operand, Device, Progress | None], _Place]


MAX_ALIGNMENT = 1 << 30
"""The largest alignment accepted, in bytes: the largest huge page (1 GiB)."""


def new_memory(
    where: Device,
    nbytes: int,
    *,
    alignment: int = MIN_ALIGNMENT,
    content: memoryview | None = None,
    plugin: Plugin | None = None,
) -> Memory:
    """New memory, not initialised, or with *content*, where the `content_limit` of *plugin* allows.

    That is the backend of the device, if it is known. Memory of 0 bytes needs none.
    """
    memory = Memory(where, 0, "dlbridge.empty")
    if nbytes:
        if plugin is None:
            plugin = plugin_of(where)
        use = current_use(where, plugin)
        arguments: tuple[Any, ...] = where.index, nbytes, alignment, use.handle
        if content is not None:
            arguments = *arguments, content
            use.used = True
        try:
            memory.take(use, "allocate", plugin.allocate, *arguments)
        except BaseException:
            if content is not None:
                drain_then_release(content, where, use.handle)
            raise
    return memory


@for_guests
def new_tensor(
    device: Device, dtype: DType, shape: tuple[int, ...], *, padded: bool = False
) -> Tensor:
    """Return a new compact tensor, whose elements are not initialised.

    As `dlbridge.empty`, for arguments that were checked before.

    Parameters
    ----------
    device : Device
        Where it is.
    dtype : DType
        The type of an element.
    shape : tuple of int
        The extents, in elements.
    padded : bool
        Whether elements below a byte take a byte each.

    Returns
    -------
    Tensor
        On new memory.

    Raises
    ------
    BackendUnavailable
        If no backend here serves *device*.
    DeviceMemoryError
        A MemoryError, if there is no room.

    Examples
    --------
    >>> from dlbridge.extending import new_tensor
    >>> new_tensor(bridge.device("cpu"), bridge.dtype("int4"), (3,), padded=True).nbytes
    3
    """
    memory = new_memory(device, dtype.nbytes(prod(shape), padded=padded))
    return tensor_on(memory, dtype, shape, padded=padded)


def check_alignment(value: Any) -> int:
    """*value* as a power of two, in bytes."""
    try:
        alignment = index(value)
    except TypeError:
        alignment = None
    if isinstance(value, bool) or alignment is None:
        raise TypeError(
            f"alignment {value!r} is not a number of bytes; give a power of two, such as 4096"
        )
    if not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise ValueError(
            f"alignment {alignment} is not a power of two from 1 to {MAX_ALIGNMENT} bytes"
        )
    return alignment


@for_guests
def new_exportable(device: Device, nbytes: int, origin: str, owner: object = None) -> Memory:
    """Return new memory that `export_memory` can describe, not initialised.

    Parameters
    ----------
    device : Device
        For which `export_refusal` has no reason.
    nbytes : int
        More than 0.
    origin : str
        Where the memory comes from, in words: ``repr`` and messages say it.
    owner : object
        What is kept alive as long as the memory.

    Returns
    -------
    Memory
        It is given back with the last tensor on it, here. Other processes keep what they opened.

    Raises
    ------
    DeviceMemoryError
        A MemoryError, if there is no room.

    Examples
    --------
    >>> from dlbridge.extending import export_refusal, new_exportable
    >>> def shared_bytes(device, nbytes):
    ...     refusal = export_refusal(device)
    ...     if refusal:
    ...         raise BufferError(refusal)
    ...     return new_exportable(device, nbytes, "an example")
    """
    memory = Memory(device, 0, origin, owner)
    take(memory, "allocate_exportable", plugin_of(device).allocate_exportable, nbytes)
    return memory


@for_guests
def export_refusal(device: Device, *, importing: bool = False) -> str:
    """Return why a device has no memory that other processes can open, or opens none of theirs.

    Parameters
    ----------
    device : Device
        A backend here serves it.
    importing : bool
        False: whether it can be asked for `new_exportable` and `export_memory`. True: for
        `import_memory`, by a process that finds it by `Device.uuid`.

    Returns
    -------
    str
        The reason, for a message; empty if it can.

    Examples
    --------
    >>> from dlbridge.extending import export_refusal
    >>> export_refusal(bridge.device("cpu"))
    'cpu:0 has no memory of its own for other processes'
    """
    plugin = plugin_of(device)
    if not importing:
        if plugin.memory_export_refusal is None:
            return f"{device} has no memory of its own for other processes"
        return plugin.memory_export_refusal(device.index, 0)
    if plugin.memory_import_refusal is None:
        return f"{device} opens no memory of other processes"
    if identity_of(device).uuid is None:
        return f"{device} says no UUID, by which another process would find it"
    return plugin.memory_import_refusal(device.index)


@for_guests
def export_memory(memory: Memory) -> ExportedMemory:
    """Return what another process, or another driver of the device, opens some memory by.

    Parameters
    ----------
    memory : Memory
        Of `new_exportable`.

    Returns
    -------
    ExportedMemory
        Its file descriptor is closed with its ``owner``: copy the descriptor to keep it.

    Raises
    ------
    DeviceError
        If the driver fails.

    Examples
    --------
    >>> from dlbridge.extending import export_memory
    >>> def descriptor_of(memory):
    ...     import os
    ...
    ...     exported = export_memory(memory)
    ...     return os.dup(exported.fd), exported._replace(fd=-1, owner=None)
    """
    device = memory.device
    plugin = plugin_of(device)
    assert plugin.export_memory is not None  # who calls has asked for the capability
    return plugin.export_memory(device.index, memory.data)


@for_guests
def import_memory(
    device: Device, exported: ExportedMemory, origin: str, owner: object = None
) -> tuple[Memory, int]:
    """Return the memory that an `export_memory` describes, of another process or of this one.

    Parameters
    ----------
    device : Device
        The device of the same `Device.uuid`, for which
        ``export_refusal(device, importing=True)`` has no reason.
    exported : ExportedMemory
        With a file descriptor of this process, which stays the caller's.
    origin : str
        Where the memory comes from, in words: ``repr`` and messages say it.
    owner : object
        What is kept alive as long as the memory.

    Returns
    -------
    tuple of Memory and int
        The memory, and the byte in it where the exported memory begins.

    Raises
    ------
    ExchangeError
        If the driver cannot open it. It is also a BufferError.

    Examples
    --------
    >>> from dlbridge.extending import import_memory, tensor_on
    >>> def received(device, exported):
    ...     memory, start = import_memory(device, exported, "a message")
    ...     return tensor_on(memory, bridge.dtype("uint8"), (16,), byte_offset=start)
    """
    memory = Memory(device, 0, origin, owner)
    memory.is_import = True
    return memory, take(memory, "import_memory", plugin_of(device).import_memory, exported)


def take(memory: Memory, member: str, function: Callable[..., Any] | None, *what: Any) -> int:
    """Take what *function* gives, the *member* of the backend, for the current stream."""
    device = memory.device
    use = current_use(device)
    return memory.take(use, member, function, device.index, *what, use.handle)


def move(tensor: Tensor, target: Device, copy: bool | None) -> Tensor:
    """Plan a move of *tensor* to *target*, and run it."""
    operand = operand_of(tensor)
    return run(plan_move(operand, target, copy), tensor, operand)


def copy_of(tensor: Tensor) -> Tensor:
    """A compact copy on the same device; of no elements it is no move, and in no trace."""
    if not tensor.size:
        return _copy(tensor, operand_of(tensor), tensor.device, None)[0]
    return move(tensor, tensor.device, True)


def part_of_a_step(tensor: Tensor, target: Device, copy: bool | None) -> Tensor:
    """As `move`, for a step of a plan that a trace has already."""
    operand = operand_of(tensor)
    return run_steps(plan_move(operand, target, copy), tensor, operand)[0]


def copy_to_host(tensor: Tensor) -> Tensor:
    """A copy on the CPU."""
    return move(tensor, CPU, True)


def to_compact_host(tensor: Tensor) -> Tensor:
    """The elements on the CPU, row-major without gaps; a copy only if needed."""
    host = tensor if tensor.device is CPU else move(tensor, CPU, None)
    return host if host.is_contiguous() else copy_to_host(host)


def run(plan: Plan, tensor: Tensor, operand: Operand) -> Tensor:
    """Run the steps of a *plan* made for *tensor*; the result is on ``plan.target``.

    A trace gets a plan of the steps that ran.
    """
    if not TRACES:
        return run_steps(plan, tensor, operand)[0]
    start = time.perf_counter()
    moved, there, ran = run_steps(plan, tensor, operand)
    done = copy_of_plan(ran, tensor.origin)
    done.address, done.result_address = start_of(operand), start_of(there)
    done.seconds = time.perf_counter() - start
    record(done)
    return moved


def run_steps(
    plan: Plan,
    tensor: Tensor,
    operand: Operand,
    progress: Progress | None = None,
    *,
    may_copy: bool = True,
) -> tuple[Tensor, Operand, Plan]:
    """The tensor on ``plan.target``, its operand, and the plan of the steps that ran.

    That is *plan*, which is never changed, or another one where a driver has refused to use
    memory in place; the error passes where *may_copy* or the plan forbids the copy. Steps of a
    kind that is not in `STEPS` come before or after this function; the other plan has none.
    """
    for step in plan.steps:
        if step.kind not in STEPS:
            continue
        try:
            tensor, operand = STEPS[step.kind](tensor, operand, step.target, progress)
        except Error as exc:
            if step.kind not in ("host import", "memory import") or not (
                plan.may_copy and may_copy
            ):
                raise
            # Backends look before; a driver may know more (a limit, a read-only mapping).
            refused = f"it was refused in place: {exc}"
            return run_steps(
                _plan_copy(plan, step.kind, operand, refused), tensor, operand, progress
            )
    if operand.device is not plan.target:  # an empty tensor
        tensor = new_tensor(plan.target, operand.dtype, operand.shape, padded=operand.padded)
        operand = operand_of(tensor)
    return tensor, operand, plan


def _plan_copy(plan: Plan, kind: str, operand: Operand, refused: str) -> Plan:
    """The plan in place of *plan*, whose first step, of that *kind*, a driver has refused."""
    other = copy_of_plan(plan, plan.origin)
    other.steps.clear()
    if kind == "host import":
        plan_host_copy(other, operand, refused)
    else:
        plan_device_copy(other, operand, why_no_host_view(operand), refused)
    return other


def start_of(operand: Operand) -> int:
    """`Tensor.data_ptr` of the operand's tensor."""
    if not operand.size:
        return 0
    return operand.data + operand.byte_offset if operand.device.is_address else operand.data


def _share(tensor: Tensor, operand: Operand, _target: Device, *_rest: Any) -> _Place:
    return tensor, operand


def _relabel(tensor: Tensor, operand: Operand, target: Device, *_rest: Any) -> _Place:
    wait_for_work(operand)
    low, _ = operand.span()
    start = operand.data + operand.byte_offset + low
    memory = Memory(target, start, f"{operand.device} memory", tensor)
    return _same_layout(operand, memory, -low)


def _copy(_tensor: Tensor, operand: Operand, target: Device, progress: Progress | None) -> _Place:
    """A copy of *operand* in new memory of *target*."""
    memory = new_memory(target, operand.nbytes)
    new = tensor_on(memory, operand.dtype, operand.shape, padded=operand.padded)
    there = operand_of(new)
    if memory.last_use is not None:  # work on the stream that it was allocated for needs no order
        there.stream, there.is_new = memory.last_use.handle, True
        memory.last_use.used = True
    copy_elements(there, operand, progress)
    there.is_new = False
    return new, there


def _upload(tensor: Tensor, operand: Operand, target: Device, progress: Progress | None) -> _Place:
    plugin = plugin_of(target)
    if progress is not None or operand.nbytes > plugin.content_limit:
        return _copy(tensor, operand, target, progress)
    content = packed_bytes(operand)
    memory = new_memory(target, operand.nbytes, content=content, plugin=plugin)
    new = tensor_on(memory, operand.dtype, operand.shape, padded=operand.padded)
    return new, operand_of(new)


def _host_view(_tensor: Tensor, operand: Operand, target: Device, *_rest: Any) -> _Place:
    plugin = plugin_of(operand.device)
    viewed: Any = operand.memory
    stream = access(viewed, viewing=True)
    low, nbytes = operand.span()
    start, writable = operand.byte_offset + low, not operand.readonly
    memory = Memory(target, 0, f"host view of {operand.device}", viewed)
    span = Span(operand.device.index, operand.data, start, nbytes)
    memory.take(None, "host_view", plugin.host_view, span, writable, stream)
    return _same_layout(operand, memory, -low)


def _host_import(tensor: Tensor, operand: Operand, target: Device, *_rest: Any) -> _Place:
    low, nbytes = operand.span()
    start = operand.data + operand.byte_offset + low
    origin = f"host memory of {tensor.origin}"
    memory = Memory(target, 0, origin, tensor)
    what = start, nbytes, operand.readonly
    offset = take(memory, "import_host", plugin_of(target).import_host, *what)
    memory.is_import, memory.host_start = True, start - offset
    return _same_layout(operand, memory, offset - low)


def _memory_import(tensor: Tensor, operand: Operand, target: Device, *_rest: Any) -> _Place:
    """The memory of another backend's device in place; the work on it is done on return."""
    source, viewed = operand.device, operand.memory
    assert viewed is not None  # only the CPU has such operands
    finish(plugin_of(source), source, access(viewed))
    origin = f"{source} memory of {tensor.origin}"
    memory, offset = import_memory(target, export_memory(viewed), origin, tensor)
    return _same_layout(operand, memory, offset + operand.byte_offset)


STEPS: dict[str, StepFunction] = {
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
    tensor = tensor_on(
        memory,
        operand.dtype,
        operand.shape,
        operand.strides,
        byte_offset=byte_offset,
        readonly=operand.readonly,
        padded=operand.padded,
        copied=operand.flags & FLAG_IS_COPIED != 0,
    )
    return tensor, operand_of(tensor)
