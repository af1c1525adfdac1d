"""Moving tensors: to_device, explain, and new memory on any device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.capsules import FLAG_SUBBYTE_PADDED
from dlbridge.core.dlpack.structs import MAX_NDIM
from dlbridge.core.incoming.array_likes import asarray
from dlbridge.core.outgoing.like import as_library, library_step
from dlbridge.core.outgoing.producer import OPERATIONS
from dlbridge.core.plugins.lookup import backend_of, find_device, supports
from dlbridge.core.plugins.streams import access, current_use, host_access, use_stream
from dlbridge.core.tensor.memory import AllocatedMemory, HostViewMemory, Memory
from dlbridge.core.tensor.tensor import Tensor, make_tensor
from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import DType, check
from dlbridge.core.values.dtypes import dtype as as_dtype
from dlbridge.errors import Error, ExchangeError
from dlbridge.protocol import SupportsFill

from .copies import copy_tensor
from .plans import Plan, copy_from_host, host_span, make_plan
from .progress import reporter
from .traces import record

if TYPE_CHECKING:
    from .within_host import Progress

__all__ = ["copy_", "empty", "explain", "plan", "run", "to_device", "zeros"]

_CPU = Device.of(1, 0)

MAX_ALIGNMENT = 1 << 30
"""Bytes: a huge page of the largest kind; what asks for more is a mistake."""


def to_device(
    x: Any,
    device: Any,
    *,
    copy: bool | None = None,
    stream: Any = None,
    like: Any = None,
    progress: bool | Callable[[int, int], None] | None = None,
) -> Any:
    """*x*, whatever it is, on *device*: a Tensor, or an array of the library *like*.

    *copy*: None shares memory where that is possible, True never shares,
    False never copies (BufferError names the step that would). *stream* is the
    one on *device* that the copy is queued on, the current one if None.
    *progress* is called with ``(done, total)`` bytes after each 64 MiB; True
    shows a bar for 256 MiB and more. `explain` tells beforehand what happens.
    """
    tensor = _as_tensor(x, copy)
    target = find_device(device)
    steps = make_plan(tensor, target, copy)
    on = nullcontext() if stream is None else use_stream(target, stream)
    with on, reporter(progress, steps.nbytes) as report:
        moved = run(steps, tensor, report)
    return moved if like is None else as_library(moved, like, copy)


def _as_tensor(x: Any, copy: bool | None) -> Tensor:
    """*x* where it is: what copying there is to do, the plan does."""
    return x if isinstance(x, Tensor) else asarray(x, copy=False if copy is False else None)


def plan(x: Any, device: Any, *, copy: bool | None = None, like: Any = None) -> Plan:
    """What `to_device` with the same arguments would do; nothing is moved."""
    if type(x).__name__ == "PyCapsule":
        raise TypeError(
            "a plan for a capsule would use it up; t = dlbridge.from_dlpack(capsule), then plan "
            "or explain t"
        )
    tensor = _as_tensor(x, copy)
    steps = make_plan(tensor, find_device(device), copy)
    if like is not None:
        fresh = steps.copies > 0
        copies, reason = library_step(tensor, like, copy, device=steps.target, fresh=fresh)
        nbytes = tensor.nbytes if copies else 0
        steps.add("as library", steps.target, steps.target, nbytes, reason)
    return steps


def explain(x: Any, device: Any, *, copy: bool | None = None, like: Any = None) -> str:
    """The steps that would bring *x* to *device*, the bytes copied, and why."""
    return str(plan(x, device, copy=copy, like=like))


def empty(
    shape: int | Sequence[int], dtype: Any = "float32", device: Any = "cpu", *, alignment: int = 256
) -> Tensor:
    """A new compact tensor whose elements are whatever the memory held.

    *alignment* in bytes, a power of two, at least 256 (dlpack.h asks for
    that); 4096 makes host memory that Vulkan can use in place.
    """
    extents = tuple(map(index, shape)) if isinstance(shape, Iterable) else (index(shape),)
    kind = as_dtype(dtype)
    check(kind.code, kind.bits, kind.lanes)
    where = find_device(device)
    if not all(0 <= extent < 1 << 63 for extent in extents) or len(extents) > MAX_NDIM:
        raise ValueError(
            f"shape {extents}: extents are 0 or more and int64, at most {MAX_NDIM} of them"
        )
    alignment = _alignment(alignment)
    return _allocate(where, kind, extents, alignment=max(alignment, 256))


def _alignment(given: Any) -> int:
    """*given* as a power of two, in bytes."""
    try:
        alignment = index(given)
    except TypeError:
        alignment = None
    if isinstance(given, bool) or alignment is None:
        raise TypeError(f"alignment {given!r} is no number of bytes; give a power of two, as 4096")
    if not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise ValueError(
            f"alignment {alignment} is no power of two from 1 to {MAX_ALIGNMENT} bytes"
        )
    return alignment


def zeros(shape: int | Sequence[int], dtype: Any = "float32", device: Any = "cpu") -> Tensor:
    """A new compact tensor of zeros."""
    tensor = empty(shape, dtype, device)
    where = tensor.device
    plugin = backend_of(where)
    if not tensor.size:
        return tensor
    if supports(plugin, SupportsFill):
        data, offset = tensor._memory.data, tensor._byte_offset
        plugin.fill(where.index, data, offset, tensor.nbytes, 0, access(tensor._memory))
    else:
        copy_tensor(tensor, zeros(shape, dtype, "cpu"))
    return tensor


def copy_(dst: Any, src: Any, *, progress: bool | Callable[[int, int], None] | None = None) -> None:
    """Copy the elements of *src* into the memory of *dst*: same shape, same dtype.

    Each may be any library's array on any device. BufferError if *dst* is
    read-only. *progress* as in `to_device`; no trace records it.
    """
    target = dst if isinstance(dst, Tensor) else asarray(dst, copy=False)
    source = src if isinstance(src, Tensor) else asarray(src)
    if target.shape != source.shape or target.dtype is not source.dtype:
        raise ValueError(
            f"cannot copy {source.dtype} {source.shape} into {target.dtype} {target.shape}: "
            "shapes and dtypes must be equal; make a view (reshape, view) or convert before"
        )
    if target.readonly:
        raise ExchangeError(f"{target!r} is read-only and cannot be copied into")
    if target.size and any(
        extent > 1 and not step for extent, step in zip(target.shape, target.strides, strict=True)
    ):
        raise ExchangeError(
            f"{target!r} has strides {target.strides}: elements share memory (a broadcast view), "
            "so a copy into it would keep the last of each only; copy into what it is a view of"
        )
    if progress is None:  # without the block a copy of 4 KiB takes 1 us less
        copy_tensor(target, source)
        return
    with reporter(progress, target.nbytes) as report:
        copy_tensor(target, source, report)


# Running a plan ---------------------------------------------------------------


def run(steps: Plan, tensor: Tensor, progress: Progress | None = None) -> Tensor:
    """Take the steps of a plan made for *tensor*; the result is on ``steps.target``."""
    start = time.perf_counter()
    steps.address = tensor.data_ptr()
    for step in steps.steps:
        try:
            tensor = _STEPS[step.kind](tensor, step.target, progress)
        except Error as exc:
            if step.kind != "host import" or not steps.may_copy:
                raise
            # Backends look before; a driver may know more (a limit, a read-only mapping).
            steps.steps.clear()
            copy_from_host(steps, tensor, f"it was refused in place: {exc}")
            return run(steps, tensor, progress)
    if tensor.device is not steps.target:  # an empty tensor
        tensor = _allocate(steps.target, tensor.dtype, tensor.shape, flags=tensor._flags)
    steps.result_address = tensor.data_ptr()
    steps.seconds = time.perf_counter() - start
    record(steps)
    return tensor


def _share(tensor: Tensor, target: Device, progress: Progress | None) -> Tensor:
    return tensor


def _relabel(tensor: Tensor, target: Device, progress: Progress | None) -> Tensor:
    host_access(tensor._memory)
    start, _ = host_span(tensor)
    memory = Memory(target, start, f"{tensor.device} memory", tensor)
    return _same_layout(tensor, memory, tensor.data_ptr() - start)


def _copy(tensor: Tensor, target: Device, progress: Progress | None) -> Tensor:
    new = _allocate(target, tensor.dtype, tensor.shape, flags=tensor._flags)
    copy_tensor(new, tensor, progress)
    return new


def _host_view(tensor: Tensor, target: Device, progress: Progress | None) -> Tensor:
    source = tensor.device
    plugin: Any = backend_of(source)
    stream = access(tensor._memory)
    low, nbytes = _span(tensor)
    address = plugin.host_view(
        source.index,
        tensor._memory.data,
        tensor._byte_offset + low,
        nbytes,
        not tensor.readonly,
        stream,
    )
    memory = HostViewMemory(plugin, tensor._memory, target, address, stream)
    return _same_layout(tensor, memory, -low)


def _host_import(tensor: Tensor, target: Device, progress: Progress | None) -> Tensor:
    plugin: Any = backend_of(target)
    start, nbytes = host_span(tensor)
    data, offset = plugin.import_host(target.index, start, nbytes, tensor.readonly)
    origin = f"host memory of {tensor.origin}"
    memory = AllocatedMemory(plugin, target, data, current_use(target), origin, tensor)
    return _same_layout(tensor, memory, offset + tensor.data_ptr() - start)


_STEPS: dict[str, Callable[[Tensor, Device, Progress | None], Tensor]] = {
    "share": _share,
    "relabel": _relabel,
    "host view": _host_view,
    "host import": _host_import,
    "copy": _copy,
    "pack": _copy,
    "upload": _copy,
    "download": _copy,
    "peer copy": _copy,
}


def _span(tensor: Tensor) -> tuple[int, int]:
    """Offset from the first element, and length, in bytes of all that *tensor* reaches."""
    start, nbytes = host_span(tensor)
    return start - tensor.data_ptr(), nbytes


def _same_layout(tensor: Tensor, memory: Memory, byte_offset: int) -> Tensor:
    return make_tensor(
        memory,
        byte_offset,
        tensor.dtype,
        tensor.shape,
        tensor.strides,
        readonly=tensor.readonly,
        flags=tensor._flags,
    )


def _allocate(
    where: Device, dtype: DType, shape: tuple[int, ...], *, alignment: int = 256, flags: int = 0
) -> Tensor:
    padded = FLAG_SUBBYTE_PADDED if flags & FLAG_SUBBYTE_PADDED else 0
    nbytes = dtype.nbytes(prod(shape), padded=bool(padded))
    plugin = backend_of(where)
    if not nbytes:
        memory = Memory(where, 0, "dlbridge.empty")
    else:
        use = current_use(where)
        data = plugin.allocate(where.index, nbytes, alignment, use.handle)
        memory = AllocatedMemory(plugin, where, data, use, "dlbridge.empty")
    return make_tensor(memory, 0, dtype, shape, flags=padded)


# What tensors ask for ------------------------------------------------------------


def _move(tensor: Tensor, device: Device, copy: bool | None) -> Tensor:
    return run(make_plan(tensor, device, copy), tensor)


def _to_host_compact(tensor: Tensor) -> Tensor:
    host = _move(tensor, _CPU, None)
    return host if host.is_contiguous() else _move(host, _CPU, True)


OPERATIONS.update(
    empty=lambda shape, dtype, device: _allocate(device, dtype, shape),
    copy=lambda tensor: _move(tensor, tensor.device, True),
    to_device=to_device,
    to_host=lambda tensor: _move(tensor, _CPU, True),
    to_host_compact=_to_host_compact,
)
