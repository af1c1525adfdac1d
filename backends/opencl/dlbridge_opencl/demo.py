"""The demo's filter: a box blur of an image, as an OpenCL kernel."""

from __future__ import annotations

import functools

import numpy as np
import pyopencl as cl

from .commands import Commands
from .memory import buffer_of

__all__ = ["box_blur"]

SOURCE = """
__kernel void box_blur(__global const uchar *source, ulong source_offset,
                       __global uchar *target, ulong target_offset,
                       int height, int width, int channels, int radius)
{
    const int x = get_global_id(0), y = get_global_id(1), c = get_global_id(2);
    source += source_offset;
    target += target_offset;
    uint sum = 0, count = 0;
    for (int v = max(y - radius, 0); v <= min(y + radius, height - 1); ++v)
        for (int u = max(x - radius, 0); u <= min(x + radius, width - 1); ++u) {
            sum += source[((size_t)v * width + u) * channels + c];
            ++count;
        }
    target[((size_t)y * width + x) * channels + c] = (sum + count / 2) / count;
}
"""


def box_blur(
    device_id: int,
    source: int,
    source_offset: int,
    target: int,
    target_offset: int,
    shape: tuple[int, int, int],
    radius: int,
    stream: int,
) -> None:
    """Enqueue the blur of the image *source* into *target*, of the same context."""
    height, width, channels = shape
    nbytes = height * width * channels
    image = buffer_of(source, source_offset, nbytes)
    blurred = buffer_of(target, target_offset, nbytes)
    with Commands(device_id, stream, "blurring an image", blurred, image) as queue:
        kernel = cl.Kernel(_program(queue.context), "box_blur")
        kernel(
            queue,
            (width, height, channels),
            None,
            image,
            np.uint64(source_offset),
            blurred,
            np.uint64(target_offset),
            *map(np.int32, (height, width, channels, radius)),
        )


@functools.lru_cache(maxsize=8)
def _program(context: cl.Context) -> cl.Program:
    return cl.Program(context, SOURCE).build()
