"""Copies of elements, complete on return: inside the host, to and from a device, between devices.

Contiguous memory is copied in large pieces, so that Ctrl-C and progress work in
a long copy. A strided copy covers a region: a contiguous run, and few strided dimensions
around it. One that a backend cannot copy in one call is copied run by run. Offsets, strides
and runs are in bytes.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from math import prod
from operator import mul
from typing import TYPE_CHECKING, Any

from dlbridge.core.implementation_details.python_api import address_of
from dlbridge.core.moves.within_host import copy_array
from dlbridge.core.plugins.registry import plugin_of
from dlbridge.core.plugins.streams import current_use, drain_then_release, finish
from dlbridge.core.public import for_guests
from dlbridge.core.tensor.array_tensor import tensor_on, wrap_array
from dlbridge.core.tensor.memory import Memory, access, open_views, order, refuse_if_viewed
from dlbridge.core.tensor.operand import host_array, operand_of, require_compact, turned
from dlbridge.core.values.devices import CPU, Device
from dlbridge.core.values.dtypes import DType
from dlbridge.core.values.layout import compact_strides, merge
from dlbridge.core.values.subbyte import pack_bits, unpack_bits
from dlbridge.errors import ExchangeError
from dlbridge.protocol import Region, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from dlbridge.core.moves.within_host import Progress
    from dlbridge.core.plugins.registry import Plugin
    from dlbridge.core.tensor.operand import Operand

    Layout = tuple[list[int], list[list[int]], int]
    """A region from `layout.merge`: its shape, the strides of both sides, and the run."""
    Place = Callable[[int, int], object]


span_of = partial(tuple.__new__, Span)
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
    flat = packed_bytes(source)
    memory = target.memory
    assert memory is not None  # only the CPU has such operands
    # Host memory used in place: the two may be the same bytes.
    if not target.is_new and (memory.host_start is not None or needs_temporary(target, progress)):
        flat = memoryview(bytearray(flat))
    _exchange(target, flat, progress, reads=False)


def to_host(target: Operand, source: Operand, progress: Progress | None) -> None:
    """Copy a device tensor to the host."""
    memory = source.memory
    assert memory is not None  # only the CPU has such operands
    if not source.contiguous and needs_full_span(source):
        _span_to_host(target, source, progress)
        return
    # Host memory used in place: the two may be the same bytes.
    if not target.contiguous or (
        not target.is_new and (memory.host_start is not None or needs_temporary(source, progress))
    ):
        _through_packed_host(target, source, progress)
        return
    into = target.carrier if target.memory is None else host_array(target)
    _exchange(source, into.data.cast("B"), progress, reads=True)


def needs_temporary(there: Operand, progress: Progress | None) -> bool:
    """Whether a part of a copy between *there* and the host may change what a later one reads.

    In one call the backend itself handles host memory that is the device's (`dlbridge.protocol`).
    """
    if there.contiguous and there.nbytes <= (UNREPORTED if progress is None else REPORTED):
        return False
    plugin, memory = plugin_of(there.device), there.memory
    assert memory is not None
    if not there.contiguous and _calls(plugin, *region(there)) <= 1:
        return False
    if plugin.host_view is None or plugin.host_view_refusal is None:
        return False
    return not plugin.host_view_refusal(there.device.index, memory.data)


def _exchange(there: Operand, flat: memoryview, progress: Progress | None, *, reads: bool) -> None:
    """Copy between *there*, on a device, and its packed bytes *flat* on the host."""
    plugin, memory = plugin_of(there.device), there.memory
    assert memory is not None
    stream = there.stream if there.is_new else access(memory, plugin)
    copy = plugin.copy_to_host if reads else plugin.copy_from_host
    if there.contiguous:
        copy_bytes(plugin, copy, memory, there.byte_offset, flat, stream, progress)
        return
    strided = plugin.copy_strided_to_host if reads else plugin.copy_strided_from_host
    try:
        sides = _spans(there), _parts(flat)
        copy_region(plugin, region(there), *sides, copy, strided, stream)
        if not plugin.host_copies_block:
            finish(plugin, there.device, stream)
    except BaseException:
        drain_then_release(flat, there.device, stream)
        raise


def copy_bytes(
    plugin: Plugin,
    copy: Callable[[Span, memoryview, int], None],
    memory: Memory,
    offset: int,
    flat: memoryview,
    stream: int,
    progress: Progress | None,
) -> None:
    """Give as many bytes of *memory* as *flat* has on the host to *copy*, in pieces if need be."""
    index, data, nbytes = memory.device.index, memory.data, flat.nbytes
    piece = UNREPORTED if progress is None else REPORTED
    try:
        if progress is None and nbytes <= piece:  # most copies
            copy(span_of((index, data, offset, nbytes)), flat, stream)
        else:
            for start in range(0, nbytes, piece):
                stop = min(start + piece, nbytes)
                copy(Span(index, data, offset + start, stop - start), flat[start:stop], stream)
                if progress is not None:
                    progress(stop, nbytes)
        if not plugin.host_copies_block and plugin.synchronize is not None:
            plugin.synchronize(index, stream)
    except BaseException:
        drain_then_release(flat, memory.device, stream)
        raise


def _spans(operand: Operand) -> Callable[[int, int], Span]:
    """What gives *nbytes* of a device's memory from *start* bytes after the first element on."""
    index, data, offset = operand.device.index, operand.data, operand.byte_offset
    return lambda start, nbytes: Span(index, data, offset + start, nbytes)


def _parts(flat: memoryview) -> Callable[[int, int], memoryview]:
    """The same of host memory."""
    return lambda start, nbytes: flat[start : start + nbytes]


def _span_to_host(target: Operand, source: Operand, progress: Progress | None) -> None:
    """Copy the whole range that *source* occupies, and select its elements on the host."""
    import numpy as np

    low, nbytes = source.span()
    span = np.empty(nbytes, "u1")
    _exchange(part_of(source, low, nbytes), span.data, progress, reads=True)
    into, size = host_array(target), source.dtype.itemsize
    steps = [step * size for step in source.strides]
    picked = np.lib.stride_tricks.as_strided(span[-low:].view(into.dtype), source.shape, steps)
    copy_array(into, picked)


def _through_packed_host(target: Operand, source: Operand, progress: Progress | None) -> None:
    import numpy as np

    into = host_array(target)
    packed = np.empty(into.shape, into.dtype)
    to_host(restore(packed.reshape(-1).view("u1"), target), source, progress)
    copy_array(into, packed)


# The host's side ------------------------------------------------------------------


@for_guests
def packed_bytes(operand: Operand) -> memoryview:
    r"""Return the bytes of memory that the host can read.

    Parameters
    ----------
    operand : Operand
        Of a device that `Device.is_host`.

    Returns
    -------
    memoryview of uint8
        The memory itself if it has no gaps, and a packed copy otherwise. Work of the device on it
        is finished.

    Examples
    --------
    >>> from dlbridge.extending import operand_of, packed_bytes
    >>> bytes(packed_bytes(operand_of(bridge.asarray([[1, 2], [3, 4]], dtype="uint8")[:, 0])))
    b'\x01\x03'
    """
    if operand.memory is None and operand.contiguous:  # mostly
        return operand.carrier.data.cast("B")
    array = host_array(operand)
    if not operand.contiguous:
        import numpy as np

        packed = np.empty(array.shape, array.dtype)
        copy_array(packed, array)
        array = packed
    return array.data.cast("B")


def restore(staging: np.ndarray[Any, Any], like: Operand) -> Operand:
    """The flat bytes of *staging* as a compact operand of the shape and type of *like*."""
    start = address_of(staging)
    memory = Memory(CPU, start, "a staging buffer", staging)
    operand = operand_of(tensor_on(memory, like.dtype, like.shape, padded=like.padded))
    operand.is_new = True
    return operand


def on_device(target: Operand, source: Operand, progress: Progress | None) -> None:
    """Copy a device tensor to a device.

    On one device it is queued on the current stream, else complete on return.
    """
    plugin = plugin_of(target.device)
    same = target.device is source.device
    simple = same and target.contiguous and source.contiguous and plugin.copy is not None
    if _overlap(target, source) or not (
        simple
        or (
            can_copy_natively(source, target.device)
            and can_copy_natively(target, source.device)
            and is_faster_on_device(source, target)
        )
    ):
        _staged(target, source, progress)
        return
    copy = plugin.copy
    assert copy is not None  # it was asked for
    stream = _ordered(target, source, plugin)
    if simple:
        index, nbytes = target.device.index, target.nbytes
        into = span_of((index, target.data, target.byte_offset, nbytes))
        copy(into, span_of((index, source.data, source.byte_offset, nbytes)), stream)
        return
    layout = region(target, source)
    copy_region(plugin, layout, _spans(target), _spans(source), copy, plugin.copy_strided, stream)
    if not same:
        finish(plugin, target.device, stream)


def _ordered(target: Operand, source: Operand, plugin: Plugin) -> int:
    """The stream for a copy; the work on another device's *source* is done."""
    into, of = target.memory, source.memory
    assert into is not None  # only the CPU has such operands
    assert of is not None
    if target.device is not source.device:
        stream = target.stream if target.is_new else access(into, plugin)
        finish(plugin, source.device, source.access())  # both are of one backend
        return stream
    if open_views:
        refuse_if_viewed(into)
        refuse_if_viewed(of)
    now = current_use(target.device, plugin)
    for memory in (of,) if target.is_new else (into, of):
        if memory.last_use is not now:
            order(memory, now, plugin)
    now.used = True
    return now.handle


def _overlap(target: Operand, source: Operand) -> bool:
    """Whether the two use the same bytes: the order in which devices copy them is undefined."""
    into, of = target.memory, source.memory
    if into is not None and of is not None and into.is_import and of.is_import:
        return True  # host memory used in place, by two handles or two devices perhaps
    if target.device is not source.device:
        return False
    handles = not target.device.is_address
    if handles and target.data != source.data:
        return False
    spans: list[int] = []
    for side in (target, source):
        low, nbytes = (0, side.nbytes) if side.contiguous else side.span()
        start = side.byte_offset + low + (0 if handles else side.data)
        spans += (start, start + nbytes)
    low, high, begin, end = spans
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


_BYTE = DType.of(1, 8)

_CHUNK = 1 << 20
"""Elements, a multiple of 8: what is packed or unpacked at once, with temporary arrays."""


@for_guests
def copy_elements(target: Operand, source: Operand, progress: Progress | None = None) -> None:
    """Copy the elements of one operand to another one, on any two devices.

    Parameters
    ----------
    target, source : Operand
        Of equal shape and dtype. They may overlap.
    progress : callable, optional
        Called in this thread with ``(done, total)``, in bytes.

    Raises
    ------
    DeviceError
        If a driver fails.

    Notes
    -----
    The copy is complete on return if the host is involved, and so it is between two devices. On
    one device it is queued on the current stream.

    Examples
    --------
    >>> from dlbridge.extending import copy_elements, operand_of
    >>> new = bridge.empty(2, "int16")
    >>> copy_elements(operand_of(new), operand_of(bridge.asarray([1, 2], dtype="int16")))
    >>> new.tolist()
    [1, 2]
    """
    if not source.nbytes:
        return
    if target.dtype.bits < 8 and not _are_whole_bytes(target, source):
        _copy_subbyte(target, source, progress)
        return
    if target.memory is None and source.memory is None:  # one question instead of five
        copy_array(target.carrier, source.carrier, progress)
        return
    if not target.contiguous and not target.device.is_host:
        target, source = _forwards(target, source)
    if not source.device.is_host:
        (to_host if target.device.is_host else on_device)(target, source, progress)
    elif not target.device.is_host:
        from_host(target, source, progress)
    else:
        copy_array(host_array(target), host_array(source), progress)


def _forwards(target: Operand, source: Operand) -> tuple[Operand, Operand]:
    """Both with their dimensions in the order of *target*'s memory, none of them backwards.

    A backend copies such a region in few calls, and other ones run by run. Where elements overlap,
    the last one is to stay, and so the order.
    """
    steps = target.strides
    axes = sorted(range(target.ndim), key=lambda axis: abs(steps[axis]), reverse=True)
    back = {axis for axis in axes if steps[axis] < 0}
    if not back and axes == list(range(target.ndim)):
        return target, source
    there = turned(target, axes, back)
    size = there.dtype.itemsize
    shape, (strides,), run = merge(there.shape, [[step * size for step in there.strides]], size)
    if _nested(shape, strides, run) < len(shape):
        return target, source
    return there, turned(source, axes, back)


@for_guests
def part_of(operand: Operand, start: int, count: int) -> Operand:
    """Return bytes of the memory of a compact operand, as an operand of uint8.

    Parameters
    ----------
    operand : Operand
        Without gaps between its elements.
    start, count : int
        The first byte, counted from the first element, and the number of bytes.

    Returns
    -------
    Operand
        Of *count* elements of uint8, on the same memory.

    Examples
    --------
    >>> from dlbridge.extending import operand_of, part_of
    >>> part_of(operand_of(bridge.zeros(4)), 4, 8).size
    8
    """
    memory = operand.memory or Memory(CPU, operand.data, "a numpy array", operand.carrier)
    place = operand.byte_offset + start
    return operand_of(
        tensor_on(memory, _BYTE, (count,), byte_offset=place, readonly=operand.readonly)
    )


# Below a byte -----------------------------------------------------------------------


def _are_whole_bytes(target: Operand, source: Operand) -> bool:
    """Whether a copy of bytes copies the elements of both, and changes no other elements.

    No other elements are in the last byte of new memory.
    """
    dtype = target.dtype
    if dtype.is_subbyte and target.padded is not source.padded:
        return False
    return target.padded or target.is_new or not target.size * dtype.bits * dtype.lanes % 8


def _copy_subbyte(target: Operand, source: Operand, progress: Progress | None) -> None:
    """Copy elements below a byte that `_are_whole_bytes` has refused.

    Elements that begin in the last byte of *target* and are not in it stay as they are. To
    write them at the same time, in another thread or on another stream, is a race.
    """
    for side in (target, source):
        if not side.padded:
            require_compact(side)
    if target.padded is not source.padded:
        source = _stored_as(target, source)
        if _are_whole_bytes(target, source):
            copy_elements(target, source, progress)
            return
    whole, rest = divmod(target.size * target.dtype.bits * target.dtype.lanes, 8)
    # Both are read first: the two may be the same memory.
    old, new = _byte_at(target, whole), _byte_at(source, whole)
    if whole:
        copy_elements(part_of(target, 0, whole), part_of(source, 0, whole), progress)
    mask = (1 << rest) - 1
    import numpy as np

    last = np.array([(old & ~mask) | (new & mask)], np.uint8)
    copy_elements(part_of(target, whole, 1), operand_of(wrap_array(last)))


def _byte_at(operand: Operand, place: int) -> int:
    import numpy as np

    box = np.empty(1, np.uint8)
    copy_elements(operand_of(wrap_array(box)), part_of(operand, place, 1))
    return int(box[0])


def _stored_as(target: Operand, source: Operand) -> Operand:
    """The elements of *source* in new host memory: packed or padded, as those of *target*."""
    import numpy as np

    dtype = source.dtype
    if dtype.lanes != 1:
        raise ExchangeError(
            f"padded {dtype} elements cannot be copied to packed ones, nor packed to padded: "
            "dlpack.h does not say how lanes lie in padded elements; view('uint8') shows the bytes"
        )
    given = np.empty(source.nbytes, np.uint8)
    copy_elements(restore(given, source), source)
    stored = np.empty(target.nbytes, np.uint8)
    for start in range(0, source.size, _CHUNK):
        count = min(_CHUNK, source.size - start)
        padded = slice(start, start + count)
        packed = slice(dtype.nbytes(start), dtype.nbytes(start + count))
        if target.padded:
            stored[padded] = unpack_bits(given[packed].data, dtype, count)
        else:
            stored[packed] = np.frombuffer(pack_bits(given[padded], dtype), np.uint8)
    return restore(stored, target)


# Regions ------------------------------------------------------------------------------


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
    if operand.device.name != target.name or plugin.copy is None:
        return False
    _, (steps, _), _ = region(operand)
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
        here = region(source)
        back = 1
    else:
        here = region(target, source)
        back = _calls(plugin, *region(target))
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
    runs = _calls(plugin_of(operand.device), *region(operand)) * CALL + operand.nbytes
    return min(runs, operand.span()[1] + CALL)


def _calls(plugin: Plugin, shape: list[int], strides: list[list[int]], run: int) -> int:
    """How many calls `copy_strided` makes for a region."""
    taken = _axes_of_one_call(plugin, shape, strides, run)
    return prod(extent for axis, extent in enumerate(shape) if axis not in taken)


def _axes_of_one_call(
    plugin: Plugin, shape: list[int], strides: list[list[int]], run: int
) -> list[int]:
    """The strided dimensions that the backend copies in one call: the longest that it can."""
    if plugin.copy_strided is None:
        return []
    able = [axis for axis in range(len(shape)) if all(side[axis] > 0 for side in strides)]
    able = sorted(sorted(able, key=shape.__getitem__)[-plugin.max_strided_ndim :])
    extents = [shape[axis] for axis in able]
    fits = min(_nested(extents, [side[axis] for axis in able], run) for side in strides)
    return able[len(able) - fits :]


def _nested(shape: Sequence[int], steps: Sequence[int], run: int) -> int:
    """How many of the innermost strided dimensions are as the contract requires of one call.

    Each step is at least as long as all that it steps over, so that no runs overlap, and at
    least as long as the next inner step. Windows over one tensor overlap: they are copied run
    by run.
    """
    extent, inner = run, 0
    for count, (length, step) in enumerate(zip(reversed(shape), reversed(steps), strict=True)):
        if step < max(extent, inner):
            return count
        inner = step
        extent += (length - 1) * inner
    return len(shape)


def region(left: Operand, right: Operand | None = None) -> Layout:
    """The region that both cover, from `layout.merge`; None stands for a compact tensor."""
    sides = [left] if right is None else [left, right]
    if not left.size or all(side.contiguous for side in sides):
        return [], [[], []], left.nbytes
    if left.dtype.is_subbyte and not left.padded:
        for side in sides:
            require_compact(side)
    layouts = [side.strides for side in sides]
    if right is None:
        layouts.append(compact_strides(left.shape))
    size = left.dtype.itemsize
    return merge(left.shape, [[step * size for step in each] for each in layouts], size)


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
    inner = _axes_of_one_call(plugin, shape, sides, run)
    outer = [axis for axis in range(len(shape)) if axis not in inner]
    into, taken = (
        Region(tuple(shape[axis] for axis in inner), tuple(side[axis] for axis in inner), run)
        for side in sides
    )
    steps = [[side[axis] for axis in outer] for side in sides]
    for position in product(*(range(shape[axis]) for axis in outer)):
        at, begin = (sum(map(mul, position, side)) for side in steps)
        if inner and strided is not None:
            strided(there(at, into.extent), into, here(begin, taken.extent), taken, stream)
        else:
            copy(there(at, run), here(begin, run), stream)
