"""The demo's filter: a box blur of an image, by the kernels of the kit."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import pyopencl as cl

from dlbridge.kit.blur import SOURCE

from .commands import run
from .forking import inherited
from .memory import buffer_of

if TYPE_CHECKING:
    from dlbridge.protocol import Span

__all__ = ["box_blur"]


def box_blur(
    target: Span,
    source: Span,
    shape: tuple[int, int, int],
    radius: int,
    stream: int,
) -> None:
    """Enqueue the blur of the image *source* into *target*, of the same context."""
    height, width, channels = shape
    nbytes = height * width * channels
    image = buffer_of(source.data, source.offset, nbytes)
    blurred = buffer_of(target.data, target.offset, nbytes)

    def enqueue(queue: cl.CommandQueue) -> None:
        program = _program(queue.context)
        # The driver keeps it until the kernels are done.
        sums = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, size=4 * nbytes)
        extents = [np.int32(n) for n in (height, width, channels, radius)]
        cl.Kernel(program, "along_rows")(
            queue, (height, channels), None, image, sums, np.uint64(source.offset), *extents[1:]
        )
        cl.Kernel(program, "down_columns")(
            queue, (width, channels), None, sums, blurred, np.uint64(target.offset), *extents
        )

    run(target.device_id, stream, "blurring an image", (blurred, image), enqueue)


@inherited
@functools.lru_cache(maxsize=8)
def _program(context: cl.Context) -> cl.Program:
    return cl.Program(context, SOURCE).build()
