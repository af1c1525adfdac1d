"""Moves of tensors: which steps bring one to a device, how each is run, and new memory there.

`choose` is the only planner. It avoids copies; between two kinds of device that do not share memory
it goes through the host. `run` runs what it has chosen, and `described` says it in words, for
`dlbridge.explain`, traces and errors: a choice has no texts but those that backends have given.
"""

from __future__ import annotations

import time
from functools import cache
from math import prod
from sys import modules
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.exports import check_copy
from dlbridge.core.dlpack.structs import FLAG_IS_COPIED, FLAG_SUBBYTE_PADDED
from dlbridge.core.moves.copies import (
    bytes_to_host,
    can_copy_natively,
    copy_bytes,
    copy_elements,
    is_faster_on_device,
    packed_bytes,
    span_of,
)
from dlbridge.core.moves.plans import Plan, record_run, recorded
from dlbridge.core.plugins.lookup import identity_of
from dlbridge.core.plugins.registry import plugin_of
from dlbridge.core.plugins.streams import current_use, finish
from dlbridge.core.public import for_guests
from dlbridge.core.tensor.array_tensor import new_on_device, tensor_on
from dlbridge.core.tensor.memory import Memory, access, new_memory
from dlbridge.core.tensor.operand import operand_of, require_compact, wait_for_work
from dlbridge.core.traces import TRACES, is_recording
from dlbridge.core.values.devices import CPU, Device
from dlbridge.core.values.dtypes import DType
from dlbridge.core.values.text import bytes_text
from dlbridge.errors import BackendUnavailable, Error, ExchangeError
from dlbridge.protocol import ExportedMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.core.moves.within_host import Progress
    from dlbridge.core.tensor.operand import Operand
    from dlbridge.core.tensor.tensor import Tensor

    StepFunction = Callable[[Tensor, Operand, Device, Progress | None], Tensor]


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
    assert function is not None  # the plan has asked for the capability
    return memory.take(use, member, function(device.index, *what, use.handle))


# Moves ------------------------------------------------------------------------------


def move(tensor: Tensor, target: Device, copy: bool | None) -> Tensor:
    """Bring *tensor* to *target*."""
    operand = operand_of(tensor)
    choice = choose(operand, target, copy)
    if not TRACES and ("logging" not in modules or not is_recording()):
        return run(choice, tensor, operand, target, copy)[0]
    start = time.perf_counter()
    moved, ran = run(choice, tensor, operand, target, copy)
    seconds = time.perf_counter() - start
    record_run(described(ran, operand, target, copy, tensor.origin), tensor, moved, seconds)
    return moved


def part_of_a_step(tensor: Tensor, target: Device, copy: bool | None) -> Tensor:
    """As `move`, for a step of a move that a trace has already."""
    operand = operand_of(tensor)
    return run(choose(operand, target, copy), tensor, operand, target, copy)[0]


def copy_of(tensor: Tensor, why: str = "copy=True was asked for") -> Tensor:
    """A compact copy on the same device; of no elements it is in no trace."""
    with recorded(why, tensor):
        return part_of_a_step(tensor, tensor.device, True)


def run(
    choice: Choice,
    tensor: Tensor,
    operand: Operand,
    target: Device,
    copy: bool | None,
    progress: Progress | None = None,
) -> tuple[Tensor, Choice]:
    """The tensor on *target*, and the choice that ran.

    That is *choice*, or another one where a driver has refused to use memory in place.
    """
    steps = choice[0]
    for step in steps[:-1]:  # what is packed first is not counted
        tensor = step.run(tensor, operand, step.to or target, None)
        operand = operand_of(tensor)
    last = steps[-1]
    try:
        return last.run(tensor, operand, last.to or target, progress), choice
    except Error as exc:
        if not last.is_import or copy is False:
            raise
        # Backends look before; a driver may know more (a limit, a read-only mapping).
        other = choose(operand, target, copy, f"it was refused in place: {exc}")
        return run(other, tensor, operand, target, copy, progress)


def copies(choice: Choice) -> bool:
    """Whether a step of *choice* copies."""
    return any(step.cost for step in choice[0])


def cost_of(choice: Choice, operand: Operand) -> int:
    """The bytes that the steps of *choice* copy."""
    return sum(step.cost(operand) for step in choice[0] if step.cost)


def described(
    choice: Choice, operand: Operand, target: Device, copy: bool | None, origin: str
) -> Plan:
    """The plan that says what *choice* is, in words; *origin* is that of the tensor."""
    steps, refusal, why = choice
    source = operand.device
    plan = Plan(operand.dtype, operand.shape, origin, source, target, may_copy=copy is not False)
    words = {"source": source, "target": target, "refusal": refusal, "why": why}
    here = source
    for step in steps:
        there = source if step is PACK else step.to or target
        nbytes = step.cost(operand) if step.cost else 0
        reason = step.reason.format(strides=operand.strides, **words)
        plan.add(step.kind, here, there, nbytes, reason)
        here = there
    return plan


# Which steps ------------------------------------------------------------------------


def choose(operand: Operand, target: Device, copy: bool | None, refused: str = "") -> Choice:
    """The steps that bring a tensor to *target*; *refused* is why a driver did not do it in place.

    ExchangeError where *copy* is False and a step would copy, naming it; or
    where the tensor is on a device that no backend here can use.
    """
    if copy is not None and copy is not True:
        check_copy(copy)
    source, forced = operand.device, "copy=True was asked for" if copy else ""
    choice: Choice
    if not operand.nbytes:
        # Nothing is copied, but the copy is a new tensor: it is writable.
        choice = COPY_NOTHING if forced and target is source else NO_ELEMENTS, forced, ""
    elif target is source:
        choice = _choose_to_stay(operand, forced)
    elif not source.is_host:
        choice = _choose_from_device(operand, target, forced, refused)
    elif target is CPU and not forced:
        choice = RELABEL, "", ""
    else:
        low, nbytes = (0, operand.nbytes) if operand.contiguous else operand.span()
        start, asked = operand.data + operand.byte_offset + low, copy is False
        refusal = forced or refused or host_import_refusal(target, start, nbytes, asked=asked)
        if not refusal:
            choice = HOST_IMPORT, "", ""
        else:
            upload = UPLOAD if operand.contiguous else PACK_UPLOAD
            choice = COPY_TO_OWN if target.is_host else upload, refusal, ""
    if (copy is False or not operand.contiguous) and copies(choice):
        if operand.dtype.is_subbyte and not operand.padded:
            require_compact(operand)  # before a driver is called
        if copy is False:
            raise _copy_is_forbidden(described(choice, operand, target, copy, ""))
    return choice


def _copy_is_forbidden(plan: Plan) -> ExchangeError:
    step = next(step for step in plan.steps if step.nbytes)
    return ExchangeError(
        f"copy=False, but {step.kind} {step.source} -> {step.target} would copy "
        f"{bytes_text(step.nbytes)}: {step.reason}; pass copy=None to allow it"
    )


def _choose_to_stay(operand: Operand, forced: str) -> Choice:
    if not forced:
        return SHARE, "", ""
    refusal = "" if operand.device.is_host else _why_not_on_device(operand)
    return (THERE_AND_BACK, forced, refusal) if refusal else (COPY, forced, "")


def _why_not_on_device(operand: Operand) -> str:
    """Why a copy on the device of *operand* goes through the host; empty if it does not."""
    here = operand.device
    if not can_copy_natively(operand, here):
        return f"{here} does not copy these strides by itself"
    if not is_faster_on_device(operand):
        return f"{here} copies these strides in so many calls that the host is faster"
    return ""


def _choose_from_device(operand: Operand, target: Device, forced: str, refused: str) -> Choice:
    source = operand.device
    if source.name == target.name and can_copy_natively(operand, target):
        return PEER_COPY, "", ""
    refusal = why_no_host_view(operand, forced)
    if target.is_host:
        if not refusal and target is CPU:
            return HOST_VIEW, "", ""
        return DOWNLOAD, refusal or "another kind of memory", ""
    apart = source.name != target.name and not forced
    why = refused or (why_no_memory_import(operand, target) if apart else None)
    if why == "":
        return MEMORY_IMPORT, "", ""
    return (DOWNLOAD_UPLOAD if refusal else VIEW_UPLOAD), refusal, f": {why}" if why else ""


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
        return _imports_nothing(device)
    try:  # as `plugin.host_import_refusal`, without a call: 185 ns
        refusal: str = plugin.backend.host_import_refusal(device.index, address, nbytes, asked)
    except Exception as exc:
        plugin.fail(exc, "host_import_refusal")
    return refusal


@cache
def _imports_nothing(target: Device) -> str:
    return f"{target} cannot use host memory in place"


def why_no_host_view(operand: Operand, forced: str = "") -> str:
    """Why the host does not address the memory in place; empty if it does.

    *forced* is why it is not to, in any case. ExchangeError without a backend for the device.
    """
    device = operand.device
    if device.is_host or not operand.nbytes:
        return ""
    try:
        refusal = plugin_of(device).host_view_refusal
    except BackendUnavailable as exc:
        raise ExchangeError(
            f"the tensor is on {device}, and no backend here can read it: {exc}"
        ) from exc
    if forced:
        return forced
    return _shows_nothing(device) if refusal is None else refusal(device.index, operand.data)


@cache
def _shows_nothing(device: Device) -> str:
    return f"the host cannot address {device} memory"


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


# How each step is run -----------------------------------------------------------------


def _share(tensor: Tensor, operand: Operand, target: Device, *_rest: Any) -> Tensor:
    if operand.device is target:
        return tensor
    # An empty tensor has no memory that could be shared, or copied.
    return new_tensor(target, operand.dtype, operand.shape, padded=operand.padded)


def _relabel(tensor: Tensor, operand: Operand, target: Device, *_rest: Any) -> Tensor:
    wait_for_work(operand)
    low, _ = operand.span()
    start = operand.data + operand.byte_offset + low
    memory = Memory(target, start, f"{operand.device} memory", tensor)
    return _same_layout(operand, memory, -low)


def _copy(_tensor: Tensor, operand: Operand, target: Device, progress: Progress | None) -> Tensor:
    """A copy of *operand* in new memory of *target*."""
    memory = new_memory(target, operand.nbytes)
    padded = operand.flags & FLAG_SUBBYTE_PADDED != 0  # its property costs a call
    new = tensor_on(memory, operand.dtype, operand.shape, padded=padded)
    there = operand_of(new)
    if memory.last_use is not None:  # work on the stream that it was allocated for needs no order
        there.stream, there.is_new = memory.last_use.handle, True
        memory.last_use.used = True
    copy_elements(there, operand, progress)
    return new


def _pack(tensor: Tensor, operand: Operand, _target: Device, progress: Progress | None) -> Tensor:
    return _copy(tensor, operand, operand.device, progress)


def _upload(_tensor: Tensor, operand: Operand, target: Device, progress: Progress | None) -> Tensor:
    """A copy of *operand*, on the host, in new memory of a device."""
    content, plugin = packed_bytes(operand), plugin_of(target)
    at_once = content if progress is None and operand.nbytes <= plugin.content_limit else None
    memory = new_memory(target, operand.nbytes, content=at_once, plugin=plugin)
    if at_once is None:
        use: Any = memory.last_use  # the stream that it was allocated for
        use.used = True
        copy_bytes(plugin, plugin.copy_from_host, memory, 0, content, use.handle, progress)
    return new_on_device(memory, operand.dtype, operand.shape, operand.flags & FLAG_SUBBYTE_PADDED)


def _host_view(_tensor: Tensor, operand: Operand, target: Device, *_rest: Any) -> Tensor:
    plugin = plugin_of(operand.device)
    viewed: Any = operand.memory
    stream = access(viewed, plugin, viewing=True)
    low, nbytes = (0, operand.nbytes) if operand.contiguous else operand.span()
    start, writable = operand.byte_offset + low, not operand.readonly
    memory = Memory(target, 0, f"host view of {operand.device}", viewed)
    span = span_of((operand.device.index, operand.data, start, nbytes))
    assert plugin.host_view is not None  # the plan has asked for the capability
    memory.take(None, "host_view", plugin.host_view(span, writable, stream))
    return _same_layout(operand, memory, -low)


def _host_import(tensor: Tensor, operand: Operand, target: Device, *_rest: Any) -> Tensor:
    low, nbytes = operand.span()
    start = operand.data + operand.byte_offset + low
    memory = Memory(target, 0, f"host memory of {tensor.origin}", tensor)
    what = start, nbytes, operand.readonly
    offset = take(memory, "import_host", plugin_of(target).import_host, *what)
    memory.is_import, memory.host_start = True, start - offset
    return _same_layout(operand, memory, offset - low)


def _memory_import(tensor: Tensor, operand: Operand, target: Device, *_rest: Any) -> Tensor:
    """The memory of another backend's device in place; the work on it is done on return."""
    source, viewed = operand.device, operand.memory
    assert viewed is not None  # only the CPU has such operands
    finish(plugin_of(source), source, access(viewed))
    origin = f"{source} memory of {tensor.origin}"
    memory, offset = import_memory(target, export_memory(viewed), origin, tensor)
    return _same_layout(operand, memory, offset + operand.byte_offset)


def _same_layout(operand: Operand, memory: Memory, byte_offset: int) -> Tensor:
    return tensor_on(
        memory,
        operand.dtype,
        operand.shape,
        None if operand.contiguous else operand.strides,
        byte_offset=byte_offset,
        readonly=operand.readonly,
        padded=operand.padded,
        copied=operand.flags & FLAG_IS_COPIED != 0,
    )


class StepKind:
    """A kind of step: its name, what runs it, and the pattern of its reason.

    *cost* tells the bytes that it copies; None where it copies nothing. *to* is where it leads, if
    that is not the target of the move. *is_import*: a driver uses memory in place that it did not
    allocate, which it may refuse.
    """

    def __init__(
        self,
        kind: str,
        run: StepFunction,
        reason: str,
        cost: Callable[[Operand], int] | None = None,
        to: Device | None = None,
        is_import: bool = False,
    ) -> None:
        self.kind, self.run, self.reason = kind, run, reason
        self.cost, self.to, self.is_import = cost, to, is_import


Choice = tuple[tuple[StepKind, ...], str, str]
"""Steps, and the two texts that their reasons may have: ``refusal`` and ``why``."""


def _elements(operand: Operand) -> int:
    return operand.nbytes


SHARE = (StepKind("share", _share, "it is there already: the same memory"),)
NO_ELEMENTS = (StepKind("share", _share, "it has no elements"),)
RELABEL = (StepKind("relabel", _relabel, "the CPU reads {source.name} memory in place"),)
COPY = (StepKind("copy", _copy, "{refusal}", _elements),)
COPY_NOTHING = (StepKind("copy", _copy, "{refusal}, and there are no elements to copy"),)
COPY_TO_OWN = (StepKind("copy", _copy, "{target.name} is memory of its own: {refusal}", _elements),)
UPLOAD = (StepKind("upload", _upload, "{refusal}", _elements),)
# The refusal comes first: compact memory would be copied as well.
PACK = StepKind(
    "pack", _pack, "{refusal}, and strides {strides} are packed before an upload", _elements
)
PACK_UPLOAD = (PACK, *UPLOAD)
HOST_IMPORT = (
    StepKind(
        "host import", _host_import, "{target} uses this host memory in place", is_import=True
    ),
)
HOST_VIEW = (
    StepKind("host view", _host_view, "the host addresses {source} memory in place", to=CPU),
)
DOWNLOAD = (StepKind("download", _copy, "{refusal}", bytes_to_host),)
PEER_COPY = (StepKind("peer copy", _copy, "{source.name} copies by itself", _elements),)
MEMORY_IMPORT = (
    StepKind(
        "memory import",
        _memory_import,
        "{target} is the same device, and uses this memory in place",
        is_import=True,
    ),
)
_TO_OTHER = StepKind("upload", _upload, "{source} and {target} share no memory{why}", _elements)
VIEW_UPLOAD = (*HOST_VIEW, _TO_OTHER)
DOWNLOAD_UPLOAD = (StepKind("download", _copy, "{refusal}", bytes_to_host, CPU), _TO_OTHER)
THERE_AND_BACK = (
    StepKind("download", _copy, "{refusal}, and {why}", bytes_to_host, CPU),
    StepKind("upload", _upload, "and back", _elements),
)
