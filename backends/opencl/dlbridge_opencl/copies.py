"""Copies and fills: between host and device, on a device, between devices, and of regions.

Copies from and to the host block until the host's memory is no longer needed.
Measured on PoCL 3.1 and Oclgrind from 64 bytes to 64 MiB: a blocking
clEnqueueWriteBuffer is as fast as one that is waited for later, and as map,
memcpy and unmap, or faster. On an H100 it was faster than copies through pinned
memory (docs/benchmarks/opencl-copy-h100.md).

PoCL 3.0 and 3.1 copy nothing, and report no error, if the host's memory begins at the address of
the buffer (measured). If the two overlap otherwise, they copy forwards. So host memory that lies in
the buffer is read or written through a temporary copy.

A region is one rectangle, or one for each entry of its outer dimension where the pitches are
not as OpenCL wants them.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np
import pyopencl as cl
from numpy.lib.stride_tricks import as_strided

from dlbridge.errors import ExchangeError
from dlbridge.protocol import Region, Span

from . import devices, queues
from .driver import copy_buffer, read_buffer, write_buffer
from .memory import Memory, find, find_target, overlaps_host, share_bytes, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_Extent = tuple[int, int, int]
_Pitches = tuple[tuple[int, int], tuple[int, int]]

CHUNK = 16 << 20
"""Bytes of host memory that a copy between contexts uses at a time."""

FILLED = 1 << 31
"""Bytes of a buffer, from its beginning, that clEnqueueFillBuffer fills.

NVIDIA's driver (580.159.04, H100) loses the context where it fills a byte at 19.8 GiB; writes,
copies and kernels are right there (tests/hardware/large_buffer.py).
"""

max_strided_ndim = 2
"""Rows and slices, beside the bytes of a row."""


def command(
    doing: str,
    stream: int,
    device_id: int,
    memories: Sequence[Memory | Span],
    enqueue: Callable[..., object],
    *given: object,
    blocks: bool = False,
) -> None:
    """Call ``enqueue(queue, *buffers, *given)`` for *memories*, or those of spans, of one context.

    The queue is *stream* of the device if it is of their context. For buffers of another
    context it is a new queue, the commands come after the work on *stream*, and
    they are done on return.

    If users have one of the buffers, too, the commands come after the work that is
    now on the users' queues (`queues.note_user`). If one was not made here, they are also
    done on return: its owner knows nothing of our queues.

    *doing* names the commands in errors. *blocks* says that the last command waits
    for all of them; otherwise the queue is flushed, as drivers may keep commands
    back until then (OpenCL 3.0, 5.15).
    """
    at = queues.OURS.get(stream)
    if at is None or at.device.number != device_id:
        devices.device(device_id)  # an error if there is none
        at = queues.resolve(device_id, stream)
    queue, done_on_return, buffers = at.queue, False, []
    for each in memories:
        memory = each if isinstance(each, Memory) else find(each)
        buffers.append(memory.buffer)
        # Most are the same object: to compare two asks the driver.
        if memory.context is not at.context and queue.context != memory.context:
            queue, done_on_return = _in_its_context(device_id, at, memory.context), True
        if memory.users is not None:
            for other in list(memory.users.queues):
                queues.order(device_id, queue, other)
        done_on_return |= not memory.is_ours
    driver = at.device.driver
    try:
        driver.run(doing, enqueue, queue, *buffers, *given)
        if not blocks and not done_on_return:
            driver.run(doing, queue.flush)
    finally:
        if done_on_return:
            queues.finish(device_id, queue)


def _in_its_context(device_id: int, at: queues.Stream, context: cl.Context) -> cl.CommandQueue:
    """A new queue in *context*, after the work that is on *at*."""
    queue = queues.new(device_id, context)
    queues.finish(device_id, at.queue)
    return queue


def copy_from_host(target: Span, source: memoryview, stream: int) -> None:
    """Copy the bytes of *source* to *target*; *source* is not needed after the return."""
    memory = find(target)
    if overlaps_host(memory, source):
        source = memoryview(bytes(source))
    what = "copying from the host", stream, target.device_id, (memory,), write_buffer
    command(*what, source, target.offset, None, True, blocks=True)


def copy_to_host(source: Span, into: memoryview, stream: int) -> None:
    """Copy to the host; done on return."""
    memory = find(source)
    what = "copying to the host", stream, source.device_id, (memory,), read_buffer
    if overlaps_host(memory, into):
        apart = memoryview(bytearray(into.nbytes))
        command(*what, apart, source.offset, None, True, blocks=True)
        into[:] = apart
        return
    command(*what, into, source.offset, None, True, blocks=True)


def fill(target: Span, value: int, stream: int) -> None:
    """Enqueue a fill with one byte value; beyond `FILLED` by copies of what is filled already."""
    memory = find_target(target)
    what = "filling", stream, target.device_id
    done = min(target.nbytes, max(FILLED - target.offset, 0))
    if done or not target.nbytes:
        command(*what, (memory,), cl.enqueue_fill_buffer, bytes([value]), target.offset, done)
    else:
        done = min(target.nbytes, CHUNK)
        first = np.full(done, value, "u1").data
        command(*what, (memory,), write_buffer, first, target.offset, None, True, blocks=True)
    while done < target.nbytes:
        more, end = min(done, target.nbytes - done), target.offset + done
        command(*what, (memory, memory), copy_buffer, more, target.offset, end)
        done += more


def copy(target: Span, source: Span, stream: int) -> None:
    """Enqueue a copy inside a context, or do one between contexts through the host."""
    memories = _both(target, source)
    if _in_one_context(*memories):
        what = "copying on the device", stream, target.device_id, memories[::-1]
        enqueue = _copy_apart if share_bytes(*memories) else copy_buffer
        command(*what, enqueue, source.nbytes, source.offset, target.offset)
        return
    queues.synchronize(target.device_id, stream)  # the core has ordered the source's work before
    between = np.empty(min(CHUNK, source.nbytes), "u1").data
    for start in range(0, source.nbytes, CHUNK):
        part = between[: source.nbytes - start]
        here = Span(source.device_id, source.data, source.offset + start, len(part))
        there = Span(target.device_id, target.data, target.offset + start, len(part))
        copy_to_host(here, part, 0)
        copy_from_host(there, part, stream)


def _copy_apart(
    queue: cl.CommandQueue, source: cl.Buffer, target: cl.Buffer, nbytes: int, begin: int, to: int
) -> None:
    """`copy_buffer` through memory apart: the two may overlap, which no driver allows."""
    scratch = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, size=nbytes)
    copy_buffer(queue, source, scratch, nbytes, begin, 0)
    copy_buffer(queue, scratch, target, nbytes, 0, to)


def _both(target: Span, source: Span) -> tuple[Memory, Memory]:
    if source.device_id != target.device_id:
        devices.device(source.device_id)  # an error if there is none
    return find_target(target), find(source)


def _in_one_context(target: Memory, source: Memory) -> bool:
    return target.context is source.context or bool(target.context == source.context)


# Regions --------------------------------------------------------------------------


def copy_strided(
    target: Span, target_region: Region, source: Span, source_region: Region, stream: int
) -> None:
    """Enqueue a strided copy inside a context, or do it from another through the host."""
    shape, strides, run_nbytes = target_region
    dense = Region(shape, _packed(shape, run_nbytes), run_nbytes)
    memories = _both(target, source)
    if not _in_one_context(*memories):
        queues.synchronize(target.device_id, stream)
        between = np.empty(dense.extent, "u1").data
        copy_strided_to_host(source, source_region, between, dense, 0)
        copy_strided_from_host(target, target_region, between, dense, stream)
        return

    def enqueue(queue: cl.CommandQueue, into: cl.Buffer, origin: cl.Buffer) -> None:
        # PoCL 3.1 crashes in clEnqueueCopyBufferRect on a part of a buffer (measured).
        there, here = whole(into, target.offset), whole(origin, source.offset)
        if there[0] != here[0] and not share_bytes(*memories):
            _on_device(queue, there, strides, here, source_region)
            return
        # Inside one buffer OpenCL wants the same pitches on both sides, and spans apart; and two
        # may use the same memory of the host.
        scratch = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, size=dense.extent), 0
        _on_device(queue, scratch, dense.strides, here, source_region)
        _on_device(queue, there, strides, scratch, dense)

    command("copying a region on the device", stream, target.device_id, memories, enqueue)


def _on_device(
    queue: cl.CommandQueue,
    target: tuple[cl.Buffer, int],
    strides: Sequence[int],
    source: tuple[cl.Buffer, int],
    region: Region,
) -> None:
    def enqueue(starts: tuple[int, int], extent: _Extent, pitches: _Pitches) -> None:
        cl.enqueue_copy(
            queue,
            target[0],
            source[0],
            dst_origin=(target[1] + starts[0], 0, 0),
            src_origin=(source[1] + starts[1], 0, 0),
            region=extent,
            dst_pitches=pitches[0],
            src_pitches=pitches[1],
        )

    _by_rectangles(enqueue, region, strides, region.strides)


def copy_strided_from_host(
    target: Span, target_region: Region, source: memoryview, source_region: Region, stream: int
) -> None:
    """Copy a region from the host; *source* is not needed after the return."""
    given = target, target_region, source, source_region, stream
    _with_host("copying a region from the host", *given, to_host=False)


def copy_strided_to_host(
    source: Span, source_region: Region, into: memoryview, into_region: Region, stream: int
) -> None:
    """Copy a region to the host; done on return."""
    given = source, source_region, into, into_region, stream
    _with_host("copying a region to the host", *given, to_host=True)


def _with_host(
    doing: str,
    span: Span,
    region: Region,
    host: memoryview,
    host_region: Region,
    stream: int,
    *,
    to_host: bool,
) -> None:
    if host_region.extent > host.nbytes:
        raise ExchangeError(
            f"opencl: a region of {host_region.extent} bytes reaches outside the host's "
            f"{host.nbytes}"
        )

    memory = find(span)
    if overlaps_host(memory, host[: host_region.extent]):
        shape, strides, run_nbytes = host_region
        runs = as_strided(np.frombuffer(host, "u1"), (*shape, run_nbytes), (*strides, 1))
        apart = runs.copy()
        dense = Region(shape, _packed(shape, run_nbytes), run_nbytes)
        given = span, region, apart.reshape(-1).data, dense, stream
        _with_host(doing, *given, to_host=to_host)
        if to_host:
            runs[...] = apart
        return

    def enqueue(queue: cl.CommandQueue, buffer: cl.Buffer) -> None:
        sides = (host, buffer) if to_host else (buffer, host)

        def rectangle(starts: tuple[int, int], extent: _Extent, pitches: _Pitches) -> None:
            cl.enqueue_copy(
                queue,
                *sides,
                buffer_origin=(span.offset + starts[0], 0, 0),
                host_origin=(starts[1], 0, 0),
                region=extent,
                buffer_pitches=pitches[0],
                host_pitches=pitches[1],
                is_blocking=True,
            )

        _by_rectangles(rectangle, region, region.strides, host_region.strides)

    command(doing, stream, span.device_id, (memory,), enqueue, blocks=True)


def _by_rectangles(
    enqueue: Callable[[tuple[int, int], _Extent, _Pitches], object],
    region: Region,
    strides: Sequence[int],
    other: Sequence[int],
) -> None:
    """Enqueue the rectangles of *region*, with *strides* on one side and *other* on the other.

    *enqueue* gets the first byte, the extent, and the (row, slice) pitches, both for both sides.
    """
    (slices, rows), run_nbytes = (1, *region.shape)[-2:], region.run_nbytes
    sides = [(0, *steps)[-2:] for steps in (strides, other)]
    if slices > 1 and any(outer % inner for outer, inner in sides):
        # OpenCL wants slices of whole rows (OpenCL 3.0, 5.2.4): as few rectangles as there can be.
        few = int(rows < slices)
        rectangle = [(0, steps[1 - few]) for steps in sides]
        for index in range((slices, rows)[few]):
            starts = index * sides[0][few], index * sides[1][few]
            _rectangle(enqueue, starts, (run_nbytes, (rows, slices)[few], 1), rectangle)
    else:
        _rectangle(enqueue, (0, 0), (run_nbytes, rows, slices), sides)


def _rectangle(
    enqueue: Callable[[tuple[int, int], _Extent, _Pitches], object],
    starts: tuple[int, int],
    extent: _Extent,
    sides: Sequence[tuple[int, ...]],
) -> None:
    """Enqueue one rectangle; in parts if the driver refuses it.

    NVIDIA's driver 580.159 gives CL_INVALID_VALUE where the last row, with its whole
    pitch, would end outside the buffer (tests/hardware/rectangles.py).
    """
    run_nbytes, rows, slices = extent
    pitches = tuple(
        (inner if rows > 1 else 0, outer if slices > 1 else 0) for outer, inner in sides
    )
    try:
        enqueue(starts, extent, pitches)  # type: ignore[arg-type] # a tuple of two
    except cl.Error as exc:
        if exc.code != cl.status_code.INVALID_VALUE or rows * slices == 1:
            raise
        axis, last = (0, slices - 1) if slices > 1 else (1, rows - 1)
        there = starts[0] + last * sides[0][axis], starts[1] + last * sides[1][axis]
        first = (run_nbytes, rows, last) if slices > 1 else (run_nbytes, last, 1)
        rest = (run_nbytes, rows, 1) if slices > 1 else (run_nbytes, 1, 1)
        _rectangle(enqueue, starts, first, sides)
        _rectangle(enqueue, there, rest, sides)


def _packed(shape: Sequence[int], run_nbytes: int) -> tuple[int, ...]:
    """The byte strides of runs without gaps between them."""
    return tuple(run_nbytes * prod(shape[axis + 1 :]) for axis in range(len(shape)))
