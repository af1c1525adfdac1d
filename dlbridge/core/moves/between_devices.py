"""Copies between two device tensors: by the backend, or staged through the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.core.plugins.lookup import backend_of
from dlbridge.core.plugins.streams import access
from dlbridge.core.tensor.tensor import Tensor, wrap_array
from dlbridge.core.values.layout import reach

from .host_and_device import finish, from_host, restore, to_host
from .regions import copies_by_itself, copy_strided, region, require_compact

if TYPE_CHECKING:
    from .within_host import Progress

__all__ = ["on_device"]


def on_device(target: Tensor, source: Tensor, progress: Progress | None) -> None:
    """Copy a device tensor to a device.

    On one device it is queued on the current stream, else complete on return.
    """
    if (
        _overlap(target, source)
        or not copies_by_itself(source, target.device)
        or not copies_by_itself(target, source.device)
    ):
        _staged(target, source, progress)
        return
    plugin: Any = backend_of(target.device)
    same = target.device is source.device
    shape, (there, here), run = region(target, source)
    index, stream = target.device.index, access(target._memory)
    data, offset = target._memory.data, target._byte_offset
    other, start = source._memory.data, source._byte_offset
    source_stream = access(source._memory)
    if not same:
        finish(source, source_stream)

    def copy_run(at: int, begin: int) -> None:
        plugin.copy(
            index, data, offset + at, source.device.index, other, start + begin, run, stream
        )

    if not shape:
        copy_run(0, 0)
    else:
        copy_strided(
            plugin,
            shape,
            there,
            here,
            lambda copy, at, begin, outer, steps, froms: copy.copy_strided(
                index, data, offset + at, steps, other, start + begin, froms, outer, run, stream
            ),
            copy_run,
        )
    if not same:
        finish(target, stream)


def _overlap(target: Tensor, source: Tensor) -> bool:
    """Whether the two reach the same bytes: devices copy those in any order, or refuse."""
    if target.device is not source.device:
        return False
    if isinstance(target._memory.owner, Tensor) and isinstance(source._memory.owner, Tensor):
        return True  # host memory used in place, by two handles perhaps
    handles = not target.device.is_address
    if handles and target._memory.data != source._memory.data:
        return False
    spans = []
    for side in (target, source):
        low, high = reach(side.shape, side.strides)
        start = side._byte_offset if handles else side.data_ptr()
        spans.append((start + low * side.itemsize, start + high * side.itemsize))
    (low, high), (begin, end) = spans
    return low < end and begin < high


def _staged(target: Tensor, source: Tensor, progress: Progress | None) -> None:
    """Through packed host memory."""
    import numpy as np

    if source.dtype.is_subbyte and not source.is_padded:
        require_compact(source)
        require_compact(target)
    staging = wrap_array(np.empty(max(source.nbytes, 1), "u1"))
    host = restore(staging, source)
    to_host(host, source, progress)
    from_host(target, host, None)
