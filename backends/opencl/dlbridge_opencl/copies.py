"""Copies and fills: between host and device, on a device, and between devices.

Copies from and to the host block until the host's memory is no longer needed.
Measured on PoCL 3.1 and Oclgrind from 64 bytes to 64 MiB: a blocking
clEnqueueWriteBuffer is as fast as one that is waited for later, and as map,
memcpy and unmap, or faster. Devices with memory of their own: see `staging`.
"""

from __future__ import annotations

import pyopencl as cl

from . import devices, staging
from .commands import run
from .memory import buffer_of
from .queues import synchronize
from .views import mapped

__all__ = ["copy", "copy_from_host", "copy_to_host", "fill"]

CHUNK = 16 << 20
"""Bytes that a copy between contexts maps at a time: some drivers hold a second
copy of mapped memory."""


def copy_from_host(device_id: int, data: int, offset: int, source: memoryview, stream: int) -> None:
    """Copy the bytes of *source* to *data*; *source* is not needed after the return."""
    buffer = buffer_of(data, offset, source.nbytes)

    def enqueue(queue: cl.CommandQueue) -> None:
        if source.nbytes > staging.THRESHOLD and staging.is_worth_it(device_id):
            staging.upload(device_id, queue, buffer, offset, source)
        else:
            cl.enqueue_copy(queue, buffer, source, dst_offset=offset, is_blocking=True)

    run(device_id, stream, "copying from the host", (buffer,), enqueue, blocks=True)


def copy_to_host(device_id: int, data: int, offset: int, into: memoryview, stream: int) -> None:
    """Copy to the host; done on return."""
    buffer = buffer_of(data, offset, into.nbytes)

    def enqueue(queue: cl.CommandQueue) -> None:
        if into.nbytes > staging.THRESHOLD and staging.is_worth_it(device_id):
            staging.download(device_id, queue, buffer, offset, into)
        else:
            cl.enqueue_copy(queue, into, buffer, src_offset=offset, is_blocking=True)

    run(device_id, stream, "copying to the host", (buffer,), enqueue, blocks=True)


def fill(device_id: int, data: int, offset: int, nbytes: int, value: int, stream: int) -> None:
    """Enqueue a fill with one byte value."""
    buffer = buffer_of(data, offset, nbytes)

    def enqueue(queue: cl.CommandQueue) -> None:
        cl.enqueue_fill_buffer(queue, buffer, bytes([value]), offset, nbytes)

    run(device_id, stream, "filling", (buffer,), enqueue)


def copy(
    device_id: int,
    data: int,
    offset: int,
    source_device_id: int,
    source: int,
    source_offset: int,
    nbytes: int,
    stream: int,
) -> None:
    """Enqueue a copy inside a context, or do one between contexts through the host."""
    target, origin = buffer_of(data, offset, nbytes), buffer_of(source, source_offset, nbytes)
    if target.context == origin.context:

        def enqueue(queue: cl.CommandQueue) -> None:
            cl.enqueue_copy(
                queue,
                target,
                origin,
                byte_count=nbytes,
                src_offset=source_offset,
                dst_offset=offset,
            )

        run(device_id, stream, "copying on the device", (target, origin), enqueue)
        return
    synchronize(device_id, stream)  # the core has ordered the source's work before it
    if devices.device(source_device_id).shares_memory:
        _from_mapped(
            device_id, target, offset, source_device_id, origin, source_offset, nbytes, stream
        )
        return

    def read(reading: cl.CommandQueue) -> None:
        staging.read(
            source_device_id,
            reading,
            origin,
            source_offset,
            nbytes,
            lambda start, part: copy_from_host(device_id, data, offset + start, part.data, stream),
        )

    run(source_device_id, 0, "copying between contexts", (origin,), read, blocks=True)


def _from_mapped(
    device_id: int,
    target: cl.MemoryObject,
    offset: int,
    source_device_id: int,
    origin: cl.MemoryObject,
    source_offset: int,
    nbytes: int,
    stream: int,
) -> None:
    for start in range(0, nbytes, CHUNK):
        size = min(CHUNK, nbytes - start)
        with mapped(source_device_id, origin, source_offset + start, size) as part:
            copy_from_host(device_id, target.int_ptr, offset + start, part, stream)
