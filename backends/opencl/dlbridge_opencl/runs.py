"""Copy many short runs of bytes by one kernel, where rectangles would take too long."""

from __future__ import annotations

import functools
from math import gcd
from typing import TYPE_CHECKING

import numpy as np
import pyopencl as cl

from .forking import inherited

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["copy_runs"]

UNITS = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong", 16: "uint4"}
"""Bytes of a word -> its type in OpenCL C."""

SOURCE = """
/* Each work item copies one word of a run. Offsets and strides are in words. */
__kernel void copy_runs(__global WORD *target, ulong offset, ulong row, ulong slice,
                        __global const WORD *source, ulong source_offset, ulong source_row,
                        ulong source_slice, ulong run)
{
    const ulong y = get_global_id(0) / run, x = get_global_id(0) % run, z = get_global_id(1);
    target[offset + z * slice + y * row + x] =
        source[source_offset + z * source_slice + y * source_row + x];
}
"""


def copy_runs(
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
    """Enqueue the copy of a region with one or two strided dimensions; all in bytes.

    The regions may be in one buffer, as long as they have no bytes in common.
    """
    word = gcd(16, run_nbytes, offset, source_offset, *strides, *source_strides)
    slices, rows = [1, *shape][-2:]
    outer, inner = [0, *strides][-2:]
    source_outer, source_inner = [0, *source_strides][-2:]
    run = run_nbytes // word
    numbers = [
        np.uint64(n // word)
        for n in (offset, inner, outer, source_offset, source_inner, source_outer, run_nbytes)
    ]
    kernel = cl.Kernel(_program(queue.context, word), "copy_runs")
    kernel(queue, (run * rows, slices), None, target, *numbers[:3], source, *numbers[3:])


@inherited
@functools.lru_cache(maxsize=16)
def _program(context: cl.Context, word: int) -> cl.Program:
    return cl.Program(context, SOURCE).build([f"-DWORD={UNITS[word]}"])
