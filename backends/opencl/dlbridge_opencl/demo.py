"""The demo's filter: a box blur of an image, as OpenCL kernels.

Running sums along the rows, then down the columns: a few steps per pixel for
every radius, so that a simulator needs seconds only.
"""

from __future__ import annotations

import functools

import numpy as np
import pyopencl as cl

from .commands import run
from .forking import inherited
from .memory import buffer_of

__all__ = ["box_blur"]

SOURCE = """
/* sums[y, x, c] = the sum of source[y, x - radius .. x + radius, c] inside the image. */
__kernel void along_rows(__global const uchar *source, ulong offset, __global uint *sums,
                         int width, int channels, int radius)
{
    const size_t start = get_global_id(0) * width * channels + get_global_id(1);
    source += offset;
    uint sum = 0;
    for (int x = 0; x < min(radius, width); ++x)
        sum += source[start + x * channels];
    for (int x = 0; x < width; ++x) {
        if (x + radius < width) sum += source[start + (x + radius) * channels];
        if (x - radius > 0) sum -= source[start + (x - radius - 1) * channels];
        sums[start + x * channels] = sum;
    }
}

/* target[y, x, c] = the mean over the square, of the sums of its rows. */
__kernel void down_columns(__global const uint *sums, __global uchar *target, ulong offset,
                           int height, int width, int channels, int radius)
{
    const int x = get_global_id(0);
    const size_t start = x * channels + get_global_id(1), row = (size_t)width * channels;
    const uint columns = min(x + radius, width - 1) - max(x - radius, 0) + 1;
    target += offset;
    uint sum = 0;
    for (int y = 0; y < min(radius, height); ++y)
        sum += sums[start + y * row];
    for (int y = 0; y < height; ++y) {
        if (y + radius < height) sum += sums[start + (y + radius) * row];
        if (y - radius > 0) sum -= sums[start + (y - radius - 1) * row];
        const uint count = columns * (min(y + radius, height - 1) - max(y - radius, 0) + 1);
        target[start + y * row] = (sum + count / 2) / count;
    }
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

    def enqueue(queue: cl.CommandQueue) -> None:
        program = _program(queue.context)
        # The driver keeps it until the kernels are done.
        sums = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, size=4 * nbytes)
        extents = [np.int32(n) for n in (height, width, channels, radius)]
        cl.Kernel(program, "along_rows")(
            queue, (height, channels), None, image, np.uint64(source_offset), sums, *extents[1:]
        )
        cl.Kernel(program, "down_columns")(
            queue, (width, channels), None, sums, blurred, np.uint64(target_offset), *extents
        )

    run(device_id, stream, "blurring an image", (blurred, image), enqueue)


@inherited
@functools.lru_cache(maxsize=8)
def _program(context: cl.Context) -> cl.Program:
    return cl.Program(context, SOURCE).build()
