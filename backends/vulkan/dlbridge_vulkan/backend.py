"""The backend class: dlbridge's contract, answered by the modules beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dlbridge.errors import ExchangeError
from dlbridge.protocol import ExportedMemory, NativeArray, Region, Span

from . import copies, export, exportable, fd_import, host_import, native
from .beyond import Beyond
from .buffer import Buffer
from .devices import Devices
from .hostcopy import address_of, write
from .library import handle
from .live import Live
from .strided import Side

if TYPE_CHECKING:
    from dlbridge.protocol import (
        Backend,
        SupportsAllocateExportable,
        SupportsAllocateFromHost,
        SupportsCopy,
        SupportsDeviceInfo,
        SupportsDeviceNames,
        SupportsFill,
        SupportsForeignData,
        SupportsHostImport,
        SupportsHostView,
        SupportsMemoryExport,
        SupportsMemoryImport,
        SupportsNative,
        SupportsStreams,
        SupportsStridedCopy,
        SupportsTrim,
    )

__all__ = ["Vulkan"]

FROM_HOST = 1 << 20
"""Bytes up to which memory is made together with its content: without asking for the stream,
the backend and the work on the memory again. A longer copy takes much longer than that."""


class Vulkan(Beyond):
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

    api = 1
    device_type = 7  # kDLVulkan
    max_strided_ndim = 32

    def __init__(self, *, staged: bool | None = None, exportable: bool | None = None) -> None:
        if staged is None:
            staged = os.environ.get("DLBRIDGE_VULKAN_STAGED") == "1"
        if exportable is None:
            exportable = os.environ.get("DLBRIDGE_VULKAN_EXPORT") == "1"
        self.devices = Devices(staged=staged, exportable=exportable)
        self.live = Live()

    # --- Backend ---

    def device_count(self) -> int:
        """The devices that Vulkan lists, and those that were adopted."""
        return len(self.devices)

    def allocate(self, device_id: int, nbytes: int, alignment: int, stream: int) -> int:
        """The address of a new buffer's descriptor; see docs/vulkan.md."""
        return self.live.enter(Buffer.new(self.devices[device_id], nbytes, alignment))

    def free(self, device_id: int, data: int, stream: int) -> None:
        """Give the buffer back once its work is done; blocks only for imported memory."""
        try:
            self.live.free(data)
        except BaseException:  # of a signal handler, in a destructor: nobody calls this again
            self.live.free(data)
            raise

    def copy_from_host(self, target: Span, source: memoryview, stream: int) -> None:
        """Copy the bytes of *source* into the buffer; *source* may change on return."""
        copies.from_host(self._at(target), target.offset, source)

    def copy_to_host(self, source: Span, into: memoryview, stream: int) -> None:
        """Copy bytes of the buffer to *into*; they are there on return."""
        copies.to_host(self._at(source), source.offset, into)

    def current_stream(self, device_id: int) -> int:
        """The VkQueue: each device has one, and it is every thread's stream."""
        return self.devices[device_id].queue.number

    # --- SupportsAllocateFromHost ---

    def allocate_from_host_limit(self, device_id: int) -> int:
        """`FROM_HOST` where the host addresses the memory, else 0."""
        return FROM_HOST if self.devices[device_id].heaps[0].kind.mapped else 0

    def allocate_from_host(
        self, device_id: int, source: memoryview, alignment: int, stream: int
    ) -> int:
        """A new buffer, which the host fills: no work can use it yet. 0 if it cannot address it."""
        made = Buffer.new(self.devices[device_id], len(source), alignment)
        if not made.mapped:  # the first kind of memory was full
            made.release()
            return 0
        write(made.mapped, source)
        return self.live.enter(made)

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

    def copy(self, target: Span, source: Span, stream: int) -> None:
        """Copy by the device; between two of them through mapped or staging memory."""
        copies.copy(self._at(target), target.offset, self._at(source), source.offset, target.nbytes)

    def copy_strided(
        self,
        target: Span,
        target_region: Region,
        source: Span,
        source_region: Region,
        stream: int,
    ) -> None:
        """Copy a region inside one device, many runs per command."""
        to = target.offset, target_region.strides
        start = source.offset, source_region.strides
        shape, _, run_nbytes = target_region
        copies.copy_strided(self._at(target), to, self._at(source), start, shape, run_nbytes)

    def copy_strided_from_host(
        self,
        target: Span,
        target_region: Region,
        source: memoryview,
        source_region: Region,
        stream: int,
    ) -> None:
        """Copy a region of host memory into the buffer; *source* may change on return."""
        to = target.offset, target_region.strides
        start = _on_host(source, source_region)
        shape, _, run_nbytes = target_region
        copies.strided_from_host(self._at(target), to, start, shape, run_nbytes)

    def copy_strided_to_host(
        self,
        source: Span,
        source_region: Region,
        into: memoryview,
        into_region: Region,
        stream: int,
    ) -> None:
        """Copy a region of the buffer to host memory; it is there on return."""
        start = source.offset, source_region.strides
        to = _on_host(into, into_region)
        shape, _, run_nbytes = source_region
        copies.strided_to_host(self._at(source), start, to, shape, run_nbytes)

    def fill(self, target: Span, value: int, stream: int) -> None:
        """Set bytes of the buffer to *value*."""
        copies.fill(self._at(target), target.offset, target.nbytes, value)

    # --- SupportsHostView, SupportsHostImport ---

    def host_view_refusal(self, device_id: int, data: int) -> str:
        """Why the host cannot address the buffer in place; empty if it can."""
        allocation = self.live.get(data)
        name = allocation.device.physical.name
        if not allocation.mapped:
            return f"the host cannot address this memory of {name}"
        if not allocation.cached:
            return f"the host reads this memory of {name} uncached, slower than a copy"
        return ""

    def host_view(self, span: Span, writable: bool, stream: int) -> int:
        """The mapped address, after all work on the buffer.

        The memory is coherent and stays mapped: what the host writes is seen
        by every submission after it.
        """
        allocation = self._at(span)
        refusal = self.host_view_refusal(span.device_id, span.data)
        if refusal:
            raise ExchangeError(f"no host view: {refusal}")
        allocation.settle()
        return allocation.mapped + span.offset

    def release_host_view(self, span: Span, address: int, stream: int) -> None:
        """Do nothing: coherent memory needs no unmapping to be seen by the device."""

    def host_import_refusal(self, device_id: int, address: int, nbytes: int) -> str:
        """Why this host memory cannot be a VkBuffer in place; empty if it can."""
        return host_import.import_refusal(self.devices[device_id], address, nbytes)

    def host_import_drawback(self, device_id: int) -> str:
        """Say why a copy is better than host memory in place, unless that is asked for.

        Parameters
        ----------
        device_id : int
            The device.

        Returns
        -------
        str
            The reason; empty where host and device share their memory.

        Examples
        --------
        ``vulkan.host_import_drawback(0)``
        """
        return host_import.import_drawback(self.devices[device_id])

    def import_host(
        self, device_id: int, address: int, nbytes: int, readonly: bool
    ) -> tuple[int, int]:
        """A VkBuffer on the host memory itself; ExchangeError if it must be copied instead."""
        device = self.devices[device_id]
        return self.live.enter(host_import.import_memory(device, address, nbytes, readonly)), 0

    # --- SupportsMemoryExport, SupportsMemoryImport ---

    def memory_export_refusal(self, device_id: int, data: int) -> str:
        """Why the memory of the buffer cannot be given to another driver; empty if it can."""
        return export.export_refusal(self.live.get(data))

    def export_memory(self, device_id: int, data: int) -> ExportedMemory:
        """A file descriptor for the memory of the buffer, which the caller closes."""
        return export.export(self.live.get(data))

    def memory_import_refusal(self, device_id: int) -> str:
        """Why the device uses no memory of other drivers; empty if it does."""
        return fd_import.fd_refusal(self.devices[device_id])

    def import_memory(self, device_id: int, memory: ExportedMemory) -> tuple[int, int]:
        """A VkBuffer on all of the allocation, and where *memory* begins in it."""
        made = fd_import.import_fd(self.devices[device_id], memory)
        return self.live.enter(made), memory.offset

    # --- SupportsAllocateExportable ---

    def exportable_refusal(self, device_id: int) -> str:
        """Why the device has no memory for other processes; empty if it has."""
        return self.devices[device_id].sharing_refusal

    def allocate_exportable(self, device_id: int, nbytes: int, stream: int) -> int:
        """A buffer on an allocation of its own, which other processes can have."""
        return self.live.enter(exportable.allocate(self.devices[device_id], nbytes))

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
        return native.describe(self.live.get(array.data), array)

    def import_data(self, device_id: int, data: int, module: str) -> tuple[int, int]:
        """Our own buffers only: a foreign kDLVulkan pointer says nothing about itself."""
        allocation = self.live.find(data)
        if allocation is None:
            raise ExchangeError(
                f"a kDLVulkan tensor from {module}: its data ({data:#x}) is not one of "
                "dlbridge_vulkan's descriptors, and no standard says what else it may be. Pass "
                'the raw handles to bridge.backend("vulkan").wrap_buffer() instead'
            )
        return allocation.device.index, data

    # --- SupportsDeviceNames, SupportsDeviceInfo ---

    def find_device(self, name: str) -> int:
        """Find a device by name.

        Parameters
        ----------
        name : str
            A UUID, or part of a device's name; letter case does not count.

        Returns
        -------
        int
            The device_id of the device with this UUID, or of the first whose
            name contains *name*.

        Raises
        ------
        LookupError
            If there is none; it lists the devices.

        Examples
        --------
        ``vulkan.find_device("llvmpipe")``
        """
        return self.devices.find(name)

    def device_info(self, device_id: int) -> Mapping[str, object]:
        """Describe a device, without opening it.

        Parameters
        ----------
        device_id : int
            The device.

        Returns
        -------
        mapping of str to object
            ``name``, ``kind``, ``memory`` (bytes of the largest device-local
            heap), ``uuid``, ``driver``, ``vulkan`` (the version), ``pci`` where
            known, ``host_memory_shared``, ``host_import``, and limits named
            after Vulkan's (sizes in bytes).

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

    # --- Inside, and the kit's question ---

    def live_allocations(self) -> int:
        """Buffers that have not been given back."""
        return len(self.live)

    def _at(self, span: Span) -> Buffer:
        """The buffer, in which the whole span must lie."""
        buffer = self.live.at(span.data, span.offset, span.nbytes)
        if buffer.device.index != span.device_id:
            raise ExchangeError(
                f"{span.data:#x} is memory of vulkan:{buffer.device.index}, and not of "
                f"vulkan:{span.device_id}; name the device of the memory"
            )
        return buffer


def _on_host(memory: memoryview, region: Region) -> Side:
    """Address and strides of a region of host memory, which must hold it."""
    needed = region.extent
    if needed > len(memory):
        raise ExchangeError(f"a region of {needed} bytes is outside {len(memory)} bytes of memory")
    return address_of(memory), region.strides


if TYPE_CHECKING:
    _backend: Backend = Vulkan()
    _from_host: SupportsAllocateFromHost = Vulkan()
    _streams: SupportsStreams = Vulkan()
    _copy: SupportsCopy = Vulkan()
    _strided: SupportsStridedCopy = Vulkan()
    _fill: SupportsFill = Vulkan()
    _view: SupportsHostView = Vulkan()
    _import: SupportsHostImport = Vulkan()
    _export: SupportsMemoryExport = Vulkan()
    _imports: SupportsMemoryImport = Vulkan()
    _exportable: SupportsAllocateExportable = Vulkan()
    _native: SupportsNative = Vulkan()
    _foreign: SupportsForeignData = Vulkan()
    _names: SupportsDeviceNames = Vulkan()
    _info: SupportsDeviceInfo = Vulkan()
    _trim: SupportsTrim = Vulkan()
