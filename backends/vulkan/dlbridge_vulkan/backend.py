"""The backend class: dlbridge's contract, answered by the modules beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlbridge.errors import DeviceError, ExchangeError
from dlbridge.kit import devices as kit
from dlbridge.kit.limits import switch
from dlbridge.protocol import ExportedMemory, NativeArray, PlainAllocation, Region, Span

from . import copies, native, shared
from .compute import Kernel
from .devices import Devices
from .library import handle

if TYPE_CHECKING:
    from dlbridge.protocol import Allocation

FROM_HOST = 1 << 20
"""Bytes up to which memory is made together with its content: without asking for the stream,
the backend and the work on the memory again. A longer copy takes much longer than that."""


class Vulkan(kit.Devices, kit.ThroughHost):
    """Tensors in VkBuffers, on every device that a Vulkan 1.2 driver offers.

    Parameters
    ----------
    staged : bool, optional
        Treat device memory as if the host could not address it, as on a discrete
        GPU. By default so with ``DLBRIDGE_VULKAN_STAGED=1`` in the environment.
    exportable : bool, optional
        Allocate tensors in memory that another driver of the same device can use, where the
        device has such. By default so with ``DLBRIDGE_VULKAN_EXPORT=1`` in the environment.

    Raises
    ------
    BackendUnavailable
        If there is no loader, no driver or no usable device.

    Examples
    --------
    ``vulkan = bridge.backend("vulkan")``
    """

    api = 2
    device_type = 7  # kDLVulkan
    name = "vulkan"
    max_strided_ndim = 32
    host_copies_block = True
    content_limit = FROM_HOST

    def __init__(self, *, staged: bool | None = None, exportable: bool | None = None) -> None:
        if staged is None:
            staged = switch("DLBRIDGE_VULKAN_STAGED")
        if exportable is None:
            exportable = switch("DLBRIDGE_VULKAN_EXPORT")
        self.devices = Devices(staged=staged, exportable=exportable)

    # --- Backend ---

    def device_count(self) -> int:
        """The devices that Vulkan lists, and those that were adopted."""
        return len(self.devices)

    def allocate(
        self,
        device_id: int,
        nbytes: int,
        alignment: int,
        stream: int,
        content: memoryview | None = None,
    ) -> Allocation:
        """A new buffer; ``data`` is the address of its descriptor, see docs/vulkan.md."""
        made = self.devices[device_id].allocate(nbytes, alignment)
        if content is not None:
            buffer = made.resource[0]
            if buffer.mapped:  # no work can use it yet
                copies.write_first(buffer, content)
            else:
                copies.from_host(buffer, 0, content)
        return made

    def copy_from_host(self, target: Span, source: memoryview, stream: int) -> None:
        """Copy the bytes of *source* into the buffer; *source* may change on return."""
        copies.from_host(self.devices.at(target), target.offset, source)

    def copy_to_host(self, source: Span, into: memoryview, stream: int) -> None:
        """Copy bytes of the buffer to *into*; they are there on return."""
        copies.to_host(self.devices.at(source), source.offset, into)

    def current_stream(self, device_id: int) -> int:
        """The VkQueue: each device has one, and it is every thread's stream."""
        return self.devices[device_id].queue.number

    # --- SupportsStreams ---

    def synchronize(self, device_id: int, stream: int) -> None:
        """Block until all work on the device's queue is done."""
        self.devices[device_id].queue.finish()

    def wait(self, device_id: int, stream: int, on: int) -> None:
        """Do nothing: a device has one queue, and its work is ordered as submitted."""
        self.devices[device_id]  # ExchangeError if there is no such device

    def normalize_stream(self, device_id: int, stream: object) -> int:
        """The VkQueue for None, 0, itself as an integer or another package's handle."""
        queue = self.current_stream(device_id)
        if stream is None:
            return queue
        number = handle(stream)
        if number == -1:
            return -1
        if number in (0, queue):
            return queue
        raise ValueError(
            f"stream {number:#x} is not the queue of vulkan:{device_id} ({queue:#x}), the only "
            "one that dlbridge submits to; pass None, 0 or that, or -1 for no ordering"
        )

    # --- SupportsCopy, SupportsStridedCopy, SupportsFill ---

    def copy_inside(self, target: Span, source: Span, stream: int) -> None:
        """Copy by the device."""
        there, here = self.devices.at(target), self.devices.at(source)
        copies.copy(there, target.offset, here, source.offset, target.nbytes)

    def copy_strided(
        self,
        target: Span,
        target_region: Region,
        source: Span,
        source_region: Region,
        stream: int,
    ) -> None:
        """Copy a region inside one device, many runs per command."""
        there, here = self.devices.at(target), self.devices.at(source)
        copies.copy_strided(there, target.offset, target_region, here, source.offset, source_region)

    def copy_strided_from_host(
        self,
        target: Span,
        target_region: Region,
        source: memoryview,
        source_region: Region,
        stream: int,
    ) -> None:
        """Copy a region of host memory into the buffer; *source* may change on return."""
        _check_host(source, source_region)
        there = self.devices.at(target)
        copies.strided_from_host(there, target.offset, target_region, source, source_region)

    def copy_strided_to_host(
        self,
        source: Span,
        source_region: Region,
        into: memoryview,
        into_region: Region,
        stream: int,
    ) -> None:
        """Copy a region of the buffer to host memory; it is there on return."""
        _check_host(into, into_region)
        here = self.devices.at(source)
        copies.strided_to_host(here, source.offset, source_region, into, into_region)

    def fill(self, target: Span, value: int, stream: int) -> None:
        """Set bytes of the buffer to *value*."""
        copies.fill(self.devices.at(target), target.offset, target.nbytes, value)

    # --- SupportsHostView, SupportsHostImport ---

    def host_view_refusal(self, device_id: int, data: int) -> str:
        """Why the host cannot address the buffer in place; empty if it can."""
        buffer = self.devices.buffer(data)
        if buffer.cached:
            return ""
        name = buffer.device.physical.name
        if buffer.mapped:
            return f"the host reads this memory of {name} uncached, slower than a copy"
        return f"the host cannot address this memory of {name}"

    def host_view(self, span: Span, writable: bool, stream: int) -> Allocation:
        """The mapped address, after all work on the buffer.

        The memory is coherent and stays mapped: what the host writes is seen
        by every submission after it.
        """
        buffer = self.devices.at(span)
        if not buffer.cached:
            refusal = self.host_view_refusal(span.device_id, span.data)
            raise ExchangeError(f"no host view: {refusal}")
        buffer.settle()
        return PlainAllocation(buffer.mapped + span.offset, span.nbytes, stream)

    def host_import_refusal(self, device_id: int, address: int, nbytes: int, demanded: bool) -> str:
        """Why this host memory does not become a VkBuffer in place; empty if it does."""
        device = self.devices[device_id]
        # First: an address that lies better would be copied as well.
        if not demanded and not device.physical.shares_memory and device.host_pointer_properties:
            return shared.import_drawback(device)
        return shared.import_refusal(device, address, nbytes)

    def import_host(
        self, device_id: int, address: int, nbytes: int, readonly: bool, stream: int
    ) -> Allocation:
        """A VkBuffer on the host memory itself; ExchangeError if it must be copied instead."""
        return shared.import_memory(self.devices[device_id], address, nbytes, readonly)

    # --- SupportsMemoryExport, SupportsMemoryImport ---

    def memory_export_refusal(self, device_id: int, data: int) -> str:
        """Why the memory of the buffer cannot be given to another driver; empty if it can."""
        if data:
            return shared.export_refusal(self.devices.buffer(data))
        return self.devices[device_id].sharing_refusal

    def export_memory(self, device_id: int, data: int) -> ExportedMemory:
        """A file descriptor for the memory of the buffer; its owner closes it."""
        return shared.export(self.devices.buffer(data))

    def allocate_exportable(self, device_id: int, nbytes: int, stream: int) -> Allocation:
        """A buffer on an allocation of its own, which other processes can have."""
        return shared.allocate_exportable(self.devices[device_id], nbytes)

    def memory_import_refusal(self, device_id: int) -> str:
        """Why the device uses no memory of other drivers; empty if it does."""
        return shared.fd_refusal(self.devices[device_id])

    def import_memory(self, device_id: int, memory: ExportedMemory, stream: int) -> Allocation:
        """A VkBuffer on all of the allocation; ``offset`` is where *memory* begins in it."""
        return shared.import_fd(self.devices[device_id], memory)

    # --- SupportsNative, SupportsForeignData ---

    def from_native(self, obj: object) -> NativeArray | None:
        """A `VulkanArray` described."""
        return obj.described() if isinstance(obj, native.VulkanArray) else None

    def to_native(self, array: NativeArray) -> native.VulkanArray:
        """Give a tensor's raw handles; ``tensor.to_native()`` calls this.

        Parameters
        ----------
        array : NativeArray
            The tensor in dlbridge's terms.

        Returns
        -------
        VulkanArray
            It keeps the memory alive.

        Raises
        ------
        ExchangeError
            If the tensor is empty, and so has no buffer.
        DeviceError
            If its buffer has been freed, or the process has forked.

        Examples
        --------
        ``n = t.to_native(); n.buffer, n.offset``
        """
        if 0 in array.shape:
            raise ExchangeError(f"a tensor of shape {array.shape} has no bytes, and no buffer")
        return native.describe(self.devices.buffer(array.data), array)

    def import_data(self, device_id: int, data: int, module: str) -> tuple[int, int]:
        """Our own buffers only: a foreign kDLVulkan pointer says nothing about itself."""
        allocation = self.devices.find(data)
        if allocation is None:
            raise ExchangeError(
                f"a kDLVulkan tensor from {module}: its data ({data:#x}) is not one of "
                "dlbridge_vulkan's descriptors, and no standard says what else it may be. For "
                'raw handles there is dlbridge.backend("vulkan").wrap_buffer'
            )
        return allocation.device.index, data

    # --- SupportsDeviceInfo ---

    def device_info(self, device_id: int) -> Mapping[str, object]:
        """Describe a device, without opening it.

        Parameters
        ----------
        device_id : int
            The device.

        Returns
        -------
        mapping of str to object
            ``name``, ``kind``, ``type`` (discrete, integrated, virtual, cpu or other),
            ``memory`` (bytes of the largest device-local heap), ``uuid``, ``driver``,
            ``vulkan`` (the version), ``pci`` where known, ``host_memory_shared``,
            ``host_import``, and limits named after Vulkan's (sizes in bytes).

        Raises
        ------
        ExchangeError
            If there is no such device.

        Examples
        --------
        ``vulkan.device_info(0)["name"]``
        """
        return self.devices.info(device_id)

    # --- SupportsTrim ---

    def trim(self, device_id: int) -> None:
        """Give the driver the memory that nothing uses; waits for the work on the queue."""
        device = self.devices.opened(device_id)
        if device is not None:
            device.trim()

    # --- For users of Vulkan: kernels, devices and buffers of their own ---

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
        return Kernel(self, device_id, spirv, buffers, push_nbytes, entry)

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
        handles = instance, physical_device, device, queue
        return self.devices.adopt(handles, queue_family, lock, host_import).index

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
        left = self.devices.buffers(device)
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
        device, number, memory_handle = self.devices[device_id], handle(buffer), handle(memory)
        if not number or nbytes <= 0:
            raise ValueError(
                f"a VkBuffer of {nbytes} bytes with handle {number} is not valid: both must be "
                "greater than 0"
            )
        extent = (nbytes,) if shape is None else tuple(shape)
        needed = native.bytes_of(dtype, extent)
        if needed > nbytes:
            raise ValueError(
                f"shape {extent} of {dtype} takes {needed} bytes; the buffer has {nbytes}"
            )
        made = device.own()
        made.keeps, wrapped = owner, made.resource[0]
        wrapped.start = memory_offset
        device.describe(wrapped, number, memory_handle, nbytes, mapped, bool(mapped))
        device.enter(made)
        array = NativeArray(device.index, made.data, 0, dtype, extent, None, False, owner)
        return native.describe(wrapped, array, memory_owner=made)

    # --- The kit's question ---

    def live_allocations(self) -> int:
        """Buffers that somebody has."""
        return self.devices.buffers()


def _check_host(memory: memoryview, region: Region) -> None:
    """ExchangeError unless *memory* holds the *region*."""
    needed = region.extent
    if needed > len(memory):
        raise ExchangeError(f"a region of {needed} bytes is outside {len(memory)} bytes of memory")
