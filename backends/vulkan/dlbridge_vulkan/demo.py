"""The demo's filter: a box blur of an image, as a compute shader."""

from __future__ import annotations

import struct
from pathlib import Path

from dlbridge.errors import ExchangeError

from .compute import Kernel
from .device import Device
from .live import Live

__all__ = ["box_blur"]

SHADER = Path(__file__).with_name("shaders") / "box_blur.spv"
PUSH = struct.Struct("=IIiiiiII")
LOCAL_SIZE = 64
ROW = 1024
"""Work groups along x; a device allows at least 65535 along each axis."""

READS = 1 << 27
"""Bytes that one dispatch reads: systems reset a GPU whose dispatch takes seconds."""


def box_blur(
    device: Device,
    live: Live,
    source: tuple[int, int],
    target: tuple[int, int],
    shape: tuple[int, int, int],
    radius: int,
) -> None:
    """Blur one image into another, both ``(data, offset)``; done on return.

    The pipeline is made for this call and freed after it, which waits.
    """
    height, width, channels = shape
    nbytes = height * width * channels
    (image, source_offset), (blurred, target_offset) = source, target
    if target_offset % 4:
        raise ExchangeError(
            f"the blurred image begins {target_offset} bytes into its buffer; the shader writes "
            "32-bit words, so it must begin at a multiple of 4"
        )
    # Both buffers are bound whole, and the offsets travel as push constants: a
    # binding's offset would have to be a multiple of 16 to 256 bytes.
    bindings = [
        (allocation, 0, allocation.nbytes)
        for allocation in (
            live.at(image, source_offset, nbytes),
            live.at(blurred, target_offset, nbytes),
        )
    ]
    kernel = Kernel(device, live, SHADER.read_bytes(), 2, PUSH.size, "main")
    for begin, end in pieces(nbytes, radius):
        push = PUSH.pack(source_offset, target_offset, height, width, channels, radius, begin, end)
        groups = -(-(end - begin) // (4 * LOCAL_SIZE))
        kernel.run(bindings, (min(groups, ROW), -(-groups // ROW)), push)


def pieces(nbytes: int, radius: int) -> list[tuple[int, int]]:
    """The bytes of the image, cut so that no dispatch reads much more than `READS` bytes."""
    step = max(4 * LOCAL_SIZE, READS // (2 * radius + 1) ** 2 // 4 * 4)
    return [(begin, min(begin + step, nbytes)) for begin in range(0, nbytes, step)]
