"""How a VkDevice is opened with what tensors need, or one of the caller's is adopted."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

from dlbridge.errors import DeviceError

from .device import OPAQUE_FD, Device, Table
from .instance import FD_MEMORY, HOST_MEMORY, NEWEST, PhysicalDevice, describe, features
from .library import Objects, constant, ffi, handle, load, struct
from .memory import USAGE
from .queue import Queue

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

ADOPTED = "a VkDevice that was adopted gives no memory to other drivers"

ASK = (
    "Vulkan's memory was not allocated for other drivers; set DLBRIDGE_VULKAN_EXPORT=1 before "
    "the first use of Vulkan"
)


def open_device(
    objects: Objects,
    table: Table,
    lock: Any,
    instance: Any,
    physical: PhysicalDevice,
    staged: bool,
    exportable: bool,
) -> Device:
    """A new VkDevice with one compute queue, opened with every feature that tensors need.

    *exportable* asks for tensors in memory that other drivers can open, where the device
    has such. *objects* gets what is made; after an exception it is the caller's to destroy.
    *lock* is for the queue.
    """
    extensions = [name for name in EXTENSIONS if name in physical.extensions]
    refusal = device_refusal(physical)
    pointer = _create(objects, physical, extensions)
    taken = ffi.new("VkQueue *")
    load().vkGetDeviceQueue(pointer, physical.queue_family, 0, taken)
    return Device(
        objects,
        table,
        instance,
        physical,
        pointer,
        Queue(objects, pointer, taken[0], physical.queue_family, lock),
        staged=staged,
        host_import=HOST_MEMORY in extensions,
        export_refusal=refusal if exportable else ASK,
        sharing_refusal=refusal,
        imports_fds=FD_MEMORY in extensions,
    )


def _create(objects: Objects, physical: PhysicalDevice, extensions: list[str]) -> Any:
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
    return objects.make(
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


def adopt(
    objects: Objects,
    table: Table,
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
    VK_EXT_external_memory_host switched on. What is made in it goes to
    *objects*, as in `open_device`.
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
    if isinstance(lock, type(threading.Lock())):
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
        objects,
        table,
        pointers[0],
        physical,
        pointers[2],
        Queue(objects, pointers[2], pointers[3], queue_family, lock, shared=True),
        staged=staged,
        host_import=host_import,
        export_refusal=ADOPTED,
        sharing_refusal=ADOPTED,
    )


def device_refusal(physical: PhysicalDevice) -> str:
    """Why buffers on this device cannot be exported; empty if they can.

    Memory of `VK_KHR_external_memory_fd` must be allocated for it. So it is asked for
    (``DLBRIDGE_VULKAN_EXPORT=1``): drivers may place it in another way. lavapipe makes a file
    of each block, which stays open.
    """
    if FD_MEMORY not in physical.extensions:
        return f"{physical.name} has no {FD_MEMORY}"
    info = struct("VkPhysicalDeviceExternalBufferInfo", usage=USAGE, handleType=OPAQUE_FD)
    found = struct("VkExternalBufferProperties")
    load().vkGetPhysicalDeviceExternalBufferProperties(physical.pointer, info, found)
    features = found.externalMemoryProperties.externalMemoryFeatures
    if not features & constant("VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT"):
        return f"{physical.name} does not export the memory of buffers"
    if features & constant("VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT"):
        return f"{physical.name} exports only memory that belongs to one buffer alone"
    return ""
