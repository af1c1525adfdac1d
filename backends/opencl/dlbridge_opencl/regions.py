"""Strided copies: rectangles in one command, many short runs by a kernel or on the host.

OpenCL's rectangles need pitches that grow and divide each other. A region without
such pitches, an overlapping source for example, takes several rectangles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

from dlbridge.errors import ExchangeError

from . import devices
from .commands import run
from .copies import copy_to_host
from .memory import buffer_of
from .queues import synchronize
from .rectangles import Rectangle, rectangles
from .runs import copy_runs
from .views import mapped

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["copy_strided", "copy_strided_from_host", "copy_strided_to_host", "max_strided_ndim"]

max_strided_ndim = 2
"""Rows and slices, beside the bytes of a row."""

SHORT_RUN = 256
"""Bytes. GPUs move rectangles with shorter rows much slower than their bytes (not confirmed
on hardware); PoCL does not."""

FEW_RUNS = 64
"""A region of so few runs is copied by rectangles on any device."""

MANY_RECTANGLES = 64
"""A region that would take more rectangles is copied in another way on any device but a
simulator, where kernels are slow: each command takes some 30 us on PoCL."""

WASTE = 4
"""The host reads the whole span of a region that is at most so many times its bytes."""


def copy_strided(
    device_id: int,
    data: int,
    offset: int,
    strides: Sequence[int],
    source: int,
    source_offset: int,
    source_strides: Sequence[int],
    shape: Sequence[int],
    run_nbytes: int,
    stream: int,
) -> None:
    """Enqueue a strided copy inside a context, or do it from another through the host."""
    target = buffer_of(data, offset, _extent(shape, strides, run_nbytes))
    extent = _extent(shape, source_strides, run_nbytes)
    origin = buffer_of(source, source_offset, extent)
    if target.context != origin.context:
        synchronize(device_id, stream)  # the core has ordered the source's work before it
        with mapped(device_id, origin, source_offset, extent) as bytes_:
            copy_strided_from_host(
                device_id, data, offset, strides, bytes_, source_strides, shape, run_nbytes, stream
            )
        return
    parts = rectangles(shape, run_nbytes, strides, source_strides)

    def by_kernel(queue: cl.CommandQueue) -> None:
        copy_runs(
            queue,
            target,
            offset,
            strides,
            origin,
            source_offset,
            source_strides,
            shape,
            run_nbytes,
        )

    def by_rectangles(queue: cl.CommandQueue) -> None:
        there, at = _whole(target, offset)
        here, start = _whole(origin, source_offset)
        if there == here:
            _through_scratch(
                queue, there, at, strides, here, start, source_strides, shape, run_nbytes
            )
        else:
            _copy(queue, there, at, here, start, parts)

    enqueue = by_kernel if _needs_kernel(device_id, shape, run_nbytes, parts) else by_rectangles
    run(device_id, stream, "copying a region on the device", (target, origin), enqueue)


def copy_strided_from_host(
    device_id: int,
    data: int,
    offset: int,
    strides: Sequence[int],
    source: memoryview,
    source_strides: Sequence[int],
    shape: Sequence[int],
    run_nbytes: int,
    stream: int,
) -> None:
    """Copy a region from the host; *source* is not needed after the return."""
    target = buffer_of(data, offset, _extent(shape, strides, run_nbytes))
    _check_host(source, _extent(shape, source_strides, run_nbytes))
    parts = rectangles(shape, run_nbytes, strides, source_strides)

    def by_kernel(queue: cl.CommandQueue) -> None:
        packed = np.ascontiguousarray(_runs(source, source_strides, shape, run_nbytes))
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        scratch = cl.Buffer(queue.context, flags, hostbuf=packed)
        dense = _packed(shape, run_nbytes)
        copy_runs(queue, target, offset, strides, scratch, 0, dense, shape, run_nbytes)
        queue.flush()

    def by_rectangles(queue: cl.CommandQueue) -> None:
        for at in parts:
            cl.enqueue_copy(
                queue,
                target,
                source,
                buffer_origin=(offset + at.starts[0], 0, 0),
                host_origin=(at.starts[1], 0, 0),
                region=at.region,
                buffer_pitches=at.pitches[0],
                host_pitches=at.pitches[1],
                is_blocking=True,
            )

    enqueue = by_kernel if _needs_kernel(device_id, shape, run_nbytes, parts) else by_rectangles
    run(device_id, stream, "copying a region from the host", (target,), enqueue, blocks=True)


def copy_strided_to_host(
    device_id: int,
    data: int,
    offset: int,
    strides: Sequence[int],
    into: memoryview,
    into_strides: Sequence[int],
    shape: Sequence[int],
    run_nbytes: int,
    stream: int,
) -> None:
    """Copy a region to the host; done on return."""
    extent = _extent(shape, strides, run_nbytes)
    origin = buffer_of(data, offset, extent)
    _check_host(into, _extent(shape, into_strides, run_nbytes))
    parts = rectangles(shape, run_nbytes, strides, into_strides)
    payload = run_nbytes * int(np.prod(shape))
    needs_kernel = _needs_kernel(device_id, shape, run_nbytes, parts)
    if needs_kernel and extent <= WASTE * payload:
        span = np.empty(extent, "u1")
        copy_to_host(device_id, data, offset, span.data, stream)
        picked = _runs(span.data, strides, shape, run_nbytes)
        np.copyto(_runs(into, into_strides, shape, run_nbytes), picked)
        return

    def by_kernel(queue: cl.CommandQueue) -> None:
        scratch = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, size=payload)
        dense = _packed(shape, run_nbytes)
        copy_runs(queue, scratch, 0, dense, origin, offset, strides, shape, run_nbytes)
        packed = np.empty(payload, "u1")
        cl.enqueue_copy(queue, packed, scratch, is_blocking=True)
        there = _runs(into, into_strides, shape, run_nbytes)
        np.copyto(there, _runs(packed.data, dense, shape, run_nbytes))

    def by_rectangles(queue: cl.CommandQueue) -> None:
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

    enqueue = by_kernel if needs_kernel else by_rectangles
    run(device_id, stream, "copying a region to the host", (origin,), enqueue, blocks=True)


def _needs_kernel(
    device_id: int, shape: Sequence[int], run_nbytes: int, parts: list[Rectangle]
) -> bool:
    """Whether rectangles would take too long, and the device compiles kernels."""
    chosen = devices.device(device_id)
    if not chosen.thread_safe or not chosen.handle.compiler_available:
        return False
    short = run_nbytes < SHORT_RUN and int(np.prod(shape)) > FEW_RUNS
    return len(parts) > MANY_RECTANGLES or (short and not chosen.is_cpu)


def _through_scratch(
    queue: cl.CommandQueue,
    target: cl.MemoryObject,
    offset: int,
    strides: Sequence[int],
    origin: cl.MemoryObject,
    source_offset: int,
    source_strides: Sequence[int],
    shape: Sequence[int],
    run_nbytes: int,
) -> None:
    """Copy inside one buffer by way of another.

    Inside one buffer OpenCL wants the same pitches on both sides, and refuses
    regions between whose first and last bytes the other has bytes, too, though
    the two have none in common (OpenCL 3.0, 5.2.4 and appendix E).
    """
    payload = run_nbytes * int(np.prod(shape))
    scratch = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, size=payload)
    dense = _packed(shape, run_nbytes)
    there = rectangles(shape, run_nbytes, dense, source_strides)
    back = rectangles(shape, run_nbytes, strides, dense)
    _copy(queue, scratch, 0, origin, source_offset, there)
    _copy(queue, target, offset, scratch, 0, back)


def _copy(
    queue: cl.CommandQueue,
    target: cl.MemoryObject,
    offset: int,
    origin: cl.MemoryObject,
    source_offset: int,
    parts: list[Rectangle],
) -> None:
    for at in parts:
        cl.enqueue_copy(
            queue,
            target,
            origin,
            dst_origin=(offset + at.starts[0], 0, 0),
            src_origin=(source_offset + at.starts[1], 0, 0),
            region=at.region,
            dst_pitches=at.pitches[0],
            src_pitches=at.pitches[1],
        )


def _whole(buffer: cl.MemoryObject, offset: int) -> tuple[cl.MemoryObject, int]:
    """The buffer that *buffer* is a part of, or itself, and the offset in it.

    PoCL 3.1 crashes in clEnqueueCopyBufferRect on a part (measured).
    """
    parent = buffer.get_info(cl.mem_info.ASSOCIATED_MEMOBJECT)
    if not isinstance(parent, cl.Buffer):
        return buffer, offset
    return parent, offset + buffer.get_info(cl.mem_info.OFFSET)


def _packed(shape: Sequence[int], run_nbytes: int) -> list[int]:
    """The byte strides of runs without gaps between them."""
    return [run_nbytes * int(np.prod(shape[i + 1 :])) for i in range(len(shape))]


def _runs(
    memory: memoryview, strides: Sequence[int], shape: Sequence[int], run_nbytes: int
) -> np.ndarray[Any, Any]:
    """The runs of a region of host memory, each as one element."""
    runs: np.ndarray[Any, Any] = np.ndarray(shape, f"V{run_nbytes}", memory, 0, strides)
    return runs


def _extent(shape: Sequence[int], strides: Sequence[int], run_nbytes: int) -> int:
    """Bytes from the first to the last of a region."""
    return sum((n - 1) * at for n, at in zip(shape, strides, strict=True)) + run_nbytes


def _check_host(memory: memoryview, nbytes: int) -> None:
    if nbytes > memory.nbytes:
        raise ExchangeError(
            f"opencl: a region of {nbytes} bytes reaches outside the host's {memory.nbytes}"
        )
