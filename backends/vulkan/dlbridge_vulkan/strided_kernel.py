"""Strided copies by a compute shader, where a vkCmdCopyBuffer would need a region per short run."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import gcd, prod
from pathlib import Path

from .compute import Kernel
from .device import Device
from .live import Live
from .memory import Allocation
from .strided import Side, at, parts, span

__all__ = ["kernel_takes", "strided_copy"]

SHADER = Path(__file__).with_name("shaders") / "strided_copy.spv"
PUSH = struct.Struct("=17I")
LOCAL_SIZE = 64
ROW = 1024
"""Work groups along x; a device allows at least 65535 along each axis."""

NDIM = 4
"""Dimensions of one dispatch, beside the run."""

SHORT = 512
"""Bytes of a run up to which the shader copies it; longer ones are regions of vkCmdCopyBuffer."""

FEW = 64
"""Runs up to which regions are used, whatever their length: no pipeline is needed for them."""

UNITS = 1 << 26
"""Units that one dispatch copies: systems reset a GPU whose dispatch takes seconds."""


def kernel_takes(
    source: Allocation, start: Side, target: Allocation, to: Side, shape: Sequence[int], run: int
) -> bool:
    """Whether the shader copies this region.

    The shader writes whole words. So it takes no region inside one buffer whose
    units are smaller, and no buffer whose last word is not its own.
    """
    if run > SHORT or prod(shape) <= FEW or min(shape) < 1:
        return False
    if source is target and _unit(start, to, run) < 4:
        return False
    return source.words % 4 == 0 and target.words % 4 == 0


def strided_copy(
    device: Device,
    source: Allocation,
    start: Side,
    target: Allocation,
    to: Side,
    shape: Sequence[int],
    run: int,
) -> int:
    """Enqueue the copy of a region that `kernel_takes`; the queue's value for it."""
    kernel = device.tools.get("strided copy")
    if kernel is None:
        made = Kernel(device, Live(), SHADER.read_bytes(), 2, PUSH.size, "main")
        kernel = device.tools.setdefault("strided copy", made)
    value = 0
    limits = device.physical.limits
    align = limits["min_storage_buffer_offset_alignment"]
    room = limits["max_storage_buffer_range"] - align
    for low, extent in _pieces(start[1], to[1], shape, run, room):
        sides = [at(start, low), at(to, low)]
        begins = [begin // align * align for begin, _ in sides]
        bindings = [
            (buffer, begin, side[0] - begin + span(side[1], extent, run))
            for buffer, begin, side in zip((source, target), begins, sides, strict=True)
        ]
        unit = _unit(sides[0], sides[1], run)
        count = prod(extent) * run // unit
        steps = [_four(values, fill) for values, fill in ((extent, 1), (start[1], 0), (to[1], 0))]
        push = PUSH.pack(
            unit,
            *(side[0] - begin for side, begin in zip(sides, begins, strict=True)),
            run // unit,
            count,
            *(number for row in steps for number in row),
        )
        groups = -(-count // LOCAL_SIZE)
        value = kernel.run(bindings, (min(groups, ROW), -(-groups // ROW)), push)
    return value


def _four(values: Sequence[int], fill: int) -> list[int]:
    """The innermost `NDIM` *values*, innermost first; those further out have one index here."""
    inner = list(reversed(values))[:NDIM]
    return inner + [fill] * (NDIM - len(inner))


def _pieces(
    strides: Sequence[int], others: Sequence[int], shape: Sequence[int], run: int, room: int
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """*shape* cut into ``(start, shape)`` that each fit one dispatch and two bindings."""
    limit = min(prod(shape[-NDIM:]), max(1, UNITS // run))
    while True:
        cut = list(parts(shape, limit))
        longest = max(span(steps, extent, run) for steps in (strides, others) for _, extent in cut)
        if longest <= room or limit == 1:
            return cut
        limit = max(1, limit // 2)


def _unit(start: Side, to: Side, run: int) -> int:
    """Bytes of the largest unit that all runs on both sides are whole multiples of."""
    return gcd(4, run, start[0], to[0], *start[1], *to[1])
