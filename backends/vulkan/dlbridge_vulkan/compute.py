"""Compute: a user's SPIR-V module, run over tensors with a push-constant block."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dlbridge.errors import DeviceError, DeviceMemoryError

from .arguments import (
    Binding,
    binding_of,
    bytes_of,
    check_bindings,
    check_module,
    check_readonly,
    counts_of,
    module_of,
)
from .device import Device
from .errors import AFTER_FORK, check
from .handles import Handles
from .library import constant, ffi, struct
from .live import Live
from .locks import holds
from .queue import NEVER
from .spirv import Module

__all__ = ["Kernel"]

SETS = 32
"""Descriptor sets of a kernel: dispatches before one waits for the oldest."""


class Kernel:
    """An entry point of a SPIR-V module, made ready for one device by ``Vulkan.kernel``.

    Its storage buffers are ``binding = 0, 1, ...`` of ``set = 0``; its push
    constants, if any, one block of *push_nbytes* bytes from offset 0. The module
    is trusted: Vulkan does not check it, and a broken one can end the process.
    Any thread may call it and close it.
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
        spirv = module_of(spirv)
        check_module(device, spirv, buffers, push_nbytes)
        declared = Module(spirv)
        declared.check(entry, buffers, push_nbytes)
        self.device = device
        self._live = live
        self.buffers = buffers
        self.push_nbytes = push_nbytes
        self._writable = declared.writable_bindings()
        self._closed = False
        self._calls: set[object] = set()
        """The calls that are under way."""
        self._sets: deque[tuple[int, Any]] = deque()
        """Descriptor sets that no call has claimed, with the queue's value of their last use."""
        self._handles = Handles()
        self._owned = _Owned(device, self._handles, self._sets)
        device.reclaim()
        self._life: object = device.kernels.enter(self._owned)
        self._build(spirv, entry)

    def close(self) -> None:
        """Free the kernel now; waits for its work.

        A kernel that is dropped without this is freed when its work is done and the next is made,
        or the device is closed. If a call is under way, in another thread or in the code
        that a finalizer has interrupted, the kernel is freed at the end of that call.

        Examples
        --------
        ``scale.close()``
        """
        self._closed = True
        if not self._calls:
            self._free()

    def _free(self) -> None:
        self._owned.close()
        self._life = None

    def _build(self, spirv: bytes, entry: str) -> None:
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
        set_layout = self._handles.create(device, "DescriptorSetLayout", info)[0]
        self._layouts = ffi.new("VkDescriptorSetLayout[]", [set_layout] * SETS)
        push = ffi.new("VkPushConstantRange *", (compute, 0, self.push_nbytes))
        info = struct(
            "VkPipelineLayoutCreateInfo",
            setLayoutCount=1,
            pSetLayouts=self._layouts,
            pushConstantRangeCount=1 if self.push_nbytes else 0,
            pPushConstantRanges=push,
        )
        self._layout = self._handles.create(device, "PipelineLayout", info)[0]
        self._pipeline = self._create_pipeline(spirv, entry, compute)
        self._create_sets()

    def _create_sets(self) -> None:
        lib, device = self.device.lib, self.device.pointer
        storage = constant("VK_DESCRIPTOR_TYPE_STORAGE_BUFFER")
        size = ffi.new("VkDescriptorPoolSize *", (storage, self.buffers * SETS))
        info = struct("VkDescriptorPoolCreateInfo", maxSets=SETS, poolSizeCount=1, pPoolSizes=size)
        pool = self._handles.create(device, "DescriptorPool", info)[0]
        sets = ffi.new(f"VkDescriptorSet[{SETS}]")
        info = struct(
            "VkDescriptorSetAllocateInfo",
            descriptorPool=pool,
            descriptorSetCount=SETS,
            pSetLayouts=self._layouts,
        )
        check(lib.vkAllocateDescriptorSets(device, info, sets), "vkAllocateDescriptorSets")
        self._sets.extend((0, ffi.new("VkDescriptorSet[1]", [one])) for one in sets)

    def _create_pipeline(self, spirv: bytes, entry: str, stage: int) -> int:
        lib, device = self.device.lib, self.device.pointer
        code = ffi.new("uint32_t[]", len(spirv) // 4)
        ffi.memmove(code, spirv, len(spirv))
        info = struct("VkShaderModuleCreateInfo", codeSize=len(spirv), pCode=code)
        # It could be destroyed with the pipeline made; an interrupt would then lose it.
        module = self._handles.create(device, "ShaderModule", info)
        name = ffi.new("char[]", entry.encode())
        stage_info = struct(
            "VkPipelineShaderStageCreateInfo", stage=stage, module=module[0], pName=name
        )
        info = struct("VkComputePipelineCreateInfo", stage=stage_info[0], layout=self._layout)
        pipeline = self._handles.make(
            "Pipeline",
            lambda cell: lib.vkCreateComputePipelines(device, 0, 1, info, ffi.NULL, cell),
            device,
            call=f"vkCreateComputePipelines (entry point {entry!r})",
        )
        return int(pipeline[0])

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
        bindings = [binding_of(tensor, self.device, self._live) for tensor in tensors]
        check_readonly(tensors, self._writable)
        self.run(bindings, groups, push)

    def run(self, bindings: Sequence[Binding], groups: int | Sequence[int], push: bytes) -> int:
        """Enqueue one dispatch over allocations; the queue's value for it."""
        self._refuse_closed()
        counts, push = counts_of(groups), bytes_of(push)
        self._check(bindings, counts, push)
        block = ffi.new("char[]", push) if push else ffi.NULL
        call = object()
        try:
            # Entered before the look, as `close` looks after it has said so: one sees the other.
            self._calls.add(call)
            self._refuse_closed()
            return self._dispatch(bindings, counts, block)
        finally:
            self._calls.discard(call)
            if self._closed and not self._calls:
                self._free()

    def _refuse_closed(self) -> None:
        if self._closed or not self.device.alive:
            if self.device.queue.forked:
                raise DeviceError(f"this kernel is the parent process's: {AFTER_FORK}")
            raise DeviceError("this kernel is closed, or its device is")

    def _dispatch(self, bindings: Sequence[Binding], counts: Sequence[int], block: Any) -> int:
        value, chosen = self._claim()
        try:
            self.device.queue.wait(value)
            self._bind(chosen, bindings)
            value = self.device.queue.submit(
                lambda commands: self._record(commands, chosen, counts, block),
                [allocation for allocation, _, _ in bindings],
            )
        except BaseException:
            value = NEVER  # it may have been submitted: the next call waits for all work
            raise
        finally:
            self._sets.append((value, chosen))
        return value

    def _claim(self) -> tuple[int, Any]:
        """A descriptor set for this call alone, the one whose last use is the oldest."""
        while True:
            with suppress(IndexError):  # all are claimed, by other threads or an interrupted call
                return self._sets.popleft()
            self._create_sets()

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


class _Owned:
    """The Vulkan objects that a kernel owns, and when their last use is done."""

    def __init__(self, device: Device, handles: Handles, sets: deque[tuple[int, Any]]) -> None:
        self._device = device
        self._handles = handles
        self._sets = sets

    def close(self, wait: bool = True) -> bool:
        """Destroy it when the kernel's work is done, or *wait* for that; never raises."""
        device = self._device
        if not device.alive or not len(self._handles):
            return True
        try:
            if not wait and (holds(device.queue.lock) or not device.queue.done(self._last_use())):
                return False
            device.queue.wait(self._last_use())
        except DeviceMemoryError:
            self._handles.forget()  # it may be in use still: better left than pulled away
        except DeviceError:
            pass  # a lost device has no work left
        self._handles.destroy()
        return True

    def _last_use(self) -> int:
        # A set that an interrupted call has not put back may be in use.
        sets = self._sets.copy()
        lost = len(sets) % SETS
        return NEVER if lost else max((value for value, _ in sets), default=0)
