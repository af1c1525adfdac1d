"""Copies and fills: between host and device, on a device, and between devices.

Copies from and to the host block until the host's memory is no longer needed.
Measured on PoCL 3.1 and Oclgrind from 64 bytes to 64 MiB: a blocking
clEnqueueWriteBuffer is as fast as one that is waited for later, and as map,
memcpy and unmap, or faster. Devices with memory of their own: see `staging`.
"""

from __future__ import annotations

import pyopencl as cl

from dlbridge.protocol import Span

from . import devices, staging
from .commands import plain, run
from .driver import call, read_buffer, write_buffer
from .memory import buffer_of
from .queues import synchronize
from .views import mapped

__all__ = ["copy", "copy_from_host", "copy_to_host", "fill"]

CHUNK = 16 << 20
"""Bytes that a copy between contexts maps at a time: some drivers hold a second
copy of mapped memory."""


def copy_from_host(target: Span, source: memoryview, stream: int) -> None:
    """Copy the bytes of *source* to *target*; *source* is not needed after the return."""
    device_id, data, offset, nbytes = target
    found = plain(target, stream)
    if found is not None and (nbytes <= staging.THRESHOLD or not staging.is_worth_it(device_id)):
        ours, owned = found
        doing = "copying from the host"
        call(doing, write_buffer, ours.queue, owned.buffer, source, offset, None, True)
        return
    buffer = buffer_of(data, offset, nbytes)

    def enqueue(queue: cl.CommandQueue) -> None:
        if nbytes > staging.THRESHOLD and staging.is_worth_it(device_id):
            staging.upload(device_id, queue, buffer, offset, source)
        else:
            cl.enqueue_copy(queue, buffer, source, dst_offset=offset, is_blocking=True)

    run(device_id, stream, "copying from the host", (buffer,), enqueue, blocks=True)


def copy_to_host(source: Span, into: memoryview, stream: int) -> None:
    """Copy to the host; done on return."""
    device_id, data, offset, nbytes = source
    found = plain(source, stream)
    if found is not None and (nbytes <= staging.THRESHOLD or not staging.is_worth_it(device_id)):
        ours, owned = found
        doing = "copying to the host"
        call(doing, read_buffer, ours.queue, owned.buffer, into, offset, None, True)
        return
    buffer = buffer_of(data, offset, nbytes)

    def enqueue(queue: cl.CommandQueue) -> None:
        if nbytes > staging.THRESHOLD and staging.is_worth_it(device_id):
            staging.download(device_id, queue, buffer, offset, into)
        else:
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

    def copy_part(start: int, part: memoryview) -> None:
        span = Span(device_id, data, offset + start, part.nbytes)
        copy_from_host(span, part, stream)

    if devices.device(source.device_id).shares_memory:
        for start in range(0, nbytes, CHUNK):
            size = min(CHUNK, nbytes - start)
            with mapped(source.device_id, origin, source.offset + start, size) as part:
                copy_part(start, part)
        return

    def read(reading: cl.CommandQueue) -> None:
        staging.read(
            source.device_id,
            reading,
            origin,
            source.offset,
            nbytes,
            lambda start, part: copy_part(start, part.data),
        )

    run(source.device_id, 0, "copying between contexts", (origin,), read, blocks=True)
