"""Strided copies: on the device, between contexts, and from and to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

from dlbridge.errors import DeviceError, ExchangeError
from dlbridge.protocol import Region, Span

from . import devices
from .commands import run
from .copies import copy_from_host, copy_to_host
from .memory import buffer_of
from .queues import synchronize
from .rectangles import rectangles
from .region_commands import copy_region, is_refusal, needs_kernel, packed_strides
from .views import mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["copy_strided", "copy_strided_from_host", "copy_strided_to_host", "max_strided_ndim"]

max_strided_ndim = 2
"""Rows and slices, beside the bytes of a row."""

WASTE = 4
"""The host reads the whole span of a region that is at most so many times its bytes."""


def copy_strided(
    target: Span, target_region: Region, source: Span, source_region: Region, stream: int
) -> None:
    """Enqueue a strided copy inside a context, or do it from another through the host."""
    device_id, data, offset, extent = target
    shape, strides, run_nbytes = target_region
    into = buffer_of(data, offset, extent)
    origin = buffer_of(source.data, source.offset, source.nbytes)
    if into.context != origin.context:
        synchronize(device_id, stream)  # the core has ordered the source's work before it
        _between_contexts(target, target_region, source, source_region, stream)
        return

    def enqueue(queue: cl.CommandQueue) -> None:
        copy_region(
            device_id,
            queue,
            into,
            offset,
            strides,
            origin,
            source.offset,
            source_region.strides,
            shape,
            run_nbytes,
        )

    run(device_id, stream, "copying a region on the device", (into, origin), enqueue)


def _between_contexts(
    target: Span, target_region: Region, source: Span, source_region: Region, stream: int
) -> None:
    """Copy a region to another context: mapped if its memory is the host's, else packed there."""
    origin = buffer_of(source.data, source.offset, source.nbytes)
    if devices.device(source.device_id).shares_memory:
        with mapped(source.device_id, origin, source.offset, source.nbytes) as bytes_:
            copy_strided_from_host(target, target_region, bytes_, source_region, stream)
        return
    shape, run_nbytes = source_region.shape, source_region.run_nbytes
    packed = np.empty(run_nbytes * int(np.prod(shape)), "u1")
    dense = Region(shape, packed_strides(shape, run_nbytes), run_nbytes)
    if source.nbytes <= WASTE * packed.nbytes:
        _pick(source, source_region, packed.data, dense.strides, 0)
    else:
        _gather(source, source_region, packed.data, 0)
    if tuple(target_region.strides) == dense.strides:
        copy_from_host(target, packed.data, stream)
    else:
        _scatter(target, target_region, packed, stream)


def copy_strided_from_host(
    target: Span, target_region: Region, source: memoryview, source_region: Region, stream: int
) -> None:
    """Copy a region from the host; *source* is not needed after the return."""
    device_id, data, offset, extent = target
    shape, strides, run_nbytes = target_region
    source_strides = source_region.strides
    into = buffer_of(data, offset, extent)
    _check_host(source, source_region.extent)
    parts = rectangles(shape, run_nbytes, strides, source_strides)

    def enqueue(queue: cl.CommandQueue) -> None:
        for at in parts:
            cl.enqueue_copy(
                queue,
                into,
                source,
                buffer_origin=(offset + at.starts[0], 0, 0),
                host_origin=(at.starts[1], 0, 0),
                region=at.region,
                buffer_pitches=at.pitches[0],
                host_pitches=at.pitches[1],
                is_blocking=True,
            )

    doing = "copying a region from the host"
    slow = needs_kernel(device_id, shape, run_nbytes, parts)
    if slow or not _accepted(device_id, stream, doing, into, enqueue):
        runs = np.ascontiguousarray(_runs(source, source_strides, shape, run_nbytes))
        _scatter(target, target_region, runs.reshape(-1).view("u1"), stream)


def copy_strided_to_host(
    source: Span, source_region: Region, into: memoryview, into_region: Region, stream: int
) -> None:
    """Copy a region to the host; done on return."""
    device_id, data, offset, extent = source
    shape, strides, run_nbytes = source_region
    into_strides = into_region.strides
    origin = buffer_of(data, offset, extent)
    _check_host(into, into_region.extent)
    parts = rectangles(shape, run_nbytes, strides, into_strides)

    def enqueue(queue: cl.CommandQueue) -> None:
        for at in parts:
            cl.enqueue_copy(
                queue,
                into,
                origin,
                buffer_origin=(offset + at.starts[0], 0, 0),
                host_origin=(at.starts[1], 0, 0),
                region=at.region,
                buffer_pitches=at.pitches[0],
                host_pitches=at.pitches[1],
                is_blocking=True,
            )

    doing = "copying a region to the host"
    slow = needs_kernel(device_id, shape, run_nbytes, parts)
    if not slow and _accepted(device_id, stream, doing, origin, enqueue):
        return
    payload = run_nbytes * int(np.prod(shape))
    if extent <= WASTE * payload:
        _pick(source, source_region, into, into_strides, stream)
        return
    packed = np.empty(payload, "u1")
    _gather(source, source_region, packed.data, stream)
    dense = packed_strides(shape, run_nbytes)
    np.copyto(
        _runs(into, into_strides, shape, run_nbytes),
        _runs(packed.data, dense, shape, run_nbytes),
    )


def _accepted(
    device_id: int,
    stream: int,
    doing: str,
    buffer: cl.MemoryObject,
    enqueue: Callable[[cl.CommandQueue], object],
) -> bool:
    """Copy rectangles by *enqueue*; False if the driver refuses one (`is_refusal`)."""
    try:
        run(device_id, stream, doing, (buffer,), enqueue, blocks=True)
    except DeviceError as exc:
        if is_refusal(device_id, exc.__cause__):
            return False
        raise
    return True


def _pick(
    source: Span, region: Region, into: memoryview, strides: Sequence[int], stream: int
) -> None:
    """Copy the whole span of a region to the host, and its runs from there to *into*."""
    span = np.empty(source.nbytes, "u1")
    copy_to_host(source, span.data, stream)
    picked = _runs(span.data, region.strides, region.shape, region.run_nbytes)
    np.copyto(_runs(into, strides, region.shape, region.run_nbytes), picked)


def _gather(source: Span, region: Region, into: memoryview, stream: int) -> None:
    """Pack a region on the device, and copy that to the host; done on return."""
    device_id, data, offset, extent = source
    origin = buffer_of(data, offset, extent)
    shape, strides, run_nbytes = region

    def enqueue(queue: cl.CommandQueue) -> None:
        packed = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, size=into.nbytes)
        dense = packed_strides(shape, run_nbytes)
        copy_region(device_id, queue, packed, 0, dense, origin, offset, strides, shape, run_nbytes)
        cl.enqueue_copy(queue, into, packed, is_blocking=True)

    run(device_id, stream, "copying a region to the host", (origin,), enqueue, blocks=True)


def _scatter(target: Span, region: Region, runs: np.ndarray[Any, Any], stream: int) -> None:
    """Copy the packed bytes of a region to the device, and spread them there.

    *runs* is not needed after the return.
    """
    device_id, data, offset, extent = target
    into = buffer_of(data, offset, extent)
    shape, strides, run_nbytes = region

    def enqueue(queue: cl.CommandQueue) -> None:
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        packed = cl.Buffer(queue.context, flags, hostbuf=runs)
        dense = packed_strides(shape, run_nbytes)
        copy_region(device_id, queue, into, offset, strides, packed, 0, dense, shape, run_nbytes)
        queue.flush()

    run(device_id, stream, "copying a region from the host", (into,), enqueue, blocks=True)


def _runs(
    memory: memoryview, strides: Sequence[int], shape: Sequence[int], run_nbytes: int
) -> np.ndarray[Any, Any]:
    """The runs of a region of host memory, each as one element."""
    runs: np.ndarray[Any, Any] = np.ndarray(shape, f"V{run_nbytes}", memory, 0, strides)
    return runs


def _check_host(memory: memoryview, nbytes: int) -> None:
    if nbytes > memory.nbytes:
        raise ExchangeError(
            f"opencl: a region of {nbytes} bytes reaches outside the host's {memory.nbytes}"
        )
