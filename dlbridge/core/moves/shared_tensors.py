"""Tensors on shared memory: made, found, and passed to other processes by multiprocessing.

The pickler of multiprocessing asks a table for the class of each object. It gets our
functions with the first block of this process. So only this pickler passes a file
descriptor, and all others copy the elements.
"""

from __future__ import annotations

import operator
import os
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.structs import FLAG_SUBBYTE_PADDED, MAX_NDIM
from dlbridge.core.tensor.array_tensor import ArrayTensor, NumpyTensor, make_tensor
from dlbridge.core.tensor.memory import HostImportMemory, Memory
from dlbridge.core.tensor.operand import operand_of
from dlbridge.core.tensor.ordering import host_access
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import check, dtype as as_dtype
from dlbridge.core.values.layout import reach
from dlbridge.errors import Error, ExchangeError

from .allocate import allocate
from .copies import copy_elements
from .plans import host_range, why_no_host_import
from .shared_blocks import (
    Mapping,
    SharedFile,
    make_file,
    mapping_at,
    recall,
    receive_file,
    remember,
)
from .transfer import move
from .unpickling import chosen_place, land_on_cpu, place_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from dlbridge.core.tensor.operand import Operand
    from dlbridge.core.values.dtypes import DType

    _Layout: TypeAlias = tuple[int, DType, tuple[int, ...], tuple[int, ...] | None, int, bool]

__all__ = ["empty_shared", "receive", "receive_block", "share_tensor"]

_CPU = Device.of(1, 0)


# Made --------------------------------------------------------------------------------


def share_tensor(tensor: Tensor, target: Device) -> Tensor:
    """The elements of *tensor* on *target*, in shared memory; a copy if they are not in it."""
    operand = operand_of(tensor)
    if not operand.size:
        return allocate(target, operand.dtype, operand.shape, padded=operand.padded)
    found = _find(operand)
    if found is None:
        return _copy_to_block(operand, target)
    if operand.device is target:
        return tensor
    if operand.memory is not None:
        host_access(operand.memory)  # the two devices know nothing of each other's work
    return _on_device(*found, target)


def empty_shared(target: Device, dtype: DType, shape: tuple[int, ...]) -> Tensor:
    """A new compact tensor in shared memory; its bytes are zero."""
    if 0 in shape:
        return allocate(target, dtype, shape)
    mapping, layout = _new_block(target, dtype, shape, padded=False)
    return _on_device(mapping, layout, target)


def _copy_to_block(source: Operand, target: Device) -> Tensor:
    mapping, layout = _new_block(target, source.dtype, source.shape, padded=source.padded)
    there = operand_of(_on_host(mapping, layout))
    there.is_new = True
    copy_elements(there, source)
    return _on_device(mapping, layout, target)


def _new_block(
    target: Device, dtype: DType, shape: tuple[int, ...], *, padded: bool
) -> tuple[Mapping, _Layout]:
    """A new block that *target* can use, and the layout of a compact tensor in it."""
    _register()
    mapping = make_file(dtype.nbytes(prod(shape), padded=padded)).mapping(True)
    flags = FLAG_SUBBYTE_PADDED if padded else 0
    if target is not _CPU:
        _check_target(_whole(mapping), target)  # before anything is copied
    return mapping, (0, dtype, shape, None, flags, False)


def _check_target(whole: Tensor, target: Device) -> None:
    """ExchangeError unless *target* can work in the block."""
    refusal = why_no_host_import(*host_range(operand_of(whole)), target, asked=True)
    if refusal:
        raise ExchangeError(
            f"{target} cannot work in shared memory: {refusal}; share the tensor on the CPU, "
            'dlbridge.share(x, "cpu"), and bring it to the device in each process'
        )


def _whole(mapping: Mapping) -> Tensor:
    """All bytes of a block, on the CPU."""
    return _on_host(
        mapping, (0, as_dtype("uint8"), (mapping.nbytes,), None, 0, not mapping.writable)
    )


def _on_host(mapping: Mapping, layout: _Layout) -> Tensor:
    offset, dtype, shape, strides, flags, readonly = layout
    memory = Memory(_CPU, mapping.address, "shared memory", mapping)
    return make_tensor(memory, offset, dtype, shape, strides, readonly=readonly, flags=flags)


def _on_device(mapping: Mapping, layout: _Layout, target: Device) -> Tensor:
    """The tensor of that layout, in place."""
    if target is _CPU:
        return _on_host(mapping, layout)
    offset, dtype, shape, strides, flags, readonly = layout
    memory = _import(mapping, target)
    offset += mapping.address - memory.host_start
    return make_tensor(memory, offset, dtype, shape, strides, readonly=readonly, flags=flags)


def _import(mapping: Mapping, target: Device) -> HostImportMemory:
    """The whole block as memory of *target*: one, which all tensors of the block are in.

    Two imports of the same bytes would be undefined in OpenCL, and one of a part need not
    begin on a page, as Vulkan wants it. ExchangeError if it cannot be in place.
    """
    known = recall(mapping.imports, target)
    if known is not None:
        return known
    whole = _whole(mapping)
    _check_target(whole, target)
    made = operand_of(move(whole, target, False)).memory
    assert isinstance(made, HostImportMemory)  # nothing else uses host memory without a copy
    remember(mapping.imports, target, made)
    return made


# Found -------------------------------------------------------------------------------


def _find(operand: Operand) -> tuple[Mapping, _Layout] | None:
    """The block that the elements are in, and where they are in it; None for other memory."""
    memory = operand.memory
    if not operand.size:
        return None
    if operand.device is _CPU:
        first = operand.data + operand.byte_offset
    elif isinstance(memory, HostImportMemory):
        first = memory.host_start + operand.byte_offset
    else:
        return None
    low, nbytes = operand.span()
    mapping = mapping_at(first + low, nbytes)
    if mapping is None:
        return None
    flags = operand.flags & FLAG_SUBBYTE_PADDED
    readonly = operand.readonly or not mapping.writable
    offset = first - mapping.address
    return mapping, (offset, operand.dtype, operand.shape, operand.strides, flags, readonly)


# Passed on ---------------------------------------------------------------------------


class _Sender:
    """The process in which multiprocessing hands out our descriptors; None before the first."""

    pid: int | None = None

    def begin_anew(self) -> None:
        """Forget it: multiprocessing has started this process, by a fork."""
        self.pid = None


_sender = _Sender()


@cache
def _register() -> None:
    """Have the pickler of multiprocessing ask us about tensors."""
    from multiprocessing.reduction import ForkingPickler
    from multiprocessing.util import register_after_fork

    register_after_fork(_sender, _Sender.begin_anew)

    reducers: dict[type, Callable[[Any], Any]] = {
        SharedFile: _reduce_file,
        **dict.fromkeys((Tensor, NumpyTensor, ArrayTensor), _reduce),
    }
    for kind, reducer in reducers.items():
        ForkingPickler.register(kind, reducer)


def _reduce_file(file: SharedFile) -> tuple[Callable[..., SharedFile], tuple[Any, ...]]:
    """What a pickle has of a file: a descriptor, once for all the tensors in it."""
    from multiprocessing.reduction import DupFd

    if _sender.pid not in (None, os.getpid()):  # the receiver would wait for ever
        raise ExchangeError(
            "this process was forked, and not by multiprocessing: its thread that hands out "
            "descriptors is missing here; start processes by multiprocessing, or send a copy: "
            "to_device(t, t.device, copy=True)"
        )
    _sender.pid = os.getpid()
    return receive_block, (DupFd(file.fileno()), file.nbytes, file.token)


class _Ordinary:
    """A tensor that is pickled as it is everywhere else, by the protocol of the pickle."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.tensor.__reduce_ex__(protocol)


def _reduce(tensor: Tensor) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """What the pickler of multiprocessing makes of *tensor*; the work on it is done then."""
    operand = operand_of(tensor)
    found = _find(operand)
    if found is None:
        # The first of a list: pickle wants a function, and this one is everywhere.
        return operator.getitem, ([_Ordinary(tensor)], 0)
    if operand.memory is not None:
        host_access(operand.memory)
    mapping, (offset, dtype, *layout) = found
    return receive, (mapping.file, str(operand.device), offset, dtype.name, *layout)


def receive_block(descriptor: Any, nbytes: int, token: bytes) -> SharedFile:
    """The file of a block that another process has sent."""
    _register()
    return receive_file(descriptor.detach, nbytes, token)


def receive(
    file: SharedFile,
    device: str,
    offset: int,
    dtype: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    flags: int,
    readonly: bool,
) -> Tensor:
    """The tensor that another process has sent, on the same memory."""
    kind = as_dtype(dtype)
    layout: _Layout = (offset, kind, shape, strides, flags, readonly)
    _check_layout(file, layout)
    mapping = file.mapping(not readonly)
    where = place_of(device)
    if where is _CPU:
        return _on_host(mapping, layout)
    try:
        return _on_device(mapping, layout, where)
    except Error as exc:
        if chosen_place(device) is not None:  # by the receiver, as if it had called to_device
            return move(_on_host(mapping, layout), where, None)
        land_on_cpu(device, "the memory cannot be used in place there", exc)
        return _on_host(mapping, layout)


def _check_layout(file: SharedFile, layout: _Layout) -> None:
    """ExchangeError unless all elements are in the block."""
    offset, dtype, shape, strides, flags, _ = layout
    check(dtype.code, dtype.bits, dtype.lanes)
    well = strides is not None and len(shape) == len(strides) <= MAX_NDIM
    if well and min(shape, default=1) > 0:
        low, high = reach(shape, strides or ())
        if dtype.is_subbyte and not flags & FLAG_SUBBYTE_PADDED:
            first, end = low * dtype.bits * dtype.lanes // 8, dtype.nbytes(high)
        else:
            first, end = low * dtype.itemsize, high * dtype.itemsize
        if offset + first >= 0 and offset + end <= file.nbytes:
            return
    raise ExchangeError(
        f"the message names {dtype} {shape} with strides {strides} at byte {offset} of a block of "
        f"{file.nbytes} bytes of shared memory, and they are not in it"
    )
