"""A user's SPIR-V module, run over tensors with a push-constant block; the checks before it."""

from __future__ import annotations

import operator
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError
from dlbridge.kit.resources import Owner

from .device import Device, KernelObjects
from .devices import Devices
from .library import Objects, check, constant, ffi, struct
from .memory import Buffer
from .native import VulkanArray
from .spirv import MAGIC, Module

SETS = 32
"""Descriptor sets that are made at a time: dispatches before one waits for the oldest."""

VULKAN = 7  # kDLVulkan

Binding = tuple[Buffer, int, int]
"""A buffer, and the offset and number of bytes of it that a shader sees."""


class DescriptorSet:
    """A VkDescriptorSet, for one dispatch at a time."""

    def __init__(self, handle: Any) -> None:
        self.cell = ffi.new("VkDescriptorSet[1]", [handle])
        self.last_use = 0
        """The queue's value after which no dispatch uses it."""


class HasDevices(Protocol):
    """The backend. In a child of ``fork()`` it says what is wrong, whatever it is asked for."""

    @property
    def devices(self) -> Devices:
        """All devices."""


class Kernel:
    """An entry point of a SPIR-V module, made ready for one device by ``Vulkan.kernel``.

    Its storage buffers are ``binding = 0, 1, ...`` of ``set = 0``; its push
    constants, if any, one block of *push_nbytes* bytes from offset 0. The module
    is trusted: Vulkan does not check it, and a broken one can end the process.
    Any thread may call it and close it.
    """

    def __init__(
        self,
        backend: HasDevices,
        device_id: int,
        spirv: bytes,
        buffers: int,
        push_nbytes: int,
        entry: str,
    ) -> None:
        device = backend.devices[device_id]
        spirv = _module_of(spirv)
        _check_module(device, spirv, buffers, push_nbytes)
        declared = Module(spirv)
        declared.check(entry, buffers, push_nbytes)
        self._backend = backend
        self.device = device
        self.buffers = buffers
        self.push_nbytes = push_nbytes
        self._writable = declared.writable_bindings()
        self._sets: deque[DescriptorSet] = deque()
        """Those that no call has claimed."""
        device.kernels.sweep()
        # A call that is under way has the owner, too: its kernel goes when that call has ended.
        self._owner: Owner[KernelObjects] | None = Owner(device.kernels, KernelObjects())
        self._build(self._owner.resource, spirv, entry)

    def close(self) -> None:
        """Free the kernel now; waits for its work.

        A kernel that is dropped without this is freed when its work is done and the next is made,
        or the device is closed. If a call is under way, in another thread or in the code
        that a finalizer has interrupted, the kernel is freed after that call.

        Examples
        --------
        ``scale.close()``
        """
        self._backend.devices  # noqa: B018 - the error of a child
        owner, self._owner = self._owner, None
        if owner is not None and self.device.queue.alive:
            with suppress(DeviceError, DeviceMemoryError):  # then it goes when the device does
                self.device.queue.wait(owner.resource.last_use)

    def _build(self, objects: Objects, spirv: bytes, entry: str) -> None:
        device = self.device.pointer
        compute = constant("VK_SHADER_STAGE_COMPUTE_BIT")
        bindings = ffi.new("VkDescriptorSetLayoutBinding[]", self.buffers)
        for i, binding in enumerate(bindings):
            binding.binding = i
            binding.descriptorType = constant("VK_DESCRIPTOR_TYPE_STORAGE_BUFFER")
            binding.descriptorCount = 1
            binding.stageFlags = compute
        info = struct(
            "VkDescriptorSetLayoutCreateInfo", bindingCount=self.buffers, pBindings=bindings
        )
        set_layout = objects.create(device, "DescriptorSetLayout", info)[0]
        self._layouts = ffi.new("VkDescriptorSetLayout[]", [set_layout] * SETS)
        push = ffi.new("VkPushConstantRange *", (compute, 0, self.push_nbytes))
        info = struct(
            "VkPipelineLayoutCreateInfo",
            setLayoutCount=1,
            pSetLayouts=self._layouts,
            pushConstantRangeCount=1 if self.push_nbytes else 0,
            pPushConstantRanges=push,
        )
        self._layout = objects.create(device, "PipelineLayout", info)[0]
        code = ffi.new("uint32_t[]", len(spirv) // 4)
        ffi.memmove(code, spirv, len(spirv))
        info = struct("VkShaderModuleCreateInfo", codeSize=len(spirv), pCode=code)
        # It could be destroyed with the pipeline made; an interrupt would then lose it.
        module = objects.create(device, "ShaderModule", info)
        name = ffi.new("char[]", entry.encode())
        stage = struct(
            "VkPipelineShaderStageCreateInfo", stage=compute, module=module[0], pName=name
        )
        info = struct("VkComputePipelineCreateInfo", stage=stage[0], layout=self._layout)
        create = self.device.lib.vkCreateComputePipelines
        self._pipeline = objects.make(
            "Pipeline",
            lambda cell: create(device, 0, 1, info, ffi.NULL, cell),
            device,
            call=f"vkCreateComputePipelines (entry point {entry!r})",
        )[0]
        self._create_sets(objects)

    def _create_sets(self, objects: Objects) -> None:
        device = self.device.pointer
        storage = constant("VK_DESCRIPTOR_TYPE_STORAGE_BUFFER")
        size = ffi.new("VkDescriptorPoolSize *", (storage, self.buffers * SETS))
        info = struct("VkDescriptorPoolCreateInfo", maxSets=SETS, poolSizeCount=1, pPoolSizes=size)
        pool = objects.create(device, "DescriptorPool", info)[0]
        sets = ffi.new("VkDescriptorSet[]", SETS)
        info = struct(
            "VkDescriptorSetAllocateInfo",
            descriptorPool=pool,
            descriptorSetCount=SETS,
            pSetLayouts=self._layouts,
        )
        result = self.device.lib.vkAllocateDescriptorSets(device, info, sets)
        check(result, "vkAllocateDescriptorSets")
        self._sets.extend(map(DescriptorSet, sets))

    def __call__(self, *tensors: Any, groups: int | Sequence[int], push: bytes = b"") -> None:
        """Enqueue the kernel over *tensors*, in the order of the bindings.

        It runs after all earlier work on the device, and everything that
        dlbridge does later with the tensors comes after it.

        Parameters
        ----------
        *tensors : Tensor or VulkanArray
            One for each binding, on the kernel's device. The shader sees a
            tensor from its first element to its last, rounded up to 32-bit
            words. A `VulkanArray` is what ``t.to_native()`` and `Vulkan.wrap_buffer` return;
            the shader sees it to the end of its buffer.
        groups : int or sequence of int
            Number of work groups along x, y and z.
        push : bytes
            The push constants, *push_nbytes* bytes.

        Raises
        ------
        ValueError
            If the number of tensors, of groups or of bytes in *push* does not
            match the kernel or the device's limits.
        ExchangeError
            If the device cannot bind a tensor, or if a tensor is read-only and the
            module does not mark its binding ``NonWritable``.
        DeviceError
            If the kernel or its device is closed, or the process has forked.

        Examples
        --------
        ``scale(t, groups=16, push=struct.pack("=IIf", 1000, 1, 2.0))`` runs 16
        work groups of the module in docs/vulkan.md.
        """
        devices = self._backend.devices
        bindings = [_binding_of(tensor, self.device, devices) for tensor in tensors]
        _check_readonly(tensors, self._writable)
        self.run(bindings, groups, push)

    def run(self, bindings: Sequence[Binding], groups: int | Sequence[int], push: bytes) -> int:
        """Enqueue one dispatch over allocations; the queue's value for it."""
        self._backend.devices[self.device.index]  # the error of a child, or of a closed device
        owner = self._owner
        if owner is None:
            raise DeviceError("this kernel is closed")
        counts, push = _counts_of(groups), _bytes_of(push, "push must be bytes")
        self._check(bindings, counts, push)
        block = ffi.new("char[]", push) if push else ffi.NULL
        chosen = self._claim(owner.resource)
        try:
            self.device.queue.wait(chosen.last_use)
            self._bind(chosen, bindings)
            return self.device.queue.submit(
                lambda commands: self._record(commands, chosen, counts, block),
                [*(buffer for buffer, _, _ in bindings), chosen, owner.resource],
            )
        finally:
            self._sets.append(chosen)

    def _claim(self, objects: Objects) -> DescriptorSet:
        """A descriptor set for this call alone, the one whose last use is the oldest."""
        while True:
            with suppress(IndexError):  # all are claimed, by other threads or an interrupted call
                return self._sets.popleft()
            self._create_sets(objects)

    def _bind(self, chosen: DescriptorSet, bindings: Sequence[Binding]) -> None:
        infos = ffi.new(
            "VkDescriptorBufferInfo[]",
            [
                (a.buffer, offset, min(-(-nbytes // 4) * 4, a.words - offset))
                for a, offset, nbytes in bindings
            ],
        )
        writes = ffi.new("VkWriteDescriptorSet[]", len(bindings))
        for i, write in enumerate(writes):
            write.sType = constant("VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET")
            write.dstSet = chosen.cell[0]
            write.dstBinding = i
            write.descriptorCount = 1
            write.descriptorType = constant("VK_DESCRIPTOR_TYPE_STORAGE_BUFFER")
            write.pBufferInfo = infos + i
        self.device.lib.vkUpdateDescriptorSets(
            self.device.pointer, len(bindings), writes, 0, ffi.NULL
        )

    def _record(
        self, commands: Any, chosen: DescriptorSet, groups: Sequence[int], block: Any
    ) -> None:
        lib = self.device.lib
        point = constant("VK_PIPELINE_BIND_POINT_COMPUTE")
        lib.vkCmdBindPipeline(commands, point, self._pipeline)
        lib.vkCmdBindDescriptorSets(commands, point, self._layout, 0, 1, chosen.cell, 0, ffi.NULL)
        if self.push_nbytes:
            stage = constant("VK_SHADER_STAGE_COMPUTE_BIT")
            lib.vkCmdPushConstants(commands, self._layout, stage, 0, self.push_nbytes, block)
        lib.vkCmdDispatch(commands, *groups)

    def _check(self, bindings: Sequence[Binding], groups: Sequence[int], push: bytes) -> None:
        limits = self.device.physical.limits
        if len(bindings) != self.buffers:
            raise ValueError(f"{len(bindings)} tensors given; the kernel binds {self.buffers}")
        if len(push) != self.push_nbytes:
            raise ValueError(
                f"{len(push)} bytes of push constants given; the kernel takes {self.push_nbytes}"
            )
        for count, most in zip(groups, limits["max_work_groups"], strict=True):
            if not 0 < count <= most:
                raise ValueError(f"groups {tuple(groups)}: each must be 1 to {most} here")
        _check_bindings(self.device, bindings)


# What a kernel is made of and called with -------------------------------------------


def _binding_of(tensor: Any, device: Device, devices: Devices) -> Binding:
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
    allocation = devices.find(data)
    if allocation is None:
        where = getattr(tensor, "device", None)
        if native or getattr(where, "type", None) == VULKAN:
            devices.buffer(data)  # which says what has become of it
        raise ExchangeError(
            f"a tensor on {where or 'no known device'} is not in Vulkan "
            f"memory; move it with dlbridge.to_device(x, 'vulkan:{device.index}')"
        )
    if hasattr(tensor, "operand"):
        tensor.operand()  # the order of work, and the refusal while the host uses the memory
    return allocation, offset, allocation.nbytes - offset if native else _extent(tensor)


def _check_bindings(device: Device, bindings: Sequence[Binding]) -> None:
    """ExchangeError for what the device cannot bind, by its position among the tensors."""
    step = device.physical.limits["min_storage_buffer_offset_alignment"]
    most = device.physical.limits["max_storage_buffer_range"]
    for position, (buffer, offset, nbytes) in enumerate(bindings):
        if buffer.device is not device:
            reason = (
                f"is on vulkan:{buffer.device.index}, the kernel on vulkan:{device.index}; move it "
                "with to_device"
            )
        elif not 0 <= offset < buffer.words:
            reason = f"begins at byte {offset}, outside its buffer of {buffer.nbytes} bytes"
        elif offset % step:
            reason = (
                f"begins {offset} bytes into its buffer; this device binds at multiples of {step}. "
                "Pass the whole tensor and the offset as a push constant, or a copy"
            )
        elif nbytes > most:
            reason = (
                f"has {nbytes} bytes; this device's shaders see at most {most} of one buffer. Pass "
                "it in slices"
            )
        elif offset + nbytes > buffer.words:
            reason = f"ends at byte {offset + nbytes}, outside its buffer of {buffer.nbytes} bytes"
        else:
            continue
        raise ExchangeError(f"tensor {position} {reason}")


def _check_readonly(tensors: Sequence[Any], writable: frozenset[int]) -> None:
    """ExchangeError for a read-only tensor at a binding that the module may write to."""
    for position, tensor in enumerate(tensors):
        if tensor.readonly and position in writable:
            raise ExchangeError(
                f"tensor {position} is read-only, and the module may write to binding {position}: "
                "it is not marked NonWritable. Declare the buffer `readonly` in the shader if it "
                "is only read, or pass a copy"
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
    steps = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True))
    return int((steps + 1) * tensor.itemsize)


def _counts_of(groups: Any) -> tuple[int, ...]:
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


def _bytes_of(value: Any, what: str) -> bytes:
    """*value* as bytes."""
    try:
        return bytes(memoryview(value))
    except TypeError as exc:
        raise TypeError(f"{what}, not {type(value).__qualname__}") from exc


def _module_of(spirv: Any) -> bytes:
    """The module as bytes."""
    if isinstance(spirv, (str, os.PathLike)):
        raise TypeError(
            f"spirv must be the bytes of a SPIR-V module, not {spirv!r}: if that is its file, "
            "pass open(path, 'rb').read()"
        )
    return _bytes_of(spirv, "spirv must be the bytes of a SPIR-V module")


def _check_module(device: Device, spirv: bytes, buffers: int, push_nbytes: int) -> None:
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
