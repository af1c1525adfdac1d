"""For users of Vulkan, beyond dlbridge's contract: kernels, own devices, own buffers."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from dlbridge.errors import DeviceError
from dlbridge.protocol import NativeArray

from . import native
from .compute import Kernel
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
        """Make a SPIR-V module ready to run over tensors.

        Parameters
        ----------
        spirv : bytes
            The module, little-endian: what its file holds, and not the file's name. Its
            instructions are trusted, as Vulkan trusts them.
        buffers : int
            Number of its storage buffers: ``binding = 0, 1, ...`` of ``set = 0``.
        push_nbytes : int
            Size of its push-constant block in bytes, a multiple of 4.
        entry : str
            Name of the entry point: of the function that runs. One module may have several.
        device_id : int
            The device that it runs on.

        Returns
        -------
        Kernel
            Call it with tensors; see `Kernel.__call__`.

        Raises
        ------
        ValueError
            If *spirv* is not a SPIR-V module, it has no entry point of that name, the entry
            point needs more bindings or push constants than are given, or other bindings than
            storage buffers of set 0, or a number is beyond the device's limits.
        TypeError
            If *spirv* is a path, or anything else that is not bytes.
        DeviceError
            If the driver refuses the module.

        Examples
        --------
        ``scale = bridge.backend("vulkan").kernel(spirv, buffers=1, push_nbytes=12)``
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
        """Use a VkDevice of yours as one more device.

        Parameters
        ----------
        instance, physical_device, device, queue : int or cffi pointer
            Your handles, created for Vulkan 1.2 or newer through the system's
            loader, with the feature ``timelineSemaphore``.
        queue_family : int
            The queue's family, which must support compute.
        lock : threading.RLock, optional
            Give it if other threads submit to *queue*: it is held for each
            submission of dlbridge. It must be reentrant.
        host_import : bool
            Whether VK_EXT_external_memory_host is enabled on the device.

        Returns
        -------
        int
            Its device_id. `close_device` it before you destroy the device.

        Raises
        ------
        ValueError
            If a handle is 0 or *lock* is not reentrant.
        TypeError
            If a handle is neither an integer nor a cffi pointer.
        DeviceError
            If the device lacks what dlbridge needs, or the process has forked.

        Examples
        --------
        ``index = vulkan.adopt_device(instance, physical_device, device, queue, family)``
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
        """Wait for a device and give back all that is dlbridge's in it.

        No other thread may use it meanwhile. Its number is not used again.

        Parameters
        ----------
        device_id : int
            The device.

        Raises
        ------
        DeviceError
            If tensors are left on it, or it is closed already.

        Examples
        --------
        ``vulkan.close_device(index)``
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
        """Describe a VkBuffer of yours as an array that dlbridge takes like any other.

        Work of yours on it must be done, or earlier on the same queue.

        Parameters
        ----------
        device_id : int
            The device that *buffer* belongs to.
        buffer, memory : int or cffi pointer
            The VkBuffer, with the usages TRANSFER_SRC, TRANSFER_DST and, for
            kernels, STORAGE_BUFFER; and the VkDeviceMemory that it is bound to.
        nbytes : int
            Bytes of the buffer.
        memory_offset : int
            Where it is bound in *memory*, in bytes.
        mapped : int
            Host address of its first byte, if its memory is coherent and mapped; else 0.
        dtype : str
            Name of the elements' type.
        shape : sequence of int, optional
            In elements; by default (nbytes,).
        owner : object
            Kept as long as the buffer is in use; let it destroy the buffer.

        Returns
        -------
        VulkanArray
            Give it to ``bridge.asarray``.

        Raises
        ------
        ValueError
            If the buffer is 0, or smaller than *shape* and *dtype* need.

        Examples
        --------
        ``bridge.asarray(vulkan.wrap_buffer(index, buffer, memory, 4096, dtype="float32",
        shape=(32, 32)))``
        """
        extent = (nbytes,) if shape is None else tuple(shape)
        wrapped = native.wrap(
            self.devices[device_id], buffer, memory, nbytes, memory_offset, mapped, dtype, extent
        )
        described = NativeArray(
            device_id=device_id,
            data=wrapped.data,
            offset=0,
            dtype=dtype,
            shape=extent,
            strides=None,
            readonly=False,
            owner=owner,
        )
        array = native.describe(wrapped, described)
        weakref.finalize(array, self.live.free, wrapped.data).atexit = False
        self.live.enter(wrapped)  # last: what enters it leaves it, by the line before
        return array


for _member in vars(Beyond).values():
    if isinstance(_member, FunctionType):
        # Python's messages about wrong arguments show it: the class that users know.
        _member.__qualname__ = f"Vulkan.{_member.__name__}"
