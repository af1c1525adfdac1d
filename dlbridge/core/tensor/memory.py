"""The memory under a tensor: whose it is, the order of the work on it, and its carrier."""

from __future__ import annotations

import ctypes
import operator
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

from dlbridge.core.implementation_details.ends import at_exit, end_finalizers
from dlbridge.core.implementation_details.python_api import address_of
from dlbridge.core.plugins.cpu import MIN_ALIGNMENT
from dlbridge.core.plugins.registry import plugin_of
from dlbridge.core.plugins.streams import current_use, drain_then_release, wait
from dlbridge.core.public import for_guests
from dlbridge.core.values.devices import CPU, DLDeviceType
from dlbridge.core.values.dtypes import DType, fill_numpy_dtypes
from dlbridge.core.values.layout import MAX_NBYTES, compact_strides
from dlbridge.errors import BackendError, ExchangeError
from dlbridge.kit.resources import Owner, join

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable

    import numpy as np

    from dlbridge.core.moves.host_views import HostView
    from dlbridge.core.plugins.registry import Plugin
    from dlbridge.core.plugins.streams import StreamUse
    from dlbridge.core.values.devices import Device
    from dlbridge.protocol import Allocation


@at_exit
def _at_exit() -> None:
    end_finalizers(Owner, Memory)


@for_guests
class Memory:
    """Some bytes on a device, which exist as long as this object.

    Parameters
    ----------
    device : Device
        Where they are.
    data : int
        The address of the first byte, or its handle where the device has handles.
    origin : str
        Where the memory comes from, in words: ``repr`` and messages say it.
    owner : object
        What is kept alive as long as this object lives.

    Attributes
    ----------
    host_start : int or None
        The address of the host for the first byte, where a device uses host memory in place.

    Examples
    --------
    >>> from dlbridge.extending import CPU, Memory, tensor_on
    >>> array = np.ones(3)
    >>> memory = Memory(CPU, array.ctypes.data, "an example", array)
    >>> tensor_on(memory, bridge.dtype("float64"), (3,))
    dlbridge.Tensor(float64, shape=(3,), device=cpu:0, memory from an example)
    """

    # `last_use` is the stream of our last work on it, None before the first. `allocation` is what
    # the backend gave, which ends with this object, None for memory of others. `is_import` says
    # whether it is host memory that a device uses in place, or memory of another driver.

    __slots__ = (
        "__weakref__",
        "allocation",
        "data",
        "device",
        "host_start",
        "is_import",
        "last_use",
        "origin",
        "owner",
    )

    def __init__(self, device: Device, data: int, origin: str, owner: object = None) -> None:
        self.allocation: Allocation | None = None
        self.device: Device = device
        self.data: int = data
        self.origin: str = origin
        self.owner: object = owner
        self.last_use: StreamUse | None = None
        self.host_start: int | None = None
        self.is_import = False

    def use_on(self, use: StreamUse) -> None:
        """Note that work on *use* is the last: ours, or another library's that *use* waits for."""
        use.used = True
        self.last_use = use
        if self.allocation is not None:
            self.allocation.stream = use.handle
        if use.memories is not None:
            join(use.memories, self)

    def take(self, use: StreamUse | None, member: str, allocation: Allocation) -> int:
        """Take *allocation*, which the *member* of the backend has given; its offset in bytes.

        Whatever is raised, it ends with the last reference to it. *use* is None for a host view,
        whose *owner* is the memory that is viewed.
        """
        try:
            data, offset = allocation.data, allocation.offset
        except AttributeError:
            data = offset = None  # type: ignore[assignment]
        if type(data) is not int or not 0 < data < 1 << 64 or type(offset) is not int:
            owner = self.owner
            device = owner.device if isinstance(owner, Memory) else self.device
            raise _no_allocation(device, member, allocation)
        self.data = data
        self.allocation = allocation
        self.last_use = use
        if use is not None and use.memories is not None:
            join(use.memories, self)
        return offset

    def __reduce__(self) -> NoReturn:  # a second owner of `data` would free it again
        raise TypeError(
            f"memory of {self.device} can be neither pickled nor copied; send the tensor, which "
            "sends its elements"
        )

    def __del__(self) -> None:
        """Nothing. A handler's exception that waits is raised here, and not in `Owner.__del__`."""


def _no_allocation(device: Device, member: str, result: object) -> BackendError:
    data = getattr(result, "data", None)
    shown = repr(result) if data is None else f"one of data {data!r}"
    return BackendError(
        f"the backend of {device} returned {shown} from {member}, which returns an Allocation: its "
        "data is an address or a handle, an integer from 1 to 2**64 - 1, its offset an integer "
        "(dlbridge.protocol); report it to the backend's authors"
    )


@for_guests
def memory_of(array: np.ndarray[Any, Any], origin: str) -> Memory:
    r"""Return the memory of a numpy array, from its first element on; it keeps the array alive.

    Parameters
    ----------
    array : numpy.ndarray
        Any array, also one over the buffer of another object. It is not changed. Of a read-only
        one, give `tensor_on` *readonly*: a write to read-only pages ends the process.
    origin : str
        Where the memory comes from, in words: ``repr`` and messages say it.

    Returns
    -------
    Memory
        On the CPU.

    Examples
    --------
    >>> from dlbridge.extending import memory_of, tensor_on
    >>> memory = memory_of(np.frombuffer(b"\x01\x02\x03\x04", "uint8"), "a message")
    >>> tensor_on(memory, bridge.dtype("int8"), (2, 2), readonly=True).tolist()
    [[1, 2], [3, 4]]
    """
    return Memory(CPU, address_of(array) if array.size else 0, origin, array)


def new_memory(
    where: Device,
    nbytes: int,
    *,
    alignment: int = MIN_ALIGNMENT,
    content: memoryview | None = None,
    plugin: Plugin | None = None,
) -> Memory:
    """New memory, not initialised, or with *content*, where the `content_limit` of *plugin* allows.

    That is the backend of the device, if it is known. Memory of 0 bytes needs none.
    """
    memory = Memory(where, 0, "dlbridge.empty")
    if nbytes:
        if plugin is None:
            plugin = plugin_of(where)
        use = current_use(where, plugin)
        try:  # as `plugin.allocate`, without a call: 185 ns
            if content is None:
                allocation = plugin.backend.allocate(where.index, nbytes, alignment, use.handle)
            else:
                use.used = True
                allocation = plugin.backend.allocate(
                    where.index, nbytes, alignment, use.handle, content
                )
            memory.take(use, "allocate", allocation)
        except BaseException as exc:
            if content is not None:
                drain_then_release(content, where, use.handle)
            if isinstance(exc, Exception):
                plugin.fail(exc, "allocate")
            raise
    return memory


open_views: Final[dict[int, weakref.ref[HostView]]] = {}
"""Number -> each host view whose block is open. Weak: a Ctrl-C may come before its end is noted."""


def access(memory: Memory, plugin: Plugin | None = None, *, viewing: bool = False) -> int:
    """The stream for work on *memory* now, ordered after the last work on it.

    *plugin* is the backend of the device, if it is known. ExchangeError while the block of
    a host view is open, unless the work is *viewing*.
    """
    if open_views and not viewing:
        refuse_if_viewed(memory)
    now = current_use(memory.device, plugin)
    if memory.last_use is now:  # mostly
        now.used = True
    else:
        order(memory, now, plugin)
    return now.handle


@for_guests
def order_after(memory: Memory, stream: int) -> None:
    """Have our stream, and with it each consumer, wait for the work that a stream has now.

    Parameters
    ----------
    memory : Memory
        What that work is on.
    stream : int
        The native handle of a stream of its device.

    Raises
    ------
    BackendUnavailable
        If no backend here serves the device.
    DeviceError
        If the driver refuses the stream.

    Examples
    --------
    >>> from dlbridge.extending import Memory, order_after, tensor_on
    >>> def received(device, address, stream):  # from somebody who has queued work on it
    ...     memory = Memory(device, address, "a message")
    ...     order_after(memory, stream)
    ...     return tensor_on(memory, bridge.dtype("uint8"), (16,))
    """
    memory.use_on(wait(memory.device, stream))


@for_guests
def ready_stream(memory: Memory) -> int:
    """Return the stream on which some memory is ready for a consumer, and may be used from now on.

    Parameters
    ----------
    memory : Memory
        On any device that a backend here serves.

    Returns
    -------
    int
        The native handle of our current stream, which waits for the last work on the memory. The
        work of the consumer counts as ours.

    Raises
    ------
    BackendUnavailable
        If no backend here serves the device.

    Examples
    --------
    >>> from dlbridge.extending import memory_of, ready_stream
    >>> ready_stream(memory_of(np.zeros(3), "an example"))
    0
    """
    return access(memory, viewing=True)


def order(memory: Memory, now: StreamUse, plugin: Plugin | None) -> None:
    """Note work on *now*, the current stream, which waits for the last work, on another one."""
    device, last = memory.device, memory.last_use
    if last is not None and last.handle != now.handle:
        if plugin is None:
            plugin = plugin_of(device)
        if plugin.wait is not None:
            plugin.wait(device.index, now.handle, last.handle)
    memory.use_on(now)


def refuse_if_viewed(memory: Memory) -> None:
    """ExchangeError while the block of a host view of *memory* is open."""
    for reference in list(open_views.values()):
        view = reference()
        if view is not None and view.viewed is memory:
            raise ExchangeError(
                f"{memory.device} cannot work on this memory while the host uses it: "
                f"{view.description} is open; do the work after its block, or on a copy "
                "that was made before"
            )


def host_access(memory: Memory) -> None:
    """Wait for device work on host-readable memory that the host will read or write next."""
    device, last = memory.device, memory.last_use
    if last is None or device.type is DLDeviceType.kDLCPU:
        return
    plugin = plugin_of(device)
    if plugin.synchronize is not None:
        for handle in {last.handle, current_use(device, plugin).handle}:
            plugin.synchronize(device.index, handle)


# Carriers ---------------------------------------------------------------------------
#
# The private numpy arrays that hold a tensor's shape, strides and memory. If the host may read the
# memory, the carrier is a view of it. Otherwise the carrier has an address that is never read, and
# numpy only computes views and strides, and makes the capsules in C (``core/dlpack/exports.py``
# says why). The chain of a carrier's bases ends at the `Memory`.


# The address of carriers of memory that the host cannot read: aligned, and never
# dereferenced.
NOWHERE = 1 << 40


class CarrierBase:
    """The object that numpy takes a carrier from, and keeps as its base."""

    __slots__ = ()

    memory: Memory
    parent: np.ndarray[Any, Any] | None
    """The carrier that it is a view of: the block of a host view counts who refers to that."""


class _Interface(CarrierBase):
    """What describes any carrier. Numpy takes a microsecond to read it."""

    __slots__ = ("__array_interface__", "memory", "parent")

    __array_interface__: dict[str, Any]


class _Buffer(CarrierBase, ctypes.c_ubyte * MAX_NBYTES):  # type: ignore[misc]  # a class that is made
    """All memory from an address on, which numpy may write to. It takes a quarter of that time."""

    __slots__ = ("memory", "parent")


_buffer_at: Callable[[int], _Buffer] = _Buffer.from_address


def carrier(
    memory: Memory,
    byte_offset: int,
    dtype: DType,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    readonly: bool,
    parent: np.ndarray[Any, Any] | None = None,
) -> np.ndarray[Any, Any]:
    """A new carrier of the type `carrier_dtype`; *strides* in elements, None for compact."""
    made: np.ndarray[Any, Any]
    if not memory.data and memory.device.is_address and 0 not in shape:
        # numpy would allocate memory of its own, in silence.
        what = f"{memory.origin} is at NULL, and has elements: shape {shape} of {dtype}"
        raise ExchangeError(f"{what}; check what gave the address")
    try:
        numpy, kind, itemsize = _makers[dtype]
    except KeyError:
        import numpy

        kind = carrier_dtype(dtype)
        itemsize = kind.itemsize
        _makers[dtype] = numpy, kind, itemsize
    # The address of an empty tensor means nothing: it may be NULL, or no address.
    readable = memory.device.is_host and 0 not in shape
    data = memory.data + byte_offset if readable else NOWHERE
    steps = strides and tuple(map(itemsize.__mul__, strides))  # 0.1 us less than a list
    if not readonly:  # who has a view of a buffer could make it writable again
        buffer = _buffer_at(data)
        buffer.memory = memory
        buffer.parent = parent
        try:
            made = numpy.ndarray(shape, kind, buffer, 0, steps)
            return made
        except (OverflowError, TypeError, ValueError):
            pass  # elements before the first one, or extents that nothing has
    holder = _Interface()
    holder.memory = memory
    holder.parent = parent
    holder.__array_interface__ = {
        "version": 3,
        "data": (data, readonly),
        "shape": shape,
        "typestr": kind.str,
        "strides": steps,
    }
    try:
        made = numpy.asarray(holder)
        return made
    except OverflowError:
        # A stride that is never used (one element, or none) may be any number.
        step = compact_strides(shape)
        taken = [shape[i] > 1 and 0 not in shape for i in range(len(shape))]
        tame = tuple(s if t else c for s, t, c in zip(strides or step, taken, step, strict=True))
        if tame == strides:
            raise
        return carrier(memory, byte_offset, dtype, shape, tame, readonly, parent)


def with_usual_strides(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """*array*, in which dimensions of size 1 have the strides of a row-major array.

    Nobody takes these steps, so they may be any numbers, and ``x[None]`` of numpy has 0. Consumers
    that compare all strides to find out whether memory is compact would refuse it.
    """
    return array.squeeze().reshape(array.shape) if 1 in array.shape else array


@cache
def carrier_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy dtype of carriers for *dtype*: one that numpy exports.

    For a type without a numpy dtype of its size (packed sub-byte types, three
    lanes) the carrier counts elements, a byte for each.
    """
    import numpy as np

    own = {ours: theirs for theirs, ours in native_dtypes().items()}
    return own.get(dtype) or np.dtype(_CARRIERS.get(dtype.bits * dtype.lanes, "uint8"))


@for_guests
def native_dtypes() -> dict[np.dtype[Any], DType]:
    """Return the dtypes that numpy has and exports by itself.

    Returns
    -------
    dict of numpy.dtype to DType
        Always the same one, which must not be changed.

    Examples
    --------
    >>> from dlbridge.extending import native_dtypes
    >>> native_dtypes()[np.dtype("float32")]
    dlbridge.dtype('float32')
    """
    if not NATIVE_DTYPES:
        found = fill_numpy_dtypes().copy()
        NATIVE_DTYPES.update({their: ours for their, ours in found.items() if their.isbuiltin == 1})
    return NATIVE_DTYPES


_CARRIERS = {8: "uint8", 16: "uint16", 32: "uint32", 64: "uint64", 128: "complex128"}
_makers: dict[DType, tuple[Any, np.dtype[Any], int]] = {}
"""How carriers are made: numpy, and their type and its size. To ask numpy for it takes as long as
to make the carrier."""

NATIVE_DTYPES: dict[np.dtype[Any], DType] = {}
"""Filled by `native_dtypes`, for callers that cannot afford a call."""


def counts_elements(dtype: DType) -> bool:
    """Whether carriers for *dtype* have one byte per element, whatever its size."""
    return dtype.bits * dtype.lanes not in _CARRIERS


def basic_index(index: Any) -> tuple[Any, ...]:
    """*index* in a form that is safe for numpy: int, slice, None and Ellipsis.

    Other indices would make numpy read the carrier, whose address may not be
    memory. They raise TypeError or IndexError.
    """
    if type(index) is slice:
        return index, Ellipsis
    given = index if isinstance(index, tuple) else (index,)
    parts = tuple(map(_part, given))
    if Ellipsis not in parts:
        parts = (*parts, Ellipsis)  # numpy then gives an array and never reads an element
    return parts


def _part(part: Any) -> Any:
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    try:
        if not isinstance(part, bool):
            index = operator.index(part)
            if not -(1 << 63) <= index < 1 << 63:
                raise IndexError(f"index {index} is out of bounds: no dimension is as long")
            return index
    except TypeError:
        pass
    raise TypeError(
        f"a Tensor is indexed by int, slice, None and Ellipsis, not {type(part).__name__}; numpy's "
        "arrays by more: dlbridge.to_device(t, 'cpu', like='numpy')[index]"
    )
