"""What Vulkan users have beyond dlbridge's contract: kernels, and their own devices and buffers."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dlbridge.errors import DeviceError
from dlbridge.protocol import NativeArray

from . import native
from .compute import Kernel

if TYPE_CHECKING:
    from .devices import Devices
    from .live import Live

__all__ = ["Beyond"]


class Beyond:
    """The part of `Vulkan` that dlbridge itself does not call."""

    devices: Devices
    live: Live

    def kernel(
        self,
        spirv: bytes,
        *,
        buffers: int,
        push_nbytes: int = 0,
        entry: str = "main",
        device_id: int = 0,
    ) -> Kernel:
        """The SPIR-V module *spirv*, ready to run over *buffers* tensors.

        See `Kernel` for how the module binds them. ValueError for what is no
        SPIR-V module or beyond the device's limits.
        """
        return Kernel(self.devices[device_id], self.live, spirv, buffers, push_nbytes, entry)

    def adopt_device(
        self,
        instance: Any,
        physical_device: Any,
        device: Any,
        queue: Any,
        queue_family: int,
        *,
        lock: Any = None,
        host_import: bool = False,
    ) -> int:
        """The device_id for a VkDevice of yours; `close_device` it before you destroy it.

        Give *lock* if other threads submit to *queue*: it is held for each
        submission. See `dlbridge_vulkan.device.adopt_device` for what the
        device must be.
        """
        return self.devices.adopt(
            instance=instance,
            physical_device=physical_device,
            device=device,
            queue=queue,
            queue_family=queue_family,
            lock=lock,
            host_import=host_import,
        ).index

    def close_device(self, device_id: int) -> None:
        """Wait for the device and give back all that is ours in it.

        No other thread may use it meanwhile.
        DeviceError if tensors are left on it. Its number is not used again.
        """
        device = self.devices[device_id]
        left = self.live.on(device)
        if left:
            raise DeviceError(f"vulkan:{device_id} still has {left} tensors; drop them first")
        device.close()

    def wrap_buffer(
        self,
        device_id: int,
        buffer: Any,
        memory: Any,
        nbytes: int,
        *,
        memory_offset: int = 0,
        mapped: int = 0,
        dtype: str = "uint8",
        shape: Sequence[int] | None = None,
        owner: object = None,
    ) -> native.VulkanArray:
        """A VkBuffer of yours as a `VulkanArray`, which dlbridge takes like any array.

        It must have the usages TRANSFER_SRC, TRANSFER_DST and, for kernels,
        STORAGE_BUFFER, and lives until *owner* is let go. *mapped* is the host
        address of its first byte, if its memory is coherent and mapped. Work of
        yours on it must be done, or earlier on the same queue.
        """
        extent = (nbytes,) if shape is None else tuple(shape)
        allocation = native.wrap(
            self.devices[device_id], buffer, memory, nbytes, memory_offset, mapped, dtype, extent
        )
        described = NativeArray(
            device_id=device_id,
            data=self.live.enter(allocation),
            offset=0,
            dtype=dtype,
            shape=extent,
            strides=None,
            readonly=False,
            owner=owner,
        )
        array = native.describe(allocation, described)
        weakref.finalize(array, self.live.free, allocation.data).atexit = False
        return array
