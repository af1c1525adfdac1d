"""The region that a copy covers: as few strided dimensions around a contiguous run.

What a backend cannot do in one call is done run by run. Offsets, strides and
runs are in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import Any

from dlbridge.core.plugins.lookup import backend_of, supports
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.values.devices import Device
from dlbridge.core.values.layout import compact_strides, merge, reach
from dlbridge.errors import ExchangeError
from dlbridge.protocol import SupportsCopy, SupportsStridedCopy

__all__ = [
    "bytes_to_host",
    "comes_whole",
    "copies_by_itself",
    "copy_strided",
    "packed_strides",
    "region",
    "require_compact",
]


def bytes_to_host(tensor: Tensor) -> int:
    """Bytes that a copy of a device *tensor* to the host moves: with its gaps where it has to."""
    if comes_whole(tensor):
        low, high = reach(tensor.shape, tensor.strides)
        return (high - low) * tensor.itemsize
    return tensor.nbytes


def copies_by_itself(tensor: Tensor, target: Device) -> bool:
    """Whether the device of *tensor* copies it to its own device *target* without the host."""
    plugin = backend_of(target)
    if plugin is not backend_of(tensor.device) or not supports(plugin, SupportsCopy):
        return False
    steps = _strided_steps(tensor)
    return not steps or (target is tensor.device and all(step > 0 for step in steps))


def comes_whole(tensor: Tensor) -> bool:
    """Whether the range that *tensor* reaches comes to the host, to be picked apart there.

    A transposed or reversed tensor would take a call per row.
    """
    steps = _strided_steps(tensor)
    if not steps:
        return False
    in_order = all(step > 0 for step in steps) and _descend(steps, len(steps))
    return not (in_order and supports(backend_of(tensor.device), SupportsStridedCopy))


def _strided_steps(tensor: Tensor) -> list[int]:
    """The byte strides of *tensor* that remain beside a contiguous run; none if it is compact."""
    if tensor._array.flags.c_contiguous or not tensor.size:
        return []
    size = tensor.itemsize
    strides = [step * size for step in tensor.strides]
    packed = [step * size for step in compact_strides(tensor.shape)]
    _, (steps, _), _ = merge(tensor.shape, [strides, packed], size)
    return steps


def region(left: Tensor, right: Tensor) -> tuple[list[int], list[list[int]], int]:
    """The region that both tensors cover, as `layout.merge` gives it."""
    if left.dtype.is_subbyte and not left.is_padded:
        require_compact(left)
        require_compact(right)
        return [], [[], []], left.nbytes
    if left._array.flags.c_contiguous and right._array.flags.c_contiguous:
        return [], [[], []], left.nbytes
    size = left.itemsize
    steps = [[step * size for step in side.strides] for side in (left, right)]
    return merge(left.shape, steps, size)


def require_compact(tensor: Tensor) -> None:
    """ExchangeError for packed sub-byte elements with gaps."""
    if not tensor.is_contiguous():
        raise ExchangeError(
            f"packed {tensor.dtype} elements with strides {tensor.strides}: only compact tensors "
            "of packed sub-byte types can be copied"
        )


def copy_strided(
    plugin: Any,
    shape: list[int],
    left: list[int],
    right: list[int],
    in_one_call: Callable[..., None],
    one_run: Callable[[int, int], None],
) -> None:
    """Copy a region by the backend's strided copy if it has one, else run by run."""
    inner = 0
    if supports(plugin, SupportsStridedCopy) and all(step > 0 for step in (*left, *right)):
        most = min(plugin.max_strided_ndim, len(shape))
        inner = next(n for n in range(most, -1, -1) if _descend(left, n) and _descend(right, n))
    cut = len(shape) - inner
    for at, begin in _offsets(shape[:cut], left[:cut], right[:cut]):
        if inner:
            in_one_call(plugin, at, begin, shape[cut:], left[cut:], right[cut:])
        else:
            one_run(at, begin)


def _descend(steps: list[int], inner: int) -> bool:
    """Whether the innermost *inner* steps descend, as the contract says of one call."""
    part = steps[len(steps) - inner :]
    return all(outer >= step for outer, step in pairwise(part))


def _offsets(shape: list[int], left: list[int], right: list[int]) -> Iterator[tuple[int, int]]:
    for position in product(*map(range, shape)):
        yield (
            sum(i * step for i, step in zip(position, left, strict=True)),
            sum(i * step for i, step in zip(position, right, strict=True)),
        )


def packed_strides(shape: list[int], run: int) -> list[int]:
    """The byte strides of runs that follow each other without gaps."""
    return [step * run for step in compact_strides(shape)]
