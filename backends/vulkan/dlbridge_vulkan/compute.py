"""Compute: a user's SPIR-V module, run over tensors with a push-constant block."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dlbridge.errors import DeviceError, DeviceMemoryError

from .arguments import Binding, binding_of, bytes_of, check_bindings, check_module, counts_of
from .errors import check
from .library import constant, ffi, struct

if TYPE_CHECKING:
    from .device import Device
    from .live import Live

__all__ = ["Kernel"]

SETS = 32
"""Descriptor sets of a kernel: dispatches before one waits for the oldest."""


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
        check_module(device, spirv, buffers, push_nbytes)
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
        self.run([binding_of(tensor, self.device, self._live) for tensor in tensors], groups, push)

    def run(self, bindings: Sequence[Binding], groups: int | Sequence[int], push: bytes) -> int:
        """Enqueue one dispatch over allocations; the queue's value for it."""
        if not self._free.alive or not self.device.alive:
            raise DeviceError("this kernel is closed, its device is, or the process forked")
        counts, push = counts_of(groups), bytes_of(push)
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
        check_bindings(self.device, bindings)


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
