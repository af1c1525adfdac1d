"""Copies between two tensors of one shape and type, whatever memory they are in.

Every copy of dlbridge ends here. Regions go to a backend as few strided
dimensions around a contiguous run; what it cannot do in one call is packed in
host memory, or copied run by run. Offsets and runs are in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

from .capsule import FLAG_SUBBYTE_PADDED
from .device import Device
from .devices import backend_of, supports
from .errors import ExchangeError
from .layout import compact_strides, merge, reach
from .memory import Memory, counts_elements
from .pack import copy_host
from .protocol import SupportsCopy, SupportsStreams, SupportsStridedCopy
from .stream import access, host_access
from .tensor import ArrayTensor, Tensor, make_tensor, wrap_array

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "CHUNK",
    "Progress",
    "bytes_to_host",
    "copies_by_itself",
    "copy_tensor",
    "host_array",
    "packed_bytes",
]

CHUNK = 64 << 20
"""Bytes after which a long copy reports progress and hears Ctrl-C."""

Progress = Callable[[int, int], None]


def copy_tensor(target: Tensor, source: Tensor, progress: Progress | None = None) -> None:
    """Copy the elements of *source* to *target*, complete on return where the host takes part.

    Same shape and dtype. On one device the copy is ordered on its current
    stream; between two devices of one backend it is complete on return.
    """
    if not source.size:
        return
    if target.device.is_host and source.device.is_host:
        copy_host(host_array(target), host_array(source), progress)
    elif source.device.is_host:
        _from_host(target, source, progress)
    elif target.device.is_host:
        _to_host(target, source, progress)
    else:
        _on_device(target, source, progress)


def host_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The bytes of a tensor that the host can read, as an array with its true layout."""
    if isinstance(tensor, ArrayTensor):
        return tensor._array
    import numpy as np

    host_access(tensor._memory)
    dtype = tensor.dtype
    if not counts_elements(dtype) or tensor.is_padded:
        return tensor._array
    interface: dict[str, Any] = {
        "version": 3,
        "data": (tensor._memory.data + tensor._byte_offset, tensor.readonly),
    }
    if dtype.is_subbyte:
        _require_compact(tensor)
        interface.update(shape=(tensor.nbytes,), typestr="|u1")
    else:
        steps = tuple(step * dtype.itemsize for step in tensor.strides)
        interface.update(shape=tensor.shape, typestr=f"|V{dtype.itemsize}", strides=steps)
    return np.asarray(_Raw(interface, tensor))


class _Raw:
    """What numpy takes raw host memory from; keeps the tensor."""

    def __init__(self, interface: dict[str, Any], tensor: Tensor) -> None:
        self.__array_interface__ = interface
        self.tensor = tensor


def bytes_to_host(tensor: Tensor) -> int:
    """Bytes that a copy of a device *tensor* to the host moves: with its gaps where it has to."""
    if _comes_whole(tensor):
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


def _comes_whole(tensor: Tensor) -> bool:
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


def _region(left: Tensor, right: Tensor) -> tuple[list[int], list[list[int]], int]:
    """The region that both tensors cover, as `layout.merge` gives it."""
    if left.dtype.is_subbyte and not left.is_padded:
        _require_compact(left)
        _require_compact(right)
        return [], [[], []], left.nbytes
    if left._array.flags.c_contiguous and right._array.flags.c_contiguous:
        return [], [[], []], left.nbytes
    size = left.itemsize
    steps = [[step * size for step in side.strides] for side in (left, right)]
    return merge(left.shape, steps, size)


def _require_compact(tensor: Tensor) -> None:
    if not tensor.is_contiguous():
        raise ExchangeError(
            f"packed {tensor.dtype} elements with strides {tensor.strides}: only compact tensors "
            "of packed sub-byte types can be copied"
        )


# Host and device ------------------------------------------------------------


def _from_host(target: Tensor, source: Tensor, progress: Progress | None) -> None:
    shape, (there, _), run = _region(target, source)
    index = target.device.index
    stream = access(target._memory)
    plugin = backend_of(target.device)
    data, offset = target._memory.data, target._byte_offset
    flat = packed_bytes(source)
    if isinstance(target._memory.owner, Tensor):
        # Host memory used in place: the two may be the same bytes.
        flat = memoryview(bytearray(flat))
    if not shape and run <= CHUNK and progress is None:
        plugin.copy_from_host(index, data, offset, flat, stream)
    elif not shape:
        for start, stop in _chunks(run, progress):
            plugin.copy_from_host(index, data, offset + start, flat[start:stop], stream)
    else:
        # The host side is packed, so its runs follow each other.
        packed = _packed_strides(shape, run)
        _strided(
            plugin,
            shape,
            there,
            packed,
            lambda copy, at, begin, outer, steps, packs: copy.copy_strided_from_host(
                index, data, offset + at, steps, flat[begin:], packs, outer, run, stream
            ),
            lambda at, begin: plugin.copy_from_host(
                index, data, offset + at, flat[begin : begin + run], stream
            ),
        )
    _finish(target, stream)


def _to_host(target: Tensor, source: Tensor, progress: Progress | None) -> None:
    index = source.device.index
    stream = access(source._memory)
    plugin = backend_of(source.device)
    data, offset = source._memory.data, source._byte_offset
    if not target.is_contiguous():
        _through_packed_host(target, source, progress)
        return
    flat = host_array(target).reshape(-1).view("u1").data
    shape, (_, there), run = _region(target, source)
    if not shape and run <= CHUNK and progress is None:
        plugin.copy_to_host(index, data, offset, flat, stream)
    elif not shape:
        for start, stop in _chunks(run, progress):
            plugin.copy_to_host(index, data, offset + start, flat[start:stop], stream)
    elif _comes_whole(source):
        _span_to_host(target, source)
    else:
        _strided(
            plugin,
            shape,
            there,
            _packed_strides(shape, run),
            lambda copy, at, begin, outer, steps, packs: copy.copy_strided_to_host(
                index, data, offset + at, steps, flat[begin:], packs, outer, run, stream
            ),
            lambda at, begin: plugin.copy_to_host(
                index, data, offset + at, flat[begin : begin + run], stream
            ),
        )
    _finish(source, stream)


def _span_to_host(target: Tensor, source: Tensor) -> None:
    """Copy the whole range that *source* reaches, and pick its elements out on the host."""
    import numpy as np

    low, high = reach(source.shape, source.strides)
    size = source.itemsize
    span = np.empty((high - low) * size, "u1")
    stream = access(source._memory)
    backend_of(source.device).copy_to_host(
        source.device.index,
        source._memory.data,
        source._byte_offset + low * size,
        span.data,
        stream,
    )
    _finish(source, stream)
    into = host_array(target)
    picked = np.lib.stride_tricks.as_strided(
        span[-low * size :].view(into.dtype) if size > 1 else span[-low:],
        source.shape,
        tuple(step * size for step in source.strides),
    )
    copy_host(into, picked)


def _through_packed_host(target: Tensor, source: Tensor, progress: Progress | None) -> None:
    import numpy as np

    into = host_array(target)
    packed = np.empty(into.shape, into.dtype)
    temporary = _restore(wrap_array(packed.reshape(-1).view("u1")), target)
    copy_tensor(temporary, source, progress)
    copy_host(into, packed)


def packed_bytes(source: Tensor) -> memoryview:
    """The bytes of a host tensor, packed into a temporary if they are strided."""
    import numpy as np

    array = host_array(source)
    if not array.flags.c_contiguous:
        packed = np.empty(array.shape, array.dtype)
        copy_host(packed, array)
        array = packed
    return array.reshape(-1).view("u1").data


# Device and device ------------------------------------------------------------


def _on_device(target: Tensor, source: Tensor, progress: Progress | None) -> None:
    if (
        _overlap(target, source)
        or not copies_by_itself(source, target.device)
        or not copies_by_itself(target, source.device)
    ):
        _staged(target, source, progress)
        return
    plugin: Any = backend_of(target.device)
    same = target.device is source.device
    shape, (there, here), run = _region(target, source)
    index, stream = target.device.index, access(target._memory)
    data, offset = target._memory.data, target._byte_offset
    other, start = source._memory.data, source._byte_offset
    source_stream = access(source._memory)
    if not same:
        _finish(source, source_stream)

    def copy_run(at: int, begin: int) -> None:
        plugin.copy(
            index, data, offset + at, source.device.index, other, start + begin, run, stream
        )

    if not shape:
        copy_run(0, 0)
    else:
        _strided(
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
        _finish(target, stream)


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
        _require_compact(source)
        _require_compact(target)
    staging = wrap_array(np.empty(max(source.nbytes, 1), "u1"))
    host = _restore(staging, source)
    _to_host(host, source, progress)
    _from_host(target, host, None)


def _restore(staging: Tensor, like: Tensor) -> Tensor:
    """The flat bytes of *staging* as a compact tensor of the shape and type of *like*."""
    memory = Memory(staging.device, staging.data_ptr(), "a staging buffer", staging)
    flags = FLAG_SUBBYTE_PADDED if like.is_padded else 0
    return make_tensor(memory, 0, like.dtype, like.shape, flags=flags)


# Pieces -----------------------------------------------------------------------


def _strided(
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


def _packed_strides(shape: list[int], run: int) -> list[int]:
    return [step * run for step in compact_strides(shape)]


def _chunks(nbytes: int, progress: Progress | None) -> Iterator[tuple[int, int]]:
    for start in range(0, nbytes, CHUNK):
        stop = min(start + CHUNK, nbytes)
        yield start, stop
        if progress is not None:
            progress(stop, nbytes)


def _finish(tensor: Tensor, stream: int) -> None:
    plugin = backend_of(tensor.device)
    if supports(plugin, SupportsStreams):
        plugin.synchronize(tensor.device.index, stream)
