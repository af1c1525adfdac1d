"""The demo's filter, a box blur of an image, for devices that compile OpenCL C.

Running sums along the rows, then down the columns: a few steps per pixel for
every radius, so that a simulator needs seconds only.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from ctypes import c_int32, c_uint64
from typing import Any

from dlbridge.protocol import Span

__all__ = ["SOURCE", "Blur"]

SOURCE = """
/* sums[y, x, c] = the sum of source[y, x - radius .. x + radius, c] inside the image. */
__kernel void along_rows(__global const uchar *source, __global uint *sums,
                         ulong offset, int width, int channels, int radius)
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
__kernel void down_columns(__global const uint *sums, __global uchar *target,
                           ulong offset, int height, int width, int channels, int radius)
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
"""The kernels ``along_rows`` and ``down_columns``, for uint8, as text to compile."""


class Blur(ABC):
    """``box_blur`` for a backend whose ``data`` are addresses."""

    @abstractmethod
    def allocate(self, device_id: int, nbytes: int, alignment: int, stream: int) -> int:
        """New memory."""

    @abstractmethod
    def free(self, device_id: int, data: int, stream: int) -> None:
        """Free memory, once the kernels that were launched are done with it."""

    @abstractmethod
    def run_kernel(
        self,
        place: tuple[int, int],
        kernel: tuple[str, str],
        size: list[int],
        arguments: list[Any],
    ) -> None:
        """Launch a kernel of OpenCL C.

        Parameters
        ----------
        place : tuple[int, int]
            The device's number and the stream.
        kernel : tuple[str, str]
            The source and the kernel's name.
        size : list[int]
            The kernel runs once for each index below it; the first is ``get_global_id(0)``.
        arguments : list[Any]
            Addresses as integers of Python; numbers as integers of ctypes.
        """

    def box_blur(
        self, target: Span, source: Span, shape: tuple[int, int, int], radius: int, stream: int
    ) -> None:
        """Launch the blur of the image in *source* into *target*."""
        height, width, channels = map(c_int32, shape)
        place, offset = (target.device_id, stream), c_uint64(0)
        begin, end = source.data + source.offset, target.data + target.offset
        rows, columns = [shape[0], shape[2]], [shape[1], shape[2]]
        extent = [width, channels, c_int32(radius)]
        sums = self.allocate(target.device_id, 4 * math.prod(shape), 256, stream)
        try:
            self.run_kernel(place, (SOURCE, "along_rows"), rows, [begin, sums, offset, *extent])
            extent.insert(0, height)
            self.run_kernel(place, (SOURCE, "down_columns"), columns, [sums, end, offset, *extent])
        finally:
            self.free(target.device_id, sums, stream)
