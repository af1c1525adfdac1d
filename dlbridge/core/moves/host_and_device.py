"""Copies between the host and a device, complete on return.

Contiguous memory is copied in large pieces, so that Ctrl-C and progress work in
a long copy. Offsets and runs are in bytes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.structs import FLAG_SUBBYTE_PADDED
from dlbridge.core.implementation_details.numpy_arrays import address_of
from dlbridge.core.plugins.lookup import plugin_of
from dlbridge.core.plugins.streams import finish
from dlbridge.core.tensor.array_tensor import make_tensor
from dlbridge.core.tensor.memory import Memory
from dlbridge.core.tensor.operand import host_array, operand_of
from dlbridge.core.tensor.ordering import access
from dlbridge.core.values.devices import Device
from dlbridge.core.values.layout import reach
from dlbridge.errors import ExchangeError
from dlbridge.protocol import Region, Span

from .regions import copy_strided, needs_full_span, packed_strides, region
from .within_host import copy_host

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from dlbridge.core.tensor.operand import Operand

    from .within_host import Progress

__all__ = ["finish_work", "from_host", "packed_bytes", "restore", "to_host"]

_CPU = Device.of(1, 0)

_span = partial(tuple.__new__, Span)
"""Makes a Span of a tuple; calling the class takes 1.5 times as long."""

REPORTED = 64 << 20
"""A copy reports its progress after this many bytes."""

UNREPORTED = 256 << 20
"""Ctrl-C works after this many bytes in a copy without progress.

Each piece ends with a wait. On PoCL and lavapipe 1 GiB took as long in pieces of this size as
in one, and up to a fifth longer in pieces of 64 or 128 MiB. Where the pages of the memory are
touched for the first time, Ctrl-C worked after 0.1 s (a mapped file of 2 GiB; 0.5 to 3.5 s in
pieces of 1 GiB).
"""


def from_host(target: Operand, source: Operand, progress: Progress | None) -> None:
    """Copy a host tensor to a device."""
    device, at_hand = target.device, source.memory is None and source.contiguous  # mostly
    flat = source.carrier.data.cast("B") if at_hand else packed_bytes(source)
    plugin, memory = plugin_of(device), target.memory
    assert memory is not None  # only the CPU has such operands
    if memory is not None and memory.host_start is not None:
        # Host memory used in place: the two may be the same bytes.
        flat = memoryview(bytearray(flat))
    stream = target.stream if target.is_new else access(memory, plugin)
    try:
        if not target.contiguous:
            _strided_from_host(target, source, flat, stream)
        elif progress is None and len(flat) <= UNREPORTED:  # most copies
            span = _span((device.index, target.data, target.byte_offset, len(flat)))
            plugin.copy_from_host(span, flat, stream)
        else:
            _in_pieces("copy_from_host", target, flat, stream, progress)
        if not plugin.host_copies_block:
            finish(plugin, device, stream)
    except BaseException:
        _drain_then_release(flat, target, stream)
        raise


def to_host(target: Operand, source: Operand, progress: Progress | None) -> None:
    """Copy a device tensor to the host."""
    device, memory = source.device, source.memory
    assert memory is not None  # only the CPU has such operands
    # Host memory used in place: the two may be the same bytes.
    in_place = memory is not None and memory.host_start is not None and not target.is_new
    if in_place or not target.contiguous:
        _through_packed_host(target, source, progress)
        return
    into = target.carrier if target.memory is None else host_array(target)
    flat = into.data.cast("B")
    plugin = plugin_of(device)
    stream = access(memory, plugin)
    try:
        if not source.contiguous:
            _strided_to_host(target, source, flat, stream)
        elif progress is None and len(flat) <= UNREPORTED:
            span = _span((device.index, source.data, source.byte_offset, len(flat)))
            plugin.copy_to_host(span, flat, stream)
        else:
            _in_pieces("copy_to_host", source, flat, stream, progress)
        if not plugin.host_copies_block:
            finish(plugin, device, stream)
    except BaseException:
        _drain_then_release(flat, source, stream)
        raise


_leaked: list[object] = []
"""Host memory leaked on purpose: a transfer may still be using it, and could not be awaited."""


def _drain_then_release(host: object, operand: Operand, stream: int) -> None:
    """After a failure or a Ctrl-C: wait for the copies that are queued, then release *host*."""
    try:
        finish_work(operand, stream)
    except ExchangeError:  # a stream that captures: nothing was queued
        return
    except BaseException:
        _leaked.append(host)


def _in_pieces(
    member: str,
    there: Operand,
    flat: memoryview,
    stream: int,
    progress: Progress | None,
) -> None:
    """Give all bytes of the compact tensor *there* to the backend's *member*, piece by piece."""
    copy: Callable[[Span, memoryview, int], None] = getattr(plugin_of(there.device), member)
    index, data, offset = there.device.index, there.data, there.byte_offset
    nbytes = len(flat)
    piece = UNREPORTED if progress is None else REPORTED
    for start in range(0, nbytes, piece):
        stop = min(start + piece, nbytes)
        copy(Span(index, data, offset + start, stop - start), flat[start:stop], stream)
        if progress is not None:
            progress(stop, nbytes)


def _strided_from_host(target: Operand, source: Operand, flat: memoryview, stream: int) -> None:
    shape, (there, _), run = region(target, source)
    plugin = plugin_of(target.device)
    index, data, offset = target.device.index, target.data, target.byte_offset

    def in_one_call(copy: Any, at: int, into: Region, begin: int, taken: Region) -> None:
        part = flat[begin : begin + taken.extent]
        span = Span(index, data, offset + at, into.extent)
        copy.copy_strided_from_host(span, into, part, taken, stream)

    def copy_run(at: int, begin: int) -> None:
        span = Span(index, data, offset + at, run)
        plugin.copy_from_host(span, flat[begin : begin + run], stream)

    packed = packed_strides(shape, run)
    copy_strided(plugin, shape, there, packed, run, in_one_call, copy_run)


def _strided_to_host(target: Operand, source: Operand, flat: memoryview, stream: int) -> None:
    shape, (_, there), run = region(target, source)
    if needs_full_span(source):
        _span_to_host(target, source)
        return
    plugin = plugin_of(source.device)
    index, data, offset = source.device.index, source.data, source.byte_offset

    def in_one_call(copy: Any, at: int, taken: Region, begin: int, into: Region) -> None:
        part = flat[begin : begin + into.extent]
        span = Span(index, data, offset + at, taken.extent)
        copy.copy_strided_to_host(span, taken, part, into, stream)

    def copy_run(at: int, begin: int) -> None:
        span = Span(index, data, offset + at, run)
        plugin.copy_to_host(span, flat[begin : begin + run], stream)

    packed = packed_strides(shape, run)
    copy_strided(plugin, shape, there, packed, run, in_one_call, copy_run)


def _span_to_host(target: Operand, source: Operand) -> None:
    """Copy the whole range that *source* occupies, and select its elements on the host."""
    import numpy as np

    low, high = reach(source.shape, source.strides)
    size = source.dtype.itemsize
    span = np.empty((high - low) * size, "u1")
    stream = source.access()
    try:
        there = Span(source.device.index, source.data, source.byte_offset + low * size, span.nbytes)
        plugin_of(source.device).copy_to_host(there, span.data, stream)
        finish_work(source, stream)
    except BaseException:
        _drain_then_release(span, source, stream)
        raise
    into = host_array(target)
    picked = np.lib.stride_tricks.as_strided(
        span[-low * size :].view(into.dtype) if size > 1 else span[-low:],
        source.shape,
        tuple(step * size for step in source.strides),
    )
    copy_host(into, picked)


def _through_packed_host(target: Operand, source: Operand, progress: Progress | None) -> None:
    import numpy as np

    into = host_array(target)
    packed = np.empty(into.shape, into.dtype)
    to_host(restore(packed.reshape(-1).view("u1"), target), source, progress)
    copy_host(into, packed)


# The host's side ------------------------------------------------------------------


def packed_bytes(source: Operand) -> memoryview:
    """The bytes of a host tensor, packed into a temporary array if they are strided."""
    array = host_array(source)
    if not source.contiguous:
        import numpy as np

        packed = np.empty(array.shape, array.dtype)
        copy_host(packed, array)
        array = packed
    return array.data.cast("B")


def restore(staging: np.ndarray[Any, Any], like: Operand) -> Operand:
    """The flat bytes of *staging* as a compact operand of the shape and type of *like*."""
    start = address_of(staging)
    memory = Memory(_CPU, start, "a staging buffer", staging)
    flags = like.flags & FLAG_SUBBYTE_PADDED
    operand = operand_of(make_tensor(memory, 0, like.dtype, like.shape, flags=flags))
    operand.is_new = True
    return operand


def finish_work(operand: Operand, stream: int) -> None:
    """Block until the work on *stream* of the operand's device is done."""
    finish(plugin_of(operand.device), operand.device, stream)
