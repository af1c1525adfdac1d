"""Tensors on the blocks of host memory: on the host, on a device in place, and found by address."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, TypeAlias

from dlbridge.core.dlpack.structs import FLAG_SUBBYTE_PADDED
from dlbridge.core.tensor.array_tensor import make_tensor
from dlbridge.core.tensor.memory import Memory
from dlbridge.core.tensor.operand import operand_of
from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import DType, dtype as as_dtype
from dlbridge.errors import ExchangeError

from . import device_blocks
from .plans import why_no_host_import
from .shared_blocks import Mapping, mapping_at, recall, remember
from .transfer import move

if TYPE_CHECKING:
    from dlbridge.core.tensor.operand import Operand
    from dlbridge.core.tensor.tensor import Tensor

__all__ = ["Layout", "check_target", "find", "on_device", "on_host", "why_not_in"]

Layout: TypeAlias = tuple[int, DType, tuple[int, ...], tuple[int, ...] | None, int, bool]
"""Byte offset in the block, dtype, shape, strides, flags, and whether it is read-only."""

_CPU = Device.of(1, 0)

# Held during one import of a block. It is reentrant, as a finalizer inside may share memory, too.
_importing = threading.RLock()


def _renew_lock() -> None:
    # A thread that held it does not exist in the child.
    global _importing
    _importing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def check_target(mapping: Mapping, target: Device) -> None:
    """ExchangeError unless *target* can work in the block."""
    refusal = why_not_in(mapping, target)
    if refusal:
        own = device_blocks.why_none(target)
        raise ExchangeError(
            f"{target} cannot work in shared memory: {refusal}, and {own}; share the tensor on "
            'the CPU, dlbridge.share(x, "cpu"), and bring it to the device in each process'
        )


def why_not_in(mapping: Mapping, target: Device, *, asked: bool = True) -> str:
    """Why *target* does not work in the block; empty if it does.

    *asked*: the user wants this memory, so that a drawback of the device does not count.
    """
    if target is _CPU:
        return ""
    return why_no_host_import(mapping.address, mapping.nbytes, target, asked=asked)


def _whole(mapping: Mapping) -> Tensor:
    """All bytes of a block, on the CPU."""
    return on_host(
        mapping, (0, as_dtype("uint8"), (mapping.nbytes,), None, 0, not mapping.writable)
    )


def on_host(mapping: Mapping, layout: Layout) -> Tensor:
    """The tensor of that layout, on the CPU."""
    offset, dtype, shape, strides, flags, readonly = layout
    memory = Memory(_CPU, mapping.address, "shared memory", mapping)
    return make_tensor(memory, offset, dtype, shape, strides, readonly=readonly, flags=flags)


def on_device(mapping: Mapping, layout: Layout, target: Device) -> Tensor:
    """The tensor of that layout, in place."""
    if target is _CPU:
        return on_host(mapping, layout)
    offset, dtype, shape, strides, flags, readonly = layout
    memory = _import(mapping, target)
    offset += mapping.address - (memory.host_start or 0)
    return make_tensor(memory, offset, dtype, shape, strides, readonly=readonly, flags=flags)


def _import(mapping: Mapping, target: Device) -> Memory:
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
        check_target(mapping, target)
        made = operand_of(move(_whole(mapping), target, False)).memory
        assert made is not None  # nothing else uses host memory without a copy
        remember(mapping.imports, target, made)
    return made


def find(operand: Operand) -> tuple[Mapping, Layout] | None:
    """The block that the elements are in, and where they are in it; None for other memory."""
    memory = operand.memory
    if not operand.size:
        return None
    if operand.device is _CPU:
        first = operand.data + operand.byte_offset
    elif memory is not None and memory.host_start is not None:
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
