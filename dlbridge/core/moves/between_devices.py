"""Copies between two devices' memories: by the backend, or staged through the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.core.plugins.lookup import plugin_of
from dlbridge.core.tensor.operand import require_compact
from dlbridge.protocol import Region, Span

from .host_and_device import finish_work, from_host, restore, to_host
from .regions import can_copy_natively, copy_strided, is_faster_on_device, region

if TYPE_CHECKING:
    from dlbridge.core.tensor.operand import Operand

    from .within_host import Progress

__all__ = ["on_device"]


def on_device(target: Operand, source: Operand, progress: Progress | None) -> None:
    """Copy a device tensor to a device.

    On one device it is queued on the current stream, else complete on return.
    """
    if (
        _overlap(target, source)
        or not can_copy_natively(source, target.device)
        or not can_copy_natively(target, source.device)
        or not is_faster_on_device(source, target)
    ):
        _staged(target, source, progress)
        return
    plugin = plugin_of(target.device)
    copy = plugin.copy
    assert copy is not None  # `can_copy_natively` has asked
    same = target.device is source.device
    shape, (there, here), run = region(target, source)
    index = target.device.index
    stream = target.stream if target.is_new else target.access()
    data, offset = target.data, target.byte_offset
    other, start = source.data, source.byte_offset
    source_stream = source.access()
    if not same:
        finish_work(source, source_stream)

    origin = source.device.index

    def copy_run(at: int, begin: int) -> None:
        into = Span(index, data, offset + at, run)
        copy(into, Span(origin, other, start + begin, run), stream)

    def in_one_call(plugin: Any, at: int, into: Region, begin: int, taken: Region) -> None:
        plugin.copy_strided(
            Span(index, data, offset + at, into.extent),
            into,
            Span(origin, other, start + begin, taken.extent),
            taken,
            stream,
        )

    if not shape:
        copy_run(0, 0)
    else:
        copy_strided(plugin, shape, there, here, run, in_one_call, copy_run)
    if not same:
        finish_work(target, stream)


def _is_import(operand: Operand) -> bool:
    return operand.memory is not None and operand.memory.is_import


def _overlap(target: Operand, source: Operand) -> bool:
    """Whether the two use the same bytes: the order in which devices copy them is undefined."""
    if _is_import(target) and _is_import(source):
        return True  # host memory used in place, by two handles or two devices perhaps
    if target.device is not source.device:
        return False
    handles = not target.device.is_address
    if handles and target.data != source.data:
        return False
    spans = []
    for side in (target, source):
        low, nbytes = side.span()
        start = side.byte_offset + low + (0 if handles else side.data)
        spans.append((start, start + nbytes))
    (low, high), (begin, end) = spans
    return low < end and begin < high


def _staged(target: Operand, source: Operand, progress: Progress | None) -> None:
    """Copy through packed host memory."""
    import numpy as np

    if source.dtype.is_subbyte and not source.padded:
        require_compact(source)
        require_compact(target)
    host = restore(np.empty(max(source.nbytes, 1), "u1"), source)
    to_host(host, source, progress)
    from_host(target, host, None)
