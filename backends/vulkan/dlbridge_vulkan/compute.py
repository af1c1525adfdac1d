"""Compute: a user's SPIR-V module, run over tensors with a push-constant block."""

from __future__ import annotations

import operator
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError

from .errors import check
from .library import constant, ffi, struct
from .native import VulkanArray
from .strided import span

if TYPE_CHECKING:
    from .device import Device
    from .live import Live
    from .memory import Allocation

__all__ = ["Binding", "Kernel"]

VULKAN = 7  # kDLVulkan
SPIRV_MAGIC = 0x07230203
SETS = 32
"""Descriptor sets of a kernel: dispatches before one waits for the oldest."""

Binding = tuple["Allocation", int, int]
"""A buffer, and the offset and number of bytes of it that a shader sees."""


class Kernel:
    """An entry point of a SPIR-V module, made ready for one device.

    Its storage buffers are ``binding = 0, 1, ...`` of ``set = 0``; its push
    constants, if any, one block of *push_nbytes* bytes from offset 0. Made by
    ``Vulkan.kernel``. The module is trusted: Vulkan does not check it, and a
    broken one can end the process.
    """

    def __init__(
        self,
        device: Device,
        live: Live,
        spirv: bytes,
        buffers: int,
        push_nbytes: int,
        entry: str,
    ) -> None:
        _check_module(device, spirv, buffers, push_nbytes)
        self.device = device
        self._live = live
        self.buffers = buffers
        self.push_nbytes = push_nbytes
        self._lock = threading.Lock()
        self._used: deque[tuple[int, Any]] = deque()
        self._made: list[tuple[Any, int]] = []  # what to destroy, newest last
        # A kernel is freed when the queue is done with it, whoever drops it.
        self._free = weakref.finalize(self, _destroy, device, self._made, self._used)
        self._free.atexit = False  # the process ends with the device open
        try:
            self._build(spirv, entry)
        except BaseException:
            self._free()
            raise
        device.kernels.add(self)

    def close(self) -> None:
        """Wait for the kernel's work and free it now, not when it is dropped."""
        with self._lock:  # not under a call of another thread
            self._free()

    def _create(self, name: str, kind: str, info: Any) -> int:
        lib, device = self.device.lib, self.device.pointer
        made = ffi.new(f"Vk{kind} *")
        check(getattr(lib, f"vkCreate{kind}")(device, info, ffi.NULL, made), name)
        self._made.append((getattr(lib, f"vkDestroy{kind}"), made[0]))
        return int(made[0])

    def _build(self, spirv: bytes, entry: str) -> None:
        compute = constant("VK_SHADER_STAGE_COMPUTE_BIT")
        storage = constant("VK_DESCRIPTOR_TYPE_STORAGE_BUFFER")
        bindings = ffi.new("VkDescriptorSetLayoutBinding[]", self.buffers)
        for i, binding in enumerate(bindings):
            binding.binding = i
            binding.descriptorType = storage
            binding.descriptorCount = 1
            binding.stageFlags = compute
        info = struct(
            "VkDescriptorSetLayoutCreateInfo", bindingCount=self.buffers, pBindings=bindings
        )
        set_layout = self._create("vkCreateDescriptorSetLayout", "DescriptorSetLayout", info)
        layouts = ffi.new("VkDescriptorSetLayout[]", [set_layout] * SETS)
        push = ffi.new("VkPushConstantRange *", (compute, 0, self.push_nbytes))
        info = struct(
            "VkPipelineLayoutCreateInfo",
            setLayoutCount=1,
            pSetLayouts=layouts,
            pushConstantRangeCount=1 if self.push_nbytes else 0,
            pPushConstantRanges=push,
        )
        self._layout = self._create("vkCreatePipelineLayout", "PipelineLayout", info)
        self._pipeline = self._create_pipeline(spirv, entry, compute)
        self._create_sets(layouts, storage)

    def _create_sets(self, layouts: Any, storage: int) -> None:
        lib, device = self.device.lib, self.device.pointer
        size = ffi.new("VkDescriptorPoolSize *", (storage, self.buffers * SETS))
        info = struct("VkDescriptorPoolCreateInfo", maxSets=SETS, poolSizeCount=1, pPoolSizes=size)
        pool = self._create("vkCreateDescriptorPool", "DescriptorPool", info)
        sets = ffi.new(f"VkDescriptorSet[{SETS}]")
        info = struct(
            "VkDescriptorSetAllocateInfo",
            descriptorPool=pool,
            descriptorSetCount=SETS,
            pSetLayouts=layouts,
        )
        check(lib.vkAllocateDescriptorSets(device, info, sets), "vkAllocateDescriptorSets")
        self._used.extend((0, ffi.new("VkDescriptorSet[1]", [one])) for one in sets)

    def _create_pipeline(self, spirv: bytes, entry: str, stage: int) -> int:
        lib, device = self.device.lib, self.device.pointer
        code = ffi.new("uint32_t[]", len(spirv) // 4)
        ffi.memmove(code, spirv, len(spirv))
        info = struct("VkShaderModuleCreateInfo", codeSize=len(spirv), pCode=code)
        module = ffi.new("VkShaderModule *")
        check(lib.vkCreateShaderModule(device, info, ffi.NULL, module), "vkCreateShaderModule")
        name = ffi.new("char[]", entry.encode())
        stage_info = struct(
            "VkPipelineShaderStageCreateInfo", stage=stage, module=module[0], pName=name
        )
        info = struct("VkComputePipelineCreateInfo", stage=stage_info[0], layout=self._layout)
        pipeline = ffi.new("VkPipeline *")
        result = lib.vkCreateComputePipelines(device, 0, 1, info, ffi.NULL, pipeline)
        lib.vkDestroyShaderModule(device, module[0], ffi.NULL)
        check(result, f"vkCreateComputePipelines (entry point {entry!r})")
        self._made.append((lib.vkDestroyPipeline, pipeline[0]))
        return int(pipeline[0])

    def __call__(self, *tensors: Any, groups: int | Sequence[int], push: bytes = b"") -> None:
        """Enqueue the kernel over *tensors*: ``binding = 0, 1, ...`` in their order.

        *tensors* are dlbridge tensors or `VulkanArray` on the kernel's device;
        *groups* is the number of work groups along x, y, z; *push* the bytes
        of the push constants. It runs after all earlier work on the tensors,
        and everything that dlbridge does with them later comes after it. A
        shader must not write to read-only tensors.

        It sees each tensor from its first element to its last, rounded up to
        32-bit words, and a `VulkanArray` to the end of its buffer.

        ValueError if what is passed does not match what the kernel was made
        for, ExchangeError if the device cannot bind it.
        """
        self.run([self._binding(tensor) for tensor in tensors], groups, push)

    def _binding(self, tensor: Any) -> Binding:
        native = isinstance(tensor, VulkanArray)
        if not native and not (hasattr(tensor, "data_ptr") and hasattr(tensor, "byte_offset")):
            raise TypeError(
                f"a {type(tensor).__qualname__} is no dlbridge tensor; wrap it by "
                f"dlbridge.to_device(x, 'vulkan:{self.device.index}')"
            )
        if 0 in tensor.shape:
            raise ExchangeError(f"a tensor of shape {tensor.shape} has no bytes, and no buffer")
        data = tensor.data if native else tensor.data_ptr()
        offset = tensor.offset if native else tensor.byte_offset
        allocation = self._live.find(data)
        if allocation is None:
            where = getattr(tensor, "device", None)
            if native or getattr(where, "type", None) == VULKAN:
                self._live.get(data)  # which says what has become of it
            raise ExchangeError(
                f"a tensor on {where or 'no known device'} is not in Vulkan "
                f"memory; move it with dlbridge.to_device(x, 'vulkan:{self.device.index}')"
            )
        return allocation, offset, allocation.nbytes - offset if native else _extent(tensor)

    def run(self, bindings: Sequence[Binding], groups: int | Sequence[int], push: bytes) -> int:
        """Enqueue one dispatch over allocations; the queue's value for it."""
        if not self._free.alive or not self.device.alive:
            raise DeviceError("this kernel is closed, its device is, or the process forked")
        counts, push = _counts(groups), _bytes(push)
        self._check(bindings, counts, push)
        block = ffi.new("char[]", push) if push else ffi.NULL
        with self._lock:
            if not self._free.alive:  # closed by another thread since
                raise DeviceError("this kernel is closed")
            # Marked before the submission, so that nobody takes the set twice.
            value, chosen = self._used.popleft()
            try:
                self.device.queue.wait(value)
                self._bind(chosen, bindings)
                value = self.device.submit(
                    lambda commands: self._record(commands, chosen, counts, block),
                    [allocation for allocation, _, _ in bindings],
                )
            finally:
                self._used.append((value, chosen))
        return value

    def _bind(self, chosen: Any, bindings: Sequence[Binding]) -> None:
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
            write.dstSet = chosen[0]
            write.dstBinding = i
            write.descriptorCount = 1
            write.descriptorType = constant("VK_DESCRIPTOR_TYPE_STORAGE_BUFFER")
            write.pBufferInfo = infos + i
        self.device.lib.vkUpdateDescriptorSets(
            self.device.pointer, len(bindings), writes, 0, ffi.NULL
        )

    def _record(self, commands: Any, chosen: Any, groups: Sequence[int], block: Any) -> None:
        lib = self.device.lib
        point = constant("VK_PIPELINE_BIND_POINT_COMPUTE")
        lib.vkCmdBindPipeline(commands, point, self._pipeline)
        lib.vkCmdBindDescriptorSets(commands, point, self._layout, 0, 1, chosen, 0, ffi.NULL)
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
        for place, (allocation, offset, nbytes) in enumerate(bindings):
            if allocation.device is not self.device:
                raise ExchangeError(
                    f"tensor {place} is on vulkan:{allocation.device.index}, the kernel on "
                    f"vulkan:{self.device.index}; move it with to_device"
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


def _extent(tensor: Any) -> int:
    """Bytes from the first to the last element of a tensor that is not empty."""
    if tensor.is_contiguous():
        return int(tensor.nbytes)
    if min(tensor.strides) < 0:
        raise ExchangeError(
            f"strides {tensor.strides} run backwards, to before the tensor's first element; "
            "pass a copy"
        )
    steps = [step * tensor.itemsize for step in tensor.strides]
    return span(steps, tensor.shape, tensor.itemsize)


def _counts(groups: Any) -> tuple[int, ...]:
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


def _bytes(push: Any) -> bytes:
    try:
        return bytes(memoryview(push))
    except TypeError as exc:
        raise TypeError(f"push must be bytes, not {type(push).__qualname__}") from exc


def _check_module(device: Device, spirv: bytes, buffers: int, push_nbytes: int) -> None:
    limits = device.physical.limits
    if len(spirv) < 20 or len(spirv) % 4 or int.from_bytes(spirv[:4], "little") != SPIRV_MAGIC:
        raise ValueError(
            "this is no SPIR-V module: it must begin with 0x07230203 (little-endian) and be "
            "whole 32-bit words; compile GLSL with `glslangValidator -V x.comp -o x.spv`"
        )
    if not 1 <= buffers <= limits["max_storage_buffers"]:
        raise ValueError(f"buffers={buffers}: 1 to {limits['max_storage_buffers']} here")
    if push_nbytes % 4 or not 0 <= push_nbytes <= limits["max_push_constants"]:
        raise ValueError(
            f"push_nbytes={push_nbytes}: a multiple of 4, at most {limits['max_push_constants']}"
        )


def _destroy(device: Device, made: list[tuple[Any, int]], used: deque[tuple[int, Any]]) -> None:
    if not device.alive:
        return
    # A finalizer must not raise.
    try:
        device.queue.wait(max((value for value, _ in used), default=0))
    except DeviceMemoryError:
        return  # it may be in use still: better left than pulled away
    except DeviceError:
        pass  # a lost device has no work left
    while made:
        destroy, thing = made.pop()
        destroy(device.pointer, thing, ffi.NULL)
