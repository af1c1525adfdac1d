"""Strided regions: cut into parts that fit, as vkCmdCopyBuffer regions or numpy views.

A region is *shape* runs of *run_nbytes* contiguous bytes, *strides* bytes apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np

from .library import ffi

__all__ = ["MAX_REGIONS", "Side", "at", "host_copy", "packed_strides", "parts", "regions", "span"]

MAX_REGIONS = 16384
"""Regions of one vkCmdCopyBuffer: 24 bytes each on the host and in its command buffer."""

Side = tuple[int, Sequence[int]]
"""Where a region begins (an offset or an address) and its strides, in bytes."""

UNITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def span(strides: Sequence[int], shape: Sequence[int], run_nbytes: int) -> int:
    """Bytes from the first to the last byte of a region."""
    return sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + run_nbytes


def at(side: Side, low: Sequence[int]) -> Side:
    """The side of the part that begins at index *low*."""
    begin, strides = side
    return begin + sum(i * s for i, s in zip(low, strides, strict=True)), strides


def packed_strides(shape: Sequence[int], run_nbytes: int) -> tuple[int, ...]:
    """The strides, in bytes, of the region without gaps."""
    return tuple(run_nbytes * prod(shape[axis + 1 :]) for axis in range(len(shape)))


def parts(shape: Sequence[int], limit: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Cut *shape* into ``(start, shape)`` of at most *limit* runs each, in C order."""
    axis = next((a for a in range(len(shape)) if prod(shape[a + 1 :]) <= limit), len(shape) - 1)
    step = max(1, limit // prod(shape[axis + 1 :]))
    inner = tuple(shape[axis + 1 :])
    for outer in product(*map(range, shape[:axis])):
        for low in range(0, shape[axis], step):
            start = (*outer, low, *(0 for _ in inner))
            yield start, (*(1 for _ in outer), min(step, shape[axis] - low), *inner)


def regions(
    source: tuple[int, Sequence[int]],
    target: tuple[int, Sequence[int]],
    shape: Sequence[int],
    run_nbytes: int,
) -> Any:
    """A C array of VkBufferCopy, one per run, for ``(offset, strides)`` on both sides."""
    table: Any = np.empty((prod(shape), 3), np.uint64)
    table[:, 0] = _offsets(*source, shape)
    table[:, 1] = _offsets(*target, shape)
    table[:, 2] = run_nbytes
    return ffi.from_buffer("VkBufferCopy[]", table)


def host_copy(
    source: tuple[int, Sequence[int]],
    target: tuple[int, Sequence[int]],
    shape: Sequence[int],
    run_nbytes: int,
) -> None:
    """Copy a region between two host addresses, ``(address, strides)`` on both sides."""
    np.copyto(_view(*target, shape, run_nbytes), _view(*source, shape, run_nbytes))


def _offsets(offset: int, strides: Sequence[int], shape: Sequence[int]) -> Any:
    steps: Any = [np.arange(n, dtype=np.uint64) * s for n, s in zip(shape, strides, strict=True)]
    return (reduce(np.add.outer, steps) + np.uint64(offset)).ravel()


def _view(address: int, strides: Sequence[int], shape: Sequence[int], run_nbytes: int) -> Any:
    # A run of 1, 2, 4 or 8 bytes is one element, and much faster than its bytes.
    unit = UNITS.get(run_nbytes, np.uint8)
    memory = ffi.buffer(ffi.cast("char *", address), span(strides, shape, run_nbytes))
    size = np.dtype(unit).itemsize
    return np.ndarray((*shape, run_nbytes // size), unit, buffer=memory, strides=(*strides, size))
