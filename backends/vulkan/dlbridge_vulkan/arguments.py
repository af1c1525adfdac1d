"""Checks of a kernel and of its arguments, before Vulkan sees them."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from typing import Any

from dlbridge.errors import ExchangeError

from .device import Device
from .live import Live
from .memory import Allocation
from .native import VulkanArray
from .spirv import MAGIC
from .strided import span

__all__ = [
    "Binding",
    "binding_of",
    "bytes_of",
    "check_bindings",
    "check_module",
    "check_readonly",
    "counts_of",
    "module_of",
]

VULKAN = 7  # kDLVulkan

Binding = tuple[Allocation, int, int]
"""A buffer, and the offset and number of bytes of it that a shader sees."""


def binding_of(tensor: Any, device: Device, live: Live) -> Binding:
    """The binding of a dlbridge tensor or a `VulkanArray`; ExchangeError if it has no buffer."""
    native = isinstance(tensor, VulkanArray)
    if not native and not (hasattr(tensor, "data_ptr") and hasattr(tensor, "byte_offset")):
        raise TypeError(
            f"{type(tensor).__module__}.{type(tensor).__qualname__} was given, which is not in "
            f"Vulkan memory; move it with dlbridge.to_device(x, 'vulkan:{device.index}')"
        )
    if 0 in tensor.shape:
        raise ExchangeError(f"a tensor of shape {tensor.shape} has no bytes, and no buffer")
    data = tensor.data if native else tensor.data_ptr()
    offset = tensor.offset if native else tensor.byte_offset
    allocation = live.find(data)
    if allocation is None:
        where = getattr(tensor, "device", None)
        if native or getattr(where, "type", None) == VULKAN:
            live.get(data)  # which says what has become of it
        raise ExchangeError(
            f"a tensor on {where or 'no known device'} is not in Vulkan "
            f"memory; move it with dlbridge.to_device(x, 'vulkan:{device.index}')"
        )
    if hasattr(tensor, "operand"):
        tensor.operand()  # the order of work, and the refusal while the host uses the memory
    return allocation, offset, allocation.nbytes - offset if native else _extent(tensor)


def check_bindings(device: Device, bindings: Sequence[Binding]) -> None:
    """ExchangeError for what the device cannot bind, by its place among the tensors."""
    limits = device.physical.limits
    for place, (allocation, offset, nbytes) in enumerate(bindings):
        if allocation.queue is not device.queue:
            where = getattr(allocation, "device", None)
            raise ExchangeError(
                f"tensor {place} is on {f'vulkan:{where.index}' if where else 'another device'}, "
                f"the kernel on vulkan:{device.index}; move it with to_device"
            )
        if not 0 <= offset < allocation.words:
            raise ExchangeError(
                f"tensor {place} begins at byte {offset}, outside its buffer of "
                f"{allocation.nbytes} bytes"
            )
        step = limits["min_storage_buffer_offset_alignment"]
        if offset % step:
            raise ExchangeError(
                f"tensor {place} begins {offset} bytes into its buffer; this device binds "
                f"at multiples of {step}. Pass the whole tensor and the offset as a push "
                "constant, or a copy"
            )
        if nbytes > limits["max_storage_buffer_range"]:
            raise ExchangeError(
                f"tensor {place} has {nbytes} bytes; this device's shaders see at most "
                f"{limits['max_storage_buffer_range']} of one buffer. Pass it in slices"
            )
        if offset + nbytes > allocation.words:
            raise ExchangeError(
                f"tensor {place} ends at byte {offset + nbytes}, outside its buffer of "
                f"{allocation.nbytes} bytes"
            )


def check_readonly(tensors: Sequence[Any], writable: frozenset[int]) -> None:
    """ExchangeError for a read-only tensor at a binding that the module may write to."""
    for place, tensor in enumerate(tensors):
        if tensor.readonly and place in writable:
            raise ExchangeError(
                f"tensor {place} is read-only, and the module may write to binding {place}: it is "
                "not marked NonWritable. Declare the buffer `readonly` in the shader if it is only "
                "read, or pass a copy"
            )


def _extent(tensor: Any) -> int:
    """Bytes from the first to the last element of a tensor that is not empty."""
    if tensor.is_contiguous():
        return int(tensor.nbytes)
    if any(n > 1 and step < 0 for n, step in zip(tensor.shape, tensor.strides, strict=True)):
        raise ExchangeError(
            f"strides {tensor.strides} run backwards, to before the tensor's first element; "
            "pass a copy"
        )
    steps = [step * tensor.itemsize for step in tensor.strides]
    return span(steps, tensor.shape, tensor.itemsize)


def counts_of(groups: Any) -> tuple[int, ...]:
    """The numbers of work groups along x, y and z."""
    rule = f"groups={groups!r}: one to three whole numbers, along x, y, z"
    try:
        given = tuple(groups) if hasattr(groups, "__len__") else (groups,)
        counts = tuple(map(operator.index, given))
    except TypeError as exc:
        raise TypeError(rule) from exc
    if not 1 <= len(counts) <= 3:
        raise ValueError(rule)
    return (*counts, 1, 1)[:3]


def bytes_of(push: Any) -> bytes:
    """The push constants as bytes."""
    try:
        return bytes(memoryview(push))
    except TypeError as exc:
        raise TypeError(f"push must be bytes, not {type(push).__qualname__}") from exc


def module_of(spirv: Any) -> bytes:
    """The module as bytes."""
    if isinstance(spirv, (str, os.PathLike)):
        raise TypeError(
            f"spirv must be the bytes of a SPIR-V module, not {spirv!r}: if that is its file, "
            "pass open(path, 'rb').read()"
        )
    try:
        return bytes(memoryview(spirv))
    except TypeError as exc:
        raise TypeError(
            f"spirv must be the bytes of a SPIR-V module, not {type(spirv).__qualname__}"
        ) from exc


def check_module(device: Device, spirv: bytes, buffers: int, push_nbytes: int) -> None:
    """ValueError for what is not a SPIR-V module, or beyond the device."""
    limits = device.physical.limits
    if len(spirv) < 20 or len(spirv) % 4 or int.from_bytes(spirv[:4], "little") != MAGIC:
        raise ValueError(
            "this is not a SPIR-V module: it must begin with 0x07230203 (little-endian) and be "
            "whole 32-bit words; compile GLSL with `glslangValidator -V x.comp -o x.spv`"
        )
    if not 1 <= buffers <= limits["max_storage_buffers"]:
        raise ValueError(f"buffers={buffers}: 1 to {limits['max_storage_buffers']} here")
    if push_nbytes % 4 or not 0 <= push_nbytes <= limits["max_push_constants"]:
        raise ValueError(
            f"push_nbytes={push_nbytes}: a multiple of 4, at most {limits['max_push_constants']}"
        )
