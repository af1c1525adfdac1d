"""The region that a copy covers: a contiguous run, and few strided dimensions around it.

A region that a backend cannot copy in one call is copied run by run. Offsets,
strides and runs are in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

from dlbridge.core.plugins.lookup import backend_of, supports
from dlbridge.core.tensor.operand import require_compact
from dlbridge.core.values.layout import compact_strides, merge
from dlbridge.protocol import SupportsCopy, SupportsStridedCopy

if TYPE_CHECKING:
    from dlbridge.core.tensor.operand import Operand
    from dlbridge.core.values.devices import Device

__all__ = [
    "bytes_to_host",
    "can_copy_natively",
    "copy_strided",
    "needs_full_span",
    "packed_strides",
    "region",
]


def bytes_to_host(operand: Operand) -> int:
    """The bytes that a copy from a device to the host moves, with gaps where it must."""
    return operand.span()[1] if needs_full_span(operand) else operand.nbytes


def can_copy_natively(operand: Operand, target: Device) -> bool:
    """Whether the device of *operand* copies it to its own device *target* without the host."""
    plugin = backend_of(target)
    if plugin is not backend_of(operand.device) or not supports(plugin, SupportsCopy):
        return False
    steps = _strided_steps(operand)
    return not steps or (target is operand.device and all(step > 0 for step in steps))


def needs_full_span(operand: Operand) -> bool:
    """Whether the whole range that *operand* occupies is copied to the host.

    The host then selects the elements: a transposed or reversed tensor would
    need one call for each row.
    """
    steps = _strided_steps(operand)
    if not steps:
        return False
    in_order = all(step > 0 for step in steps) and _descend(steps, len(steps))
    return not (in_order and supports(backend_of(operand.device), SupportsStridedCopy))


def _strided_steps(operand: Operand) -> list[int]:
    """The byte strides that remain beside a contiguous run; none if it is compact."""
    if operand.contiguous or not operand.size:
        return []
    size = operand.dtype.itemsize
    strides = [step * size for step in operand.strides]
    packed = [step * size for step in compact_strides(operand.shape)]
    _, (steps, _), _ = merge(operand.shape, [strides, packed], size)
    return steps


def region(left: Operand, right: Operand) -> tuple[list[int], list[list[int]], int]:
    """The region that both operands cover, from `layout.merge`."""
    if left.dtype.is_subbyte and not left.padded:
        require_compact(left)
        require_compact(right)
        return [], [[], []], left.nbytes
    if left.contiguous and right.contiguous:
        return [], [[], []], left.nbytes
    size = left.dtype.itemsize
    steps = [[step * size for step in side.strides] for side in (left, right)]
    return merge(left.shape, steps, size)


def copy_strided(
    plugin: Any,
    shape: list[int],
    left: list[int],
    right: list[int],
    in_one_call: Callable[..., None],
    one_run: Callable[[int, int], None],
) -> None:
    """Copy a region by the backend's strided copy if it has one, otherwise run by run."""
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
    """Whether the innermost *inner* strides descend, as the contract requires of one call."""
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
