"""Tensors on blocks that processes share: on the host, on a device in place, sent and received."""

from __future__ import annotations

import operator
import os
from functools import cache
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import dlbridge as bridge
from dlbridge.errors import BackendUnavailable, Error, ExchangeError
from dlbridge.extending import (
    CPU,
    MAX_NDIM,
    Memory,
    byte_reach,
    check_device,
    check_dtype,
    copy_elements,
    fill,
    host_import_refusal,
    new_tensor,
    operand_of,
    public_in,
    recorded,
    tensor_on,
    wait_for_work,
)
from dlbridge.kit.resources import recall, remember, shared_lock

from .blocks import (
    PAGE,
    DeviceBlock,
    MappedFile,
    SharedFile,
    find_on_device,
    make_file,
    make_on_device,
    mapping_at,
    receive_device_block,
    receive_file,
    why_not_exported,
)
from .pickles import chosen_device, land_on_cpu, target_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge import Device, DType, Operand, Tensor
    from dlbridge.typing import ArrayLike, DeviceLike


class Layout(NamedTuple):
    """Where in a block a tensor is, from the byte *offset* on."""

    offset: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    padded: bool = False
    readonly: bool = False

    def on(self, memory: Memory, begin: int = 0) -> Tensor:
        """The tensor, if the block begins at the byte *begin* of *memory*."""
        return tensor_on(
            memory,
            self.dtype,
            self.shape,
            self.strides,
            byte_offset=begin + self.offset,
            readonly=self.readonly,
            padded=self.padded,
        )


_BYTES = bridge.dtype("uint8")

# Held during one import of a block. It is reentrant, as a finalizer inside may share memory, too.
_importing = shared_lock()


def check_target(mapping: MappedFile, target: Device) -> None:
    """ExchangeError unless *target* can work in the block."""
    refusal = why_not_in(mapping, target)
    if refusal:
        own = why_not_exported(target)
        raise ExchangeError(
            f"{target} cannot work in shared memory: {refusal}, and {own}; share the tensor on "
            'the CPU, dlbridge.share(x, "cpu"), and bring it to the device in each process'
        )


def why_not_in(mapping: MappedFile, target: Device, *, asked: bool = True) -> str:
    """Why *target* does not work in the block; empty if it does.

    *asked*: the user wants this memory, so that a drawback of the device does not count.
    """
    if target is CPU:
        return ""
    return host_import_refusal(target, mapping.address, mapping.nbytes, asked=asked)


def on_host(mapping: MappedFile, layout: Layout) -> Tensor:
    """The tensor of that layout, on the CPU."""
    return layout.on(Memory(CPU, mapping.address, "shared memory", mapping))


def on_device(mapping: MappedFile, layout: Layout, target: Device) -> Tensor:
    """The tensor of that layout, in place."""
    if target is CPU:
        return on_host(mapping, layout)
    memory = _import(mapping, target)
    return layout.on(memory, mapping.address - (memory.host_start or 0))


def _import(mapping: MappedFile, target: Device) -> Memory:
    """The whole block as memory of *target*: one, which all tensors of the block are in.

    Two imports of the same bytes would be undefined in OpenCL, and one of a part need not
    begin on a page, as Vulkan wants it. ExchangeError if it cannot be in place.
    """
    known = recall(mapping.imports, target)
    if known is not None:
        return known
    with _importing:
        known = recall(mapping.imports, target)  # another thread may have imported it meanwhile
        if known is not None:
            return known
        layout = Layout(0, _BYTES, (mapping.nbytes,), readonly=not mapping.writable)
        try:
            there = bridge.to_device(on_host(mapping, layout), target, copy=False)
        except ExchangeError:
            check_target(mapping, target)  # its message has the way out
            raise
        made = operand_of(there).memory
        assert made is not None  # nothing else uses host memory without a copy
        remember(mapping.imports, target, made)
    return made


def find(operand: Operand, *, foreign: bool = False) -> tuple[MappedFile, Layout] | None:
    """The block that the elements are in, and where they are in it; None for other memory.

    *foreign*: also in a file that is not passed on as a block.
    """
    memory = operand.memory
    if not operand.size:
        return None
    if operand.device is CPU:
        first = operand.data + operand.byte_offset
    elif memory is not None and memory.host_start is not None:
        first = memory.host_start + operand.byte_offset
    else:
        return None
    low, nbytes = operand.span()
    mapping = mapping_at(first + low, nbytes)
    if mapping is None or (mapping.file.is_foreign and not foreign):
        return None
    layout = _layout_of(operand, first - mapping.address)
    return mapping, layout._replace(readonly=operand.readonly or not mapping.writable)


def _layout_of(operand: Operand, offset: int) -> Layout:
    return Layout(
        offset, operand.dtype, operand.shape, operand.strides, operand.padded, operand.readonly
    )


Sent: TypeAlias = tuple[int, str, tuple[int, ...], tuple[int, ...] | None, bool, bool]
"""A `Layout` in a message, with the name of the dtype."""


# Made --------------------------------------------------------------------------------


@public_in("dlbridge")
def share(x: ArrayLike, device: DeviceLike | None = None) -> Tensor:
    """Return *x* in memory that other processes can have without a copy.

    It is host memory, which the device uses in place. A GPU with memory of its own gets that
    instead, if its driver can give it to other processes (Vulkan, CUDA).

    The pickler of multiprocessing passes such a tensor on as a file descriptor: through
    a ``Pipe`` or a ``Queue``, in the arguments of a ``Process``, a ``Pool`` or a
    ``ProcessPoolExecutor``, with every start method. The receiver gets a tensor on the
    same memory, and so do those that it sends it to. Ordinary pickles copy.

    Parameters
    ----------
    x : ArrayLike
        Everything that `asarray` takes.
    device : DeviceLike, optional
        The device that works on the memory, in place. None: the one that *x* is on.

    Returns
    -------
    Tensor
        *x* itself if its memory is shared and on *device*, another tensor on that
        memory if *device* uses it in place, otherwise a compact copy. ``empty(shape,
        dtype, device, shared=True)`` makes one to be filled in place.

    Raises
    ------
    TypeError
        If *x* is nothing that `asarray` takes.
    ValueError
        If no device has such a name.
    ExchangeError
        If *device* neither uses host memory in place nor has memory of its own for other
        processes, or this system has no file descriptors (Windows). It is also a BufferError.
    BackendUnavailable
        If no backend here serves *device*.
    DeviceMemoryError
        A MemoryError, if there is no room.

    Notes
    -----
    The processes must agree on who works on the memory when: wait for the device
    (`synchronize`) before you tell another process to go on. Sending a tensor waits for
    the work that dlbridge has queued on it.

    Examples
    --------
    >>> t = bridge.share(np.arange(3))
    >>> t
    dlbridge.Tensor(int64, shape=(3,), device=cpu:0, memory from shared memory)
    >>> bridge.share(t) is t
    True
    """
    tensor = bridge.asarray(x)
    target = tensor.device if device is None else check_device(device)
    if tensor is not x and not tensor.device.is_host:
        try:
            check_device(tensor.device)
        except BackendUnavailable:  # then only the library of *x* can copy it
            tensor = bridge.to_device(x, CPU)
    return share_tensor(tensor, target)


def share_tensor(tensor: Tensor, target: Device) -> Tensor:
    """The elements of *tensor* on *target*, in shared memory; a copy if they are not in it."""
    operand = operand_of(tensor)
    if not operand.size:
        return new_tensor(target, operand.dtype, operand.shape, padded=operand.padded)
    mapped = find(operand)
    if operand.device is target and (mapped or find_on_device(operand)):
        return tensor
    if mapped is None or why_not_in(mapped[0], target):
        with recorded("share puts it into memory that processes share", tensor, target):
            return _copy_to_block(operand, target)
    wait_for_work(operand)  # the two devices know nothing of each other's work
    return on_device(*mapped, target)


def empty_shared(
    target: Device, dtype: DType, shape: tuple[int, ...], alignment: int = 1
) -> Tensor:
    """A new compact tensor in shared memory; its bytes are zero."""
    if alignment > PAGE:
        raise ValueError(f"alignment {alignment}: shared memory begins on a page of {PAGE} bytes")
    if 0 in shape:
        return new_tensor(target, dtype, shape)
    block, layout = _new_block(target, dtype, shape, padded=False)
    if isinstance(block, MappedFile):
        return on_device(block, layout, target)
    # A driver need not clear what it gives.
    fill(tensor_on(block, _BYTES, (dtype.nbytes(prod(shape)),)))
    return layout.on(block)


def _copy_to_block(source: Operand, target: Device) -> Tensor:
    block, layout = _new_block(target, source.dtype, source.shape, padded=source.padded)
    copied = on_host(block, layout) if isinstance(block, MappedFile) else layout.on(block)
    there = operand_of(copied)
    there.is_new = isinstance(block, MappedFile)  # of a device, the work on it is ordered
    copy_elements(there, source)
    return on_device(block, layout, target) if isinstance(block, MappedFile) else copied


def _new_block(
    target: Device, dtype: DType, shape: tuple[int, ...], *, padded: bool
) -> tuple[MappedFile | Memory, Layout]:
    """New memory that *target* works in, and the layout of a compact tensor in it.

    Host memory that the device uses in place, and otherwise memory of the device's own.
    """
    _register()
    nbytes = dtype.nbytes(prod(shape), padded=padded)
    layout = Layout(0, dtype, shape, padded=padded)
    mapping = make_file(nbytes).mapping(True)
    if target is not CPU and why_not_in(mapping, target, asked=False):
        if not why_not_exported(target):
            return make_on_device(target, nbytes), layout
        check_target(mapping, target)  # before anything is copied
    return mapping, layout


# Passed on ---------------------------------------------------------------------------


_senders: set[int] = set()
"""The process in which multiprocessing hands out our descriptors; empty before the first."""


@cache
def _register() -> None:
    """Have the pickler of multiprocessing ask us about tensors."""
    from multiprocessing.reduction import ForkingPickler
    from multiprocessing.util import register_after_fork

    register_after_fork(_senders, set.clear)  # multiprocessing has started that process itself
    reducers: dict[type, Callable[[Any], Any]] = {
        SharedFile: _reduce_file,
        DeviceBlock: _reduce_device_block,
        **dict.fromkeys(_classes(bridge.Tensor), _reduce),
    }
    for kind, reducer in reducers.items():
        ForkingPickler.register(kind, reducer)


def _classes(cls: type) -> list[type]:
    """*cls* and all that are made of it: a pickler asks by the class itself."""
    return [cls, *chain.from_iterable(map(_classes, cls.__subclasses__()))]


def _reduce_file(file: SharedFile) -> tuple[Callable[..., SharedFile], tuple[Any, ...]]:
    """What a pickle has of a file: a descriptor, once for all the tensors in it."""
    return receive_block, (_duplicate(file.fileno()), file.nbytes, file.token)


def _reduce_device_block(
    block: DeviceBlock,
) -> tuple[Callable[..., DeviceBlock], tuple[Any, ...]]:
    """What a pickle has of a device's memory: a descriptor, once for all the tensors in it."""
    descriptor = _duplicate(block.fileno())
    _, nbytes, offset, driver, _ = block.exported
    return receive_memory, (descriptor, block.uuid, nbytes, offset, driver, block.token)


def _duplicate(fd: int) -> Any:
    """What multiprocessing makes a descriptor of the receiver's of."""
    from multiprocessing.reduction import DupFd

    if _senders - {os.getpid()}:  # the receiver would wait for ever
        raise ExchangeError(
            "this process was forked, and not by multiprocessing: its thread that hands out "
            "descriptors is missing here; start processes by multiprocessing, or send a copy: "
            "dlbridge.to_device(t, t.device, copy=True)"
        )
    _senders.add(os.getpid())
    duplicate: Any = DupFd
    return duplicate(fd)


class _Ordinary:
    """A tensor that is pickled as it is everywhere else, by the protocol of the pickle."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.tensor.__reduce_ex__(protocol)


def _reduce(tensor: Tensor) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """What the pickler of multiprocessing makes of *tensor*; the work on it is done then."""
    operand = operand_of(tensor)
    mapped = find(operand)
    own = find_on_device(operand) if mapped is None else None
    message: tuple[Callable[..., Tensor], tuple[Any, ...]]
    if mapped is not None:
        mapping, layout = mapped
        message = receive, (mapping.file, str(operand.device), _sent(layout))
    elif own is not None:
        block, offset = own
        layout = _layout_of(operand, offset)
        message = receive_on_device, (block, str(operand.device), _sent(layout))
    else:
        # The first of a list: pickle wants a function, and this one is everywhere.
        return operator.getitem, ([_Ordinary(tensor)], 0)
    wait_for_work(operand)
    return message


def _sent(layout: Layout) -> Sent:
    return layout.offset, layout.dtype.name, *layout[2:]


def receive_block(descriptor: Any, nbytes: int, token: bytes) -> SharedFile:
    """The file of a block that another process has sent."""
    _register()
    return receive_file(descriptor.detach, nbytes, token)


def receive_memory(descriptor: Any, *description: Any) -> DeviceBlock:
    """The memory of a device that another process has sent."""
    _register()
    return receive_device_block(descriptor.detach, *description)


def receive(file: SharedFile, device: str, sent: Sent) -> Tensor:
    """The tensor that another process has sent, on the same memory."""
    layout = _received(sent, file.nbytes)
    mapping = file.mapping(not layout.readonly)
    where = target_for(device)
    if where is CPU:
        return on_host(mapping, layout)
    try:
        return on_device(mapping, layout, where)
    except Error as exc:
        if chosen_device(device) is not None:  # by the receiver, as if it had called to_device
            return bridge.to_device(on_host(mapping, layout), where)
        land_on_cpu(device, "the memory cannot be used in place there", exc)
        return on_host(mapping, layout)


def receive_on_device(block: DeviceBlock, device: str, sent: Sent) -> Tensor:
    """The tensor that another process has sent, on the same memory of a device.

    Elsewhere it is copied to the device that the receiver has chosen. Where the device is not
    here nobody can read the memory: ExchangeError.
    """
    layout = _received(sent, block.nbytes)
    memory, start = block.on(device)
    tensor = layout.on(memory, start)
    chosen = chosen_device(device)
    return tensor if chosen in (None, memory.device) else bridge.to_device(tensor, chosen)


def _received(sent: Sent, nbytes: int) -> Layout:
    """The layout; ExchangeError unless all elements are in the block of *nbytes* bytes."""
    offset, name, shape, strides, padded, readonly = sent
    dtype = bridge.dtype(name)
    check_dtype(dtype)
    well = strides is not None and len(shape) == len(strides) <= MAX_NDIM
    if well and min(shape, default=1) > 0:
        first, end = byte_reach(dtype, shape, strides or (), padded=padded)
        if offset + first >= 0 and offset + end <= nbytes:
            return Layout(offset, dtype, shape, strides, padded, readonly)
    raise ExchangeError(
        f"the message names {dtype} {shape} with strides {strides} at byte {offset} of a block of "
        f"{nbytes} bytes of shared memory, and they are not in it"
    )
