"""Arithmetic on shapes and strides: compactness, extent in memory, merged dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING

from dlbridge.core.public import for_guests

if TYPE_CHECKING:
    from .dtypes import DType

MAX_NBYTES = 1 << 57
"""The bytes of the largest address space that processors have today."""


def compact_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides (elements) of a row-major compact array; zero extents count as one."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


@for_guests
def strides_in_elements(
    shape: Sequence[int], strides: Sequence[int], itemsize: int
) -> tuple[int, ...] | None:
    """Return strides that count bytes as strides that count elements.

    Parameters
    ----------
    shape : sequence of int
        The extents.
    strides : sequence of int
        The distances between neighbours, in bytes.
    itemsize : int
        The bytes of an element.

    Returns
    -------
    tuple of int or None
        None if they are not whole where an element has a neighbour.

    Examples
    --------
    >>> from dlbridge.extending import strides_in_elements
    >>> strides_in_elements((2, 3), (12, 4), 4)
    (3, 1)
    >>> print(strides_in_elements((2, 3), (13, 4), 4))
    None
    """
    for extent, step in zip(shape, strides, strict=False):
        if step % itemsize and extent > 1 and 0 not in shape:
            return None
    return tuple([0 if step % itemsize else step // itemsize for step in strides])


def reach(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """The lowest element and one past the highest, counted from the first element."""
    low = high = 0
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 0:
            return 0, 0
        if stride > 0:
            high += (extent - 1) * stride
        else:
            low += (extent - 1) * stride
    return low, high + 1


@for_guests
def byte_reach(
    dtype: DType,
    shape: Sequence[int],
    strides: Sequence[int] | None = None,
    *,
    padded: bool = False,
) -> tuple[int, int]:
    """Return where the elements of a layout begin and end: what memory must have for `tensor_on`.

    Parameters
    ----------
    dtype : DType
        The type of an element.
    shape : tuple of int
        The extents, in elements.
    strides : tuple of int, optional
        The distances between neighbours, in elements; as many as extents. None: row-major,
        without gaps.
    padded : bool
        Whether elements below a byte take a byte each.

    Returns
    -------
    tuple of two ints
        The first byte and the end of the last one, counted from the first element. The first is
        negative where a stride is.

    Examples
    --------
    >>> from dlbridge.extending import byte_reach
    >>> byte_reach(bridge.dtype("int16"), (2, 3), (8, -1))
    (-4, 18)
    """
    bits = 8 * dtype.itemsize if padded else dtype.bits * dtype.lanes
    low, high = reach(shape, compact_strides(shape) if strides is None else strides)
    return low * bits >> 3, (high * bits + 7) >> 3


@for_guests
def why_impossible(address: int, byte_offset: int, low: int, high: int) -> str:
    """Return why no memory has some bytes that somebody has described.

    Whoever describes memory may lie; what no machine can have is seen here, for every way in.

    Parameters
    ----------
    address : int
        The address of the memory; 0 for a handle.
    byte_offset : int
        The bytes from there to the first element.
    low, high : int
        The first byte and the end of the last one, counted from the first element.

    Returns
    -------
    str
        The reason, for a message; empty if some machine may have them.

    Examples
    --------
    >>> from dlbridge.extending import why_impossible
    >>> why_impossible(4096, 0, 0, 1 << 20)
    ''
    >>> why_impossible((1 << 64) - 8, 0, 0, 64)[-18:]
    'which wraps around'
    """
    first = address + byte_offset
    if byte_offset >= MAX_NBYTES or high - low >= MAX_NBYTES:
        return (
            f"elements that span {high - low} bytes from byte_offset {byte_offset} on, more than "
            "the memory of any machine"
        )
    # As in C, the byte behind the last one has an address, too.
    if address and not 0 < first + low < first + high < 1 << 64:
        return (
            f"elements at {first + low:#x} to {first + high:#x} (data {address:#x}, byte_offset "
            f"{byte_offset}), which wraps around"
        )
    return ""


def shares_places(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements have the same address.

    No, too, for layouts of many dimensions where the exact answer would take seconds.
    """
    if 0 in shape:
        return False
    axes = [(abs(step), n) for n, step in zip(shape, strides, strict=True) if n > 1]
    axes.sort()
    within = 0
    for step, extent in axes:
        if step <= within:
            return _meet_somewhere(axes)
        within += step * (extent - 1)
    return False


def _meet_somewhere(axes: Sequence[tuple[int, int]]) -> bool:
    """The answer of numpy's solver, for dimensions of (stride, extent)."""
    import numpy as np

    strides, shape = zip(*axes, strict=True)
    if prod(shape) > reach(shape, strides)[1]:
        return True  # more elements than places, and maybe more than numpy can describe
    # Bytes stand for the elements; only addresses are compared.
    whole = np.lib.stride_tricks.as_strided(np.empty(1, "u1"), shape, strides)
    for _ in axes:
        # If elements meet that differ in this dimension, then two do of which one is at its start.
        with suppress(np.exceptions.TooHardError):
            # (The stubs know two of the numbers only.)
            if np.shares_memory(whole[:1], whole[1:], max_work=_MAX_WORK):  # type: ignore[arg-type]
                return True
        whole = whole[0]
    return False


_MAX_WORK = 10_000
"""Candidates that numpy's solver looks at for one dimension: some milliseconds."""


def merge(
    shape: Sequence[int], strides: Sequence[Sequence[int]], itemsize: int
) -> tuple[list[int], list[list[int]], int]:
    """The same region as few strided dimensions around one contiguous run.

    *strides* holds the byte strides of every side of a copy (source and
    target). Returns ``(shape, strides, run_nbytes)``; neighbouring dimensions are
    merged only where all sides allow it, and size-1 dimensions are dropped.
    """
    extents: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    run = itemsize
    for axis in reversed(range(len(shape))):
        extent = shape[axis]
        current = [side[axis] for side in strides]
        if extent == 1:
            continue
        if not extents and all(stride == run for stride in current):
            run *= extent
        elif extents and all(
            stride == side[0] * extents[0] for stride, side in zip(current, steps, strict=True)
        ):
            extents[0] *= extent
        else:
            extents.insert(0, extent)
            for side, stride in zip(steps, current, strict=True):
                side.insert(0, stride)
    return extents, steps, run
