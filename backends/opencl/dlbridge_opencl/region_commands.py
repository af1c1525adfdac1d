"""The commands that copy a region inside one context: rectangles, or a kernel for short runs.

OpenCL's rectangles need pitches that grow and divide each other. A region without
such pitches, an overlapping source for example, takes several rectangles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyopencl as cl

from . import devices
from .rectangles import Rectangle, rectangles
from .runs import copy_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["copy_region", "is_refusal", "needs_kernel", "packed_strides"]

SHORT_RUN = 256
"""Bytes. GPUs move rectangles with shorter rows much slower than their bytes (not confirmed
on hardware); PoCL does not."""

FEW_RUNS = 64
"""A region of so few runs is copied by rectangles on any device."""

MANY_RECTANGLES = 64
"""A region that would take more rectangles is copied in another way on any device but a
simulator, where kernels are slow: each command takes some 30 us on PoCL."""


def copy_region(
    device_id: int,
    queue: cl.CommandQueue,
    target: cl.MemoryObject,
    offset: int,
    strides: Sequence[int],
    source: cl.MemoryObject,
    source_offset: int,
    source_strides: Sequence[int],
    shape: Sequence[int],
    run_nbytes: int,
) -> None:
    """Enqueue the copy of a region between buffers of the queue's context; all in bytes."""
    parts = rectangles(shape, run_nbytes, strides, source_strides)
    if not needs_kernel(device_id, shape, run_nbytes, parts):
        there, at = _whole(target, offset)
        here, start = _whole(source, source_offset)
        sides = (there, at, strides, here, start, source_strides)
        try:
            if there == here:
                _through_scratch(queue, *sides, shape, run_nbytes)
            else:
                _copy(queue, there, at, here, start, parts)
            return
        except cl.Error as exc:
            if not is_refusal(device_id, exc):
                raise
    copy_runs(
        queue,
        target,
        offset,
        strides,
        source,
        source_offset,
        source_strides,
        shape,
        run_nbytes,
    )


def is_refusal(device_id: int, exc: BaseException | None) -> bool:
    """Whether a driver has refused a rectangle that OpenCL allows, and a kernel can copy it.

    NVIDIA's driver 580.159 gives CL_INVALID_VALUE where the last row, with its whole
    pitch, would end outside the buffer (tests/hardware/rectangles.py).
    """
    chosen = devices.device(device_id)
    if not chosen.thread_safe or not chosen.handle.compiler_available:
        return False
    return isinstance(exc, cl.Error) and exc.code == cl.status_code.INVALID_VALUE


def needs_kernel(
    device_id: int, shape: Sequence[int], run_nbytes: int, parts: list[Rectangle]
) -> bool:
    """Whether rectangles would take too long, and the device compiles kernels."""
    chosen = devices.device(device_id)
    if not chosen.thread_safe or not chosen.handle.compiler_available:
        return False
    short = run_nbytes < SHORT_RUN and int(np.prod(shape)) > FEW_RUNS
    return len(parts) > MANY_RECTANGLES or (short and not chosen.is_cpu)


def packed_strides(shape: Sequence[int], run_nbytes: int) -> tuple[int, ...]:
    """The byte strides of runs without gaps between them."""
    return tuple(run_nbytes * int(np.prod(shape[i + 1 :])) for i in range(len(shape)))


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
    dense = packed_strides(shape, run_nbytes)
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
