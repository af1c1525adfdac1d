"""Copies between the host and a device, complete on return.

Contiguous memory goes in large pieces, so that a long copy hears Ctrl-C and can
be watched. Offsets and runs are in bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.capsules import FLAG_SUBBYTE_PADDED
from dlbridge.core.plugins.lookup import backend_of, supports
from dlbridge.core.plugins.streams import access, host_access
from dlbridge.core.tensor.memory import Memory, counts_elements
from dlbridge.core.tensor.tensor import ArrayTensor, Tensor, make_tensor, wrap_array
from dlbridge.core.values.layout import reach
from dlbridge.errors import ExchangeError
from dlbridge.protocol import SupportsStreams

from .regions import comes_whole, copy_strided, packed_strides, region, require_compact
from .within_host import copy_host

if TYPE_CHECKING:
    import numpy as np

    from .within_host import Progress

__all__ = ["finish", "from_host", "host_array", "packed_bytes", "restore", "to_host"]

WATCHED = 64 << 20
"""Bytes after which a copy tells its progress."""

UNWATCHED = 1 << 30
"""Bytes after which a copy that nobody watches hears Ctrl-C: what a device copies in a
fraction of a second. Each piece ends with a wait: in pieces of 64 MiB, 1 GiB took
10 to 20 % longer on PoCL."""


def from_host(target: Tensor, source: Tensor, progress: Progress | None) -> None:
    """Copy a host tensor to a device."""
    flat = packed_bytes(source)
    if isinstance(target._memory.owner, Tensor):
        # Host memory used in place: the two may be the same bytes.
        flat = memoryview(bytearray(flat))
    stream = access(target._memory)
    try:
        if not target._array.flags.c_contiguous:
            _strided_from_host(target, source, flat, stream)
        else:
            copy = backend_of(target.device).copy_from_host
            _in_pieces(copy, target, flat, stream, progress)
        finish(target, stream)
    except BaseException:
        _let_go(flat, target, stream)
        raise


def to_host(target: Tensor, source: Tensor, progress: Progress | None) -> None:
    """Copy a device tensor to the host."""
    if not target._array.flags.c_contiguous:
        _through_packed_host(target, source, progress)
        return
    flat = _flat(host_array(target))
    stream = access(source._memory)
    try:
        if not source._array.flags.c_contiguous:
            _strided_to_host(target, source, flat, stream)
        else:
            copy = backend_of(source.device).copy_to_host
            _in_pieces(copy, source, flat, stream, progress)
        finish(source, stream)
    except BaseException:
        _let_go(flat, source, stream)
        raise


_kept: list[object] = []
"""Host memory that a device may still write or read, and nobody could wait: kept for good."""


def _let_go(host: object, tensor: Tensor, stream: int) -> None:
    """After a failure or a Ctrl-C: let the copies that are on their way finish first."""
    try:
        finish(tensor, stream)
    except ExchangeError:  # a stream that captures: nothing was queued
        return
    except BaseException:
        _kept.append(host)


def _in_pieces(
    copy: Callable[[int, int, int, memoryview, int], None],
    there: Tensor,
    flat: memoryview,
    stream: int,
    progress: Progress | None,
) -> None:
    """Give the backend's *copy* all bytes of the compact tensor *there*, piece by piece."""
    index, data, offset = there.device.index, there._memory.data, there._byte_offset
    nbytes = len(flat)
    piece = UNWATCHED if progress is None else WATCHED
    if nbytes <= piece and progress is None:  # most copies: nothing to cut
        copy(index, data, offset, flat, stream)
        return
    for start in range(0, nbytes, piece):
        stop = min(start + piece, nbytes)
        copy(index, data, offset + start, flat[start:stop], stream)
        if progress is not None:
            progress(stop, nbytes)


def _strided_from_host(target: Tensor, source: Tensor, flat: memoryview, stream: int) -> None:
    shape, (there, _), run = region(target, source)
    plugin = backend_of(target.device)
    index, data, offset = target.device.index, target._memory.data, target._byte_offset
    copy_strided(
        plugin,
        shape,
        there,
        packed_strides(shape, run),
        lambda copy, at, begin, outer, steps, packs: copy.copy_strided_from_host(
            index, data, offset + at, steps, flat[begin:], packs, outer, run, stream
        ),
        lambda at, begin: plugin.copy_from_host(
            index, data, offset + at, flat[begin : begin + run], stream
        ),
    )


def _strided_to_host(target: Tensor, source: Tensor, flat: memoryview, stream: int) -> None:
    shape, (_, there), run = region(target, source)
    if comes_whole(source):
        _span_to_host(target, source)
        return
    plugin = backend_of(source.device)
    index, data, offset = source.device.index, source._memory.data, source._byte_offset
    copy_strided(
        plugin,
        shape,
        there,
        packed_strides(shape, run),
        lambda copy, at, begin, outer, steps, packs: copy.copy_strided_to_host(
            index, data, offset + at, steps, flat[begin:], packs, outer, run, stream
        ),
        lambda at, begin: plugin.copy_to_host(
            index, data, offset + at, flat[begin : begin + run], stream
        ),
    )


def _span_to_host(target: Tensor, source: Tensor) -> None:
    """Copy the whole range that *source* reaches, and pick its elements out on the host."""
    import numpy as np

    low, high = reach(source.shape, source.strides)
    size = source.itemsize
    span = np.empty((high - low) * size, "u1")
    stream = access(source._memory)
    try:
        backend_of(source.device).copy_to_host(
            source.device.index,
            source._memory.data,
            source._byte_offset + low * size,
            span.data,
            stream,
        )
        finish(source, stream)
    except BaseException:
        _let_go(span, source, stream)
        raise
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
    to_host(restore(wrap_array(packed.reshape(-1).view("u1")), target), source, progress)
    copy_host(into, packed)


# The host's side ------------------------------------------------------------------


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
        require_compact(tensor)
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


def packed_bytes(source: Tensor) -> memoryview:
    """The bytes of a host tensor, packed into a temporary if they are strided."""
    array = host_array(source)
    if not array.flags.c_contiguous:
        import numpy as np

        packed = np.empty(array.shape, array.dtype)
        copy_host(packed, array)
        array = packed
    return _flat(array)


def _flat(array: np.ndarray[Any, Any]) -> memoryview:
    """The bytes of a contiguous array."""
    return array.reshape(-1).view("u1").data


def restore(staging: Tensor, like: Tensor) -> Tensor:
    """The flat bytes of *staging* as a compact tensor of the shape and type of *like*."""
    memory = Memory(staging.device, staging.data_ptr(), "a staging buffer", staging)
    flags = FLAG_SUBBYTE_PADDED if like.is_padded else 0
    return make_tensor(memory, 0, like.dtype, like.shape, flags=flags)


def finish(tensor: Tensor, stream: int) -> None:
    """Block until the work on *stream* of the tensor's device is done."""
    plugin = backend_of(tensor.device)
    if supports(plugin, SupportsStreams):
        plugin.synchronize(tensor.device.index, stream)
