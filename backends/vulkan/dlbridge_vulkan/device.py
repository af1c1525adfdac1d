"""An open VkDevice: its queue, its memory by types, and the staging ring."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Protocol

from dlbridge.errors import DeviceError, DeviceMemoryError
from dlbridge.kit.resources import Resources

from .fd_memory import ADOPTED, ASK, FD_MEMORY, OPAQUE_FD, device_refusal
from .handles import Handles
from .instance import HOST_MEMORY, NEWEST, PhysicalDevice, describe, features
from .library import ffi, handle, load, struct
from .locks import holds, is_reentrant
from .memory import IN_SLICES, USAGE, Allocation, Heap, external
from .memory_types import MemoryType
from .queue import Queue
from .staging import Staging

__all__ = ["Device", "adopt_device", "open_device"]

FEATURES = {
    # Out-of-bounds accesses of a user's shader cannot leave the buffer.
    "VkPhysicalDeviceFeatures2": (
        "robustBufferAccess", "shaderFloat64", "shaderInt64", "shaderInt16",
    ),
    "VkPhysicalDeviceVulkan11Features": ("storageBuffer16BitAccess",),
    "VkPhysicalDeviceVulkan12Features": (
        "timelineSemaphore", "storageBuffer8BitAccess", "shaderFloat16", "shaderInt8",
    ),
}  # fmt: skip
"""Features that are switched on where the device has them: what shaders need to
work with every dtype."""

EXTENSIONS = (HOST_MEMORY, FD_MEMORY, "VK_KHR_portability_subset")
"""Extensions that are switched on where the device has them; the last must be."""


class Closes(Protocol):
    """The Vulkan objects of something made for a device, to be destroyed before the device."""

    def close(self, wait: bool = True) -> bool:
        """Give back what is its own when its work is done, or *wait* for that; False: not yet."""


class Device:
    """One open device. *index* is its device_id.

    *pointer* is the VkDevice; *handles* holds what is this package's to destroy,
    the VkDevice included if it was opened here; *host_import* says whether
    VK_EXT_external_memory_host is switched on in it; *export_refusal* why memory of
    tensors is not allocated for other drivers, empty if it is; *sharing_refusal* why no memory
    at all can be; *imports_fds* whether VK_KHR_external_memory_fd is switched on.
    """

    def __init__(
        self,
        handles: Handles,
        instance: Any,
        physical: PhysicalDevice,
        pointer: Any,
        queue: Queue,
        *,
        staged: bool,
        host_import: bool,
        export_refusal: str,
        sharing_refusal: str,
        imports_fds: bool = False,
    ) -> None:
        self.index = -1
        """Its number among the devices; given when it is entered there."""
        self.instance = instance
        self.physical = physical
        self.pointer = pointer
        self.most = min(physical.limits["max_allocation"], physical.limits["max_buffer"])
        """Bytes of the largest buffer."""
        self.queue = queue
        self.handles = handles
        self.lib = load()
        self.kernels: Resources[Closes] = Resources(_close_if_done)
        self.imports: Resources[Closes] = Resources(_close)
        """Host memory in place."""
        self.host_pointer_properties = (
            self._function("vkGetMemoryHostPointerPropertiesEXT") if host_import else None
        )
        self.imports_fds = imports_fds
        self.get_memory_fd: Any = None if sharing_refusal else self._function("vkGetMemoryFdKHR")
        self.export_refusal = export_refusal
        self.sharing_refusal = sharing_refusal
        self._handle_types = 0 if export_refusal else OPAQUE_FD
        # Equal for all buffers of equal usage (Vulkan 1.3, "Resource Memory Association").
        bits = self._memory_type_bits()
        self.heaps = [
            self._heap(kind, self._handle_types)
            for kind in MemoryType.for_tensors(physical, bits, staged)
        ]
        """Memory for tensors, the best type first."""
        self._staging_heap = self._heap(MemoryType.for_staging(physical, bits))
        self.staging = Staging(queue, self._staging_heap)
        """The ring of host memory through which unmapped memory is copied."""
        self.tools: dict[str, Any] = {}
        """Objects that modules above this one keep for the device's whole life, by their names."""

    @property
    def alive(self) -> bool:
        """False once it is closed, and in a forked child: nothing may be called then."""
        return self.queue.alive

    def allocate(self, into: Allocation, nbytes: int, alignment: int) -> None:
        """Make *into* a new buffer, of the first memory type that has room.

        DeviceMemoryError if none has, or if it is more than the device allows at once.
        """
        most = self.most
        if nbytes > most:
            raise DeviceMemoryError(
                f"no memory of {self.physical.name} has room for {nbytes} bytes: it gives at "
                f"most {most} at once; {IN_SLICES}"
            )
        refused = []
        for heap in self.heaps:
            try:
                heap.allocate(into, nbytes, alignment)
            except DeviceMemoryError as exc:
                refused.append(exc)
            else:
                return
        reasons = "; ".join(dict.fromkeys(map(str, refused)))
        raise DeviceMemoryError(
            f"no memory of {self.physical.name} has room for {nbytes} bytes: {reasons}"
        ) from refused[0]

    def close(self) -> None:
        """Wait for the device, destroy what is ours in it, and the device if it is ours.

        No tensor may be left on it; its kernels are closed.
        """
        self.tools.clear()
        for one in (*self.kernels.all(), *self.imports.all()):
            one.close()
        self.queue.finish()
        self.staging.close()
        self.queue.alive = False
        self.queue.finish()
        for heap in (*self.heaps, self._staging_heap):
            heap.close()
        self.handles.destroy()

    def reclaim(self) -> None:
        """Close what dropped kernels and imports left; called before the next is made."""
        if not holds(self.queue.lock):
            self.kernels.sweep(wait=True)
            self.imports.sweep()

    def trim(self) -> None:
        """Give the driver all blocks of memory that nothing uses, the staging ring's too."""
        self.staging.close()
        for heap in (*self.heaps, self._staging_heap):
            heap.make_room()

    @property
    def allocations(self) -> int:
        """The VkDeviceMemory objects that this package has in the device."""
        heaps = (*self.heaps, self._staging_heap)
        return sum(len(heap.blocks) for heap in heaps) + len(self.imports)

    def _heap(self, kind: MemoryType, handle_types: int = 0) -> Heap:
        physical = self.physical
        return Heap(
            self.pointer,
            physical.name,
            physical.limits,
            self.queue,
            kind,
            lambda: self.allocations,
            handle_types,
        )

    def _memory_type_bits(self) -> int:
        chain = external(self._handle_types)
        info = struct("VkBufferCreateInfo", pNext=chain, size=4, usage=USAGE)
        probe = self.handles.create(self.pointer, "Buffer", info)  # it stays, without memory
        needs = ffi.new("VkMemoryRequirements *")
        self.lib.vkGetBufferMemoryRequirements(self.pointer, probe[0], needs)
        return int(needs.memoryTypeBits)

    def _function(self, name: str) -> Any:
        """A device function of an extension; None if the driver does not have it."""
        function = self.lib.vkGetDeviceProcAddr(self.pointer, name.encode())
        return ffi.cast(f"PFN_{name}", function) if function else None


def _close(one: Closes) -> bool:
    return one.close()


def _close_if_done(one: Closes, wait: bool = False) -> bool:
    return one.close(wait)


def open_device(
    handles: Handles, instance: Any, physical: PhysicalDevice, staged: bool, exportable: bool
) -> Device:
    """A new VkDevice with one compute queue, opened with every feature that tensors need.

    *exportable* asks for tensors in memory that other drivers can open, where the device
    has such. *handles* owns what is made; after an exception it is the caller's to destroy.
    """
    extensions = [name for name in EXTENSIONS if name in physical.extensions]
    refusal = device_refusal(physical, USAGE)
    pointer = _create(handles, physical, extensions)
    taken = ffi.new("VkQueue *")
    load().vkGetDeviceQueue(pointer, physical.queue_family, 0, taken)
    return Device(
        handles,
        instance,
        physical,
        pointer,
        Queue(handles, pointer, taken[0], physical.queue_family),
        staged=staged,
        host_import=HOST_MEMORY in extensions,
        export_refusal=refusal if exportable else ASK,
        sharing_refusal=refusal,
        imports_fds=FD_MEMORY in extensions,
    )


def _create(handles: Handles, physical: PhysicalDevice, extensions: list[str]) -> Any:
    """VkCreateDevice with one queue, these *extensions* and all of `FEATURES` that there are."""
    enabled = _features(physical)
    texts = [ffi.new("char[]", name.encode()) for name in extensions]
    names = ffi.new("char *[]", texts)
    priority = ffi.new("float[1]", [1.0])
    queues = struct(
        "VkDeviceQueueCreateInfo",
        queueFamilyIndex=physical.queue_family,
        queueCount=1,
        pQueuePriorities=priority,
    )
    info = struct(
        "VkDeviceCreateInfo",
        pNext=enabled[0],
        queueCreateInfoCount=1,
        pQueueCreateInfos=queues,
        enabledExtensionCount=len(extensions),
        ppEnabledExtensionNames=names,
    )
    return handles.make(
        "Device",
        lambda cell: load().vkCreateDevice(physical.pointer, info, ffi.NULL, cell),
        call=f"vkCreateDevice for {physical.name}",
    )[0]


def _features(physical: PhysicalDevice) -> list[Any]:
    """The feature structures to open the device with, chained to each other."""
    available = features(physical.pointer)
    enabled = []
    for name, members in FEATURES.items():
        source, target = available[name], struct(name)
        enabled.append(target)
        if name == "VkPhysicalDeviceFeatures2":  # Vulkan 1.0's are one level deeper
            source, target = source.features, target.features
        for member in members:
            setattr(target, member, getattr(source, member))
    for structure, following in pairwise(enabled):
        structure.pNext = following
    return enabled


def adopt_device(
    handles: Handles,
    *,
    instance: Any,
    physical_device: Any,
    device: Any,
    queue: Any,
    queue_family: int,
    lock: Any,
    host_import: bool,
    staged: bool,
) -> Device:
    """An open VkDevice of the caller's, which stays the caller's to destroy.

    Handles are integers or cffi pointers. Both instance and device must have
    been created for Vulkan 1.2 or newer, through the system's loader, with the
    feature timelineSemaphore; *host_import* says that the device has
    VK_EXT_external_memory_host switched on. What is made in it goes to the object
    *handles*, as in `open_device`.
    """
    pointers = [
        ffi.cast(kind, handle(value))
        for kind, value in (
            ("VkInstance", instance),
            ("VkPhysicalDevice", physical_device),
            ("VkDevice", device),
            ("VkQueue", queue),
        )
    ]
    if not all(pointers):
        raise ValueError("adopt_device needs four handles, and one of them is 0")
    if lock is not None and not is_reentrant(lock):
        raise ValueError(
            f"lock={lock!r} is not reentrant: a finalizer that runs while your code holds it could "
            "not take it, and would wait for ever. Give a threading.RLock"
        )
    physical = describe(pointers[1], NEWEST)
    if isinstance(physical, str):
        raise DeviceError(f"this VkDevice cannot be adopted: {physical}")
    if not load().vkGetDeviceProcAddr(pointers[2], b"vkWaitSemaphores"):
        raise DeviceError(
            f"this VkDevice of {physical.name} was created for a Vulkan older than 1.2; set "
            "VkApplicationInfo.apiVersion to 1.2 or newer"
        )
    return Device(
        handles,
        pointers[0],
        physical,
        pointers[2],
        Queue(handles, pointers[2], pointers[3], queue_family, lock, shared=True),
        staged=staged,
        host_import=host_import,
        export_refusal=ADOPTED,
        sharing_refusal=ADOPTED,
    )
