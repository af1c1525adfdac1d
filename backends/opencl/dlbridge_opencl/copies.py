"""Copies and fills: between host and device, on a device, and between devices.

Host copies block until they are done. Measured on PoCL 3.1 and Oclgrind from 64
bytes to 64 MiB: a blocking clEnqueueWriteBuffer is as fast as one that is waited
for later, and as map, memcpy and unmap, or faster. The source can then go at once.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyopencl as cl

from .commands import Commands
from .memory import buffer_of
from .queues import synchronize

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["copy", "copy_from_host", "copy_to_host", "fill", "mapped"]

CHUNK = 16 << 20
"""Bytes that a copy between contexts maps at a time: some drivers hold a second
copy of what is mapped."""


def copy_from_host(device_id: int, data: int, offset: int, source: memoryview, stream: int) -> None:
    """Copy the bytes of *source* to *data*; done on return."""
    buffer = buffer_of(data, offset, source.nbytes)
    with Commands(device_id, stream, "copying from the host", buffer) as queue:
        cl.enqueue_copy(queue, buffer, source, dst_offset=offset, is_blocking=True)


def copy_to_host(device_id: int, data: int, offset: int, into: memoryview, stream: int) -> None:
    """Copy to the host; done on return."""
    buffer = buffer_of(data, offset, into.nbytes)
    with Commands(device_id, stream, "copying to the host", buffer) as queue:
        cl.enqueue_copy(queue, into, buffer, src_offset=offset, is_blocking=True)


def fill(device_id: int, data: int, offset: int, nbytes: int, value: int, stream: int) -> None:
    """Enqueue a fill with one byte value."""
    buffer = buffer_of(data, offset, nbytes)
    with Commands(device_id, stream, "filling", buffer) as queue:
        cl.enqueue_fill_buffer(queue, buffer, bytes([value]), offset, nbytes)


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
        with Commands(device_id, stream, "copying on the device", target, origin) as queue:
            cl.enqueue_copy(
                queue,
                target,
                origin,
                byte_count=nbytes,
                src_offset=source_offset,
                dst_offset=offset,
            )
        return
    synchronize(device_id, stream)  # what orders the source's work before the copy
    doing = "copying between contexts"
    with (
        Commands(source_device_id, 0, doing, origin) as reading,
        Commands(device_id, stream, doing, target) as writing,
    ):
        for start in range(0, nbytes, CHUNK):
            size = min(CHUNK, nbytes - start)
            with mapped(reading, origin, source_offset + start, size) as bytes_:
                cl.enqueue_copy(
                    writing, target, bytes_, dst_offset=offset + start, is_blocking=True
                )


@contextmanager
def mapped(
    queue: cl.CommandQueue, buffer: cl.MemoryObject, offset: int, nbytes: int
) -> Iterator[memoryview]:
    """The bytes of a region for the host to read, while the block runs."""
    array, _ = cl.enqueue_map_buffer(
        queue, buffer, cl.map_flags.READ, offset, (nbytes,), np.uint8, is_blocking=True
    )
    try:
        yield array.data
    finally:
        array.base.release(queue)
