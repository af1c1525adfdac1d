"""The region that a copy covers: a contiguous run, and few strided dimensions around it.

A region that a backend cannot copy in one call is copied run by run. Offsets,
strides and runs are in bytes.
"""

from __future__ import annotations

from itertools import product
from math import prod
from operator import mul
from typing import TYPE_CHECKING, Any

from dlbridge.core.plugins.lookup import plugin_of
from dlbridge.core.tensor.operand import require_compact
from dlbridge.core.values.layout import compact_strides, merge
from dlbridge.protocol import Region

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.core.plugins.records import Plugin
    from dlbridge.core.tensor.operand import Operand
    from dlbridge.core.values.devices import Device

    Layout = tuple[list[int], list[list[int]], int]
    """A region from `layout.merge`: its shape, the strides of both sides, and the run."""
    Place = Callable[[int, int], object]


CALL = 64 << 10
"""The bytes that a copy through the host moves in the time of one call to a backend.

A call takes some 10 us, most of them in Python and the driver; host and device
exchange several GB/s.
"""


def bytes_to_host(operand: Operand) -> int:
    """The bytes that a copy from a device to the host moves, with gaps where it must."""
    return operand.span()[1] if needs_full_span(operand) else operand.nbytes


def can_copy_natively(operand: Operand, target: Device) -> bool:
    """Whether the device of *operand* copies it to its own device *target* without the host."""
    plugin = plugin_of(target)
    if plugin is not plugin_of(operand.device) or plugin.copy is None:
        return False
    _, (steps, _), _ = _with_compact(operand)
    return not steps or (target is operand.device and all(step > 0 for step in steps))


def is_faster_on_device(source: Operand, target: Operand | None = None) -> bool:
    """Whether a device copies *source* itself sooner than by way of the host.

    *target* is on the same device; None is a new compact tensor there. One call
    for each of many short runs takes longer than to copy all that lies between
    the runs to the host once, and the elements back.
    """
    if source.contiguous and (target is None or target.contiguous):
        return True
    plugin = plugin_of(source.device)
    if target is None:
        here = _with_compact(source)
        back = 1
    else:
        here = region(target, source)
        back = _calls(plugin, *_with_compact(target))
    through_host = _cost_to_host(source) + source.nbytes + back * CALL
    return _calls(plugin, *here) * CALL <= through_host


def needs_full_span(operand: Operand) -> bool:
    """Whether the whole range that *operand* occupies is copied to the host.

    The host then selects the elements, as that takes less time than one call for
    each run: of a transposed or reversed tensor, for example.
    """
    if operand.contiguous or not operand.size:
        return False
    return _cost_to_host(operand) == operand.span()[1] + CALL


def _cost_to_host(operand: Operand) -> int:
    """The bytes that could be copied in the time that *operand* takes to the host."""
    runs = _calls(plugin_of(operand.device), *_with_compact(operand)) * CALL + operand.nbytes
    return min(runs, operand.span()[1] + CALL)


def _with_compact(operand: Operand) -> Layout:
    """The region that *operand* shares with a compact tensor, from `layout.merge`."""
    if operand.contiguous or not operand.size:
        return [], [[], []], operand.nbytes
    size = operand.dtype.itemsize
    strides = [step * size for step in operand.strides]
    packed = [step * size for step in compact_strides(operand.shape)]
    return merge(operand.shape, [strides, packed], size)


def _calls(plugin: Plugin, shape: list[int], strides: list[list[int]], run: int) -> int:
    """How many calls `copy_strided` makes for a region."""
    return prod(shape[: len(shape) - _dims_of_one_call(plugin, shape, strides, run)])


def _dims_of_one_call(plugin: Plugin, shape: list[int], strides: list[list[int]], run: int) -> int:
    """How many of the innermost strided dimensions the backend copies in one call."""
    if plugin.copy_strided is None:
        return 0
    if any(step <= 0 for side in strides for step in side):
        return 0
    most = min(plugin.max_strided_ndim, len(shape))
    return min(_nested(shape, side, run, most) for side in strides)


def _nested(shape: list[int], steps: list[int], run: int, most: int) -> int:
    """How many of the innermost strided dimensions are as the contract requires of one call.

    Each step is at least as long as all that it steps over, so that no runs overlap, and at
    least as long as the next inner step. Windows over one tensor overlap: they are copied run
    by run.
    """
    extent, inner = run, 0
    for count in range(most):
        axis = len(shape) - 1 - count
        if steps[axis] < max(extent, inner):
            return count
        inner = steps[axis]
        extent += (shape[axis] - 1) * inner
    return most


def region(left: Operand, right: Operand) -> Layout:
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


def with_packed(layout: Layout) -> Layout:
    """The first side of the region, beside runs that follow each other without gaps."""
    shape, (steps, _), run = layout
    return shape, [steps, [step * run for step in compact_strides(shape)]], run


def copy_region(
    plugin: Plugin,
    layout: Layout,
    there: Place,
    here: Place,
    copy: Callable[[Any, Any, int], None],
    strided: Callable[..., None] | None,
    stream: int,
) -> None:
    """Copy a region by *strided* of the backend where it has that, otherwise run by run by *copy*.

    *there* and *here* give a side of a call: so many bytes of it, from an offset on.
    """
    shape, sides, run = layout
    inner = _dims_of_one_call(plugin, shape, sides, run)
    cut = len(shape) - inner
    into, taken = (Region(tuple(shape[cut:]), tuple(side[cut:]), run) for side in sides)
    for position in product(*map(range, shape[:cut])):
        at, begin = (sum(map(mul, position, side)) for side in sides)
        if inner and strided is not None:
            strided(there(at, into.extent), into, here(begin, taken.extent), taken, stream)
        else:
            copy(there(at, run), here(begin, run), stream)
