"""An open VkDevice: its queue, its memory, and the staging ring."""

from __future__ import annotations

import threading
import weakref
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dlbridge.errors import DeviceError

from .errors import check
from .instance import HOST_MEMORY, NEWEST, PhysicalDevice, describe, features
from .library import ffi, handle, load, struct
from .memory import Allocation, Heap, create_buffer
from .memory_types import MemoryType
from .queue import Queue
from .staging import Staging

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .compute import Kernel

__all__ = ["MAGIC", "Device", "adopt_device", "open_device"]

MAGIC = 0x6B56656764697262
"""The descriptor's magic: the bytes ``bridgeVk``."""

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

EXTENSIONS = (HOST_MEMORY, "VK_KHR_portability_subset")
"""Extensions that are switched on where the device has them; the second must be."""


class Device:
    """One open device. *index* is its device_id.

    *pointer* is the VkDevice. *owned* says whether it is ours to destroy;
    *host_import* whether VK_EXT_external_memory_host is switched on in it.
    """

    def __init__(
        self,
        index: int,
        instance: Any,
        physical: PhysicalDevice,
        pointer: Any,
        queue: Queue,
        *,
        staged: bool,
        owned: bool,
        host_import: bool,
    ) -> None:
        self.index = index
        self.instance = instance
        self.physical = physical
        self.pointer = pointer
        self.queue = queue
        self.owned = owned
        self.alive = True
        """False once it is closed, and in a forked child: then nothing may be called."""
        self.lib = load()
        self.host_pointer_properties = self._host_import() if host_import else None
        buffer, _, _ = create_buffer(pointer, 4)
        needs = ffi.new("VkMemoryRequirements *")
        self.lib.vkGetBufferMemoryRequirements(pointer, buffer, needs)
        self.lib.vkDestroyBuffer(pointer, buffer, ffi.NULL)
        # Equal for all buffers of equal usage (Vulkan 1.3, "Resource Memory Association").
        bits = needs.memoryTypeBits
        self.memory_type = MemoryType.for_tensors(physical, bits, staged)
        self.heap = Heap(self, self.memory_type)
        self._staging_heap = Heap(self, MemoryType.for_staging(physical, bits))
        self._staging: Staging | None = None
        self.kernels: weakref.WeakSet[Kernel] = weakref.WeakSet()
        """Those made for this device, which must be freed before it."""
        self._lock = threading.Lock()

    @property
    def staging(self) -> Staging:
        """The ring of host memory through which unmapped memory is copied."""
        with self._lock:
            if self._staging is None:
                self._staging = Staging(self.queue, self._staging_heap)
            return self._staging

    def allocate(self, nbytes: int, alignment: int) -> Allocation:
        """A new buffer, with its descriptor."""
        return self.describe(self.heap.allocate(nbytes, alignment))

    def describe(self, allocation: Allocation) -> Allocation:
        """Give *allocation* the descriptor that tensors carry as their ``data``.

        The descriptor lives until the allocation is freed: the backend's table
        of live allocations owns it.
        """
        allocation.descriptor = ffi.new(
            "DlbridgeVulkanBuffer *",
            {
                "device": self.pointer,
                "buffer": allocation.buffer,
                "memory": allocation.memory,
                "magic": MAGIC,
                "instance": self.instance,
                "physical_device": self.physical.pointer,
                "queue": self.queue.handle,
                "queue_family": self.queue.family,
                "version": 1,
                "size": allocation.nbytes,
                "offset": allocation.start,
                "mapped": ffi.cast("void *", allocation.mapped),
            },
        )
        allocation.data = handle(allocation.descriptor)
        return allocation

    def submit(self, record: Any, uses: Iterable[Allocation] = ()) -> int:
        """Run a recording on the device's queue; see `Queue.submit`."""
        return self.queue.submit(record, uses)

    def close(self) -> None:
        """Wait for the device, destroy what is ours in it, and the device if it is ours.

        No tensor may be left on it; its kernels are closed.
        """
        for kernel in list(self.kernels):
            kernel.close()
        self.alive = False
        self.queue.finish()
        if self._staging is not None:
            self._staging.close()
        self.heap.close()
        self._staging_heap.close()
        self.queue.close()
        if self.owned:
            self.lib.vkDestroyDevice(self.pointer, ffi.NULL)

    def _host_import(self) -> Any:
        name = "vkGetMemoryHostPointerPropertiesEXT"
        function = self.lib.vkGetDeviceProcAddr(self.pointer, name.encode())
        return ffi.cast(f"PFN_{name}", function) if function else None


def open_device(index: int, instance: Any, physical: PhysicalDevice, staged: bool) -> Device:
    """A new VkDevice with one compute queue, opened with every feature that tensors need."""
    lib = load()
    extensions = [name for name in EXTENSIONS if name in physical.extensions]
    pointer = _create(physical, extensions)
    queue = None
    try:
        taken = ffi.new("VkQueue *")
        lib.vkGetDeviceQueue(pointer, physical.queue_family, 0, taken)
        queue = Queue(pointer, taken[0], physical.queue_family)
        return Device(
            index,
            instance,
            physical,
            pointer,
            queue,
            staged=staged,
            owned=True,
            host_import=HOST_MEMORY in extensions,
        )
    except BaseException:
        if queue is not None:
            queue.close()
        lib.vkDestroyDevice(pointer, ffi.NULL)
        raise


def _create(physical: PhysicalDevice, extensions: list[str]) -> Any:
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
    device = ffi.new("VkDevice *")
    check(
        load().vkCreateDevice(physical.pointer, info, ffi.NULL, device),
        f"vkCreateDevice for {physical.name}",
    )
    return device[0]


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
    index: int,
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
    VK_EXT_external_memory_host switched on.
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
        raise ValueError("adopt_device wants four handles, and one of them is 0")
    physical = describe(pointers[1], NEWEST)
    if isinstance(physical, str):
        raise DeviceError(f"this VkDevice cannot be adopted: {physical}")
    if not load().vkGetDeviceProcAddr(pointers[2], b"vkWaitSemaphores"):
        raise DeviceError(
            f"this VkDevice of {physical.name} was created for a Vulkan older than 1.2; set "
            "VkApplicationInfo.apiVersion to 1.2 or newer"
        )
    work = Queue(pointers[2], pointers[3], queue_family, lock, shared=True)
    try:
        return Device(
            index,
            pointers[0],
            physical,
            pointers[2],
            work,
            staged=staged,
            owned=False,
            host_import=host_import,
        )
    except BaseException:
        work.close()
        raise
