"""Copies and fills: between host and device, on a device, and between devices.

Copies from and to the host block until the host's memory is no longer needed.
Measured on PoCL 3.1 and Oclgrind from 64 bytes to 64 MiB: a blocking
clEnqueueWriteBuffer is as fast as one that is waited for later, and as map,
memcpy and unmap, or faster. On an H100 it was faster than copies through pinned
memory (docs/opencl.md, "Speed").
"""

from __future__ import annotations

import numpy as np
import pyopencl as cl

from dlbridge.protocol import Span

from . import devices
from .commands import plain, run
from .driver import call, read_buffer, write_buffer
from .memory import buffer_of
from .queues import synchronize
from .views import mapped

__all__ = ["copy", "copy_from_host", "copy_to_host", "fill"]

CHUNK = 16 << 20
"""Bytes of host memory that a copy between contexts uses at a time. Some drivers hold
a second copy of memory that is mapped."""


def copy_from_host(target: Span, source: memoryview, stream: int) -> None:
    """Copy the bytes of *source* to *target*; *source* is not needed after the return."""
    device_id, data, offset, nbytes = target
    found = plain(target, stream)
    if found is not None:
        ours, owned = found
        doing = "copying from the host"
        call(doing, write_buffer, ours.queue, owned.buffer, source, offset, None, True)
        return
    buffer = buffer_of(data, offset, nbytes)

    def enqueue(queue: cl.CommandQueue) -> None:
        cl.enqueue_copy(queue, buffer, source, dst_offset=offset, is_blocking=True)

    run(device_id, stream, "copying from the host", (buffer,), enqueue, blocks=True)


def copy_to_host(source: Span, into: memoryview, stream: int) -> None:
    """Copy to the host; done on return."""
    device_id, data, offset, nbytes = source
    found = plain(source, stream)
    if found is not None:
        ours, owned = found
        doing = "copying to the host"
        call(doing, read_buffer, ours.queue, owned.buffer, into, offset, None, True)
        return
    buffer = buffer_of(data, offset, nbytes)

    def enqueue(queue: cl.CommandQueue) -> None:
        cl.enqueue_copy(queue, into, buffer, src_offset=offset, is_blocking=True)

    run(device_id, stream, "copying to the host", (buffer,), enqueue, blocks=True)


def fill(target: Span, value: int, stream: int) -> None:
    """Enqueue a fill with one byte value."""
    device_id, data, offset, nbytes = target
    buffer = buffer_of(data, offset, nbytes)

    def enqueue(queue: cl.CommandQueue) -> None:
        cl.enqueue_fill_buffer(queue, buffer, bytes([value]), offset, nbytes)

    run(device_id, stream, "filling", (buffer,), enqueue)


def copy(target: Span, source: Span, stream: int) -> None:
    """Enqueue a copy inside a context, or do one between contexts through the host."""
    device_id, data, offset, nbytes = target
    devices.device(source.device_id)  # an error if there is none; `run` looks for the other
    into, origin = buffer_of(data, offset, nbytes), buffer_of(source.data, source.offset, nbytes)
    if into.context == origin.context:

        def enqueue(queue: cl.CommandQueue) -> None:
            cl.enqueue_copy(
                queue,
                into,
                origin,
                byte_count=nbytes,
                src_offset=source.offset,
                dst_offset=offset,
            )

        run(device_id, stream, "copying on the device", (into, origin), enqueue)
        return
    synchronize(device_id, stream)  # the core has ordered the source's work before it
    shared = devices.device(source.device_id).shares_memory
    between = np.empty(min(CHUNK, nbytes), "u1").data
    for start in range(0, nbytes, CHUNK):
        size = min(CHUNK, nbytes - start)
        here = source._replace(offset=source.offset + start, nbytes=size)
        there = Span(device_id, data, offset + start, size)
        if shared:
            with mapped(source.device_id, origin, here.offset, size) as part:
                copy_from_host(there, part, stream)
        else:
            copy_to_host(here, between[:size], 0)
            copy_from_host(there, between[:size], stream)
