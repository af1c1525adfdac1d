"""Which memory other drivers and processes can be given, by its file descriptor.

Memory of `VK_KHR_external_memory_fd` must be allocated for it. So it is asked for
(``DLBRIDGE_VULKAN_EXPORT=1``): drivers may place it in another way. lavapipe makes a file
of each block, which stays open.
"""

from __future__ import annotations

from .instance import PhysicalDevice
from .library import constant, load, struct

__all__ = ["ADOPTED", "ASK", "FD_MEMORY", "OPAQUE_FD", "device_refusal"]

FD_MEMORY = "VK_KHR_external_memory_fd"
OPAQUE_FD = constant("VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT")

ADOPTED = "a VkDevice that was adopted gives no memory to other drivers"

ASK = (
    "Vulkan's memory was not allocated for other drivers; set DLBRIDGE_VULKAN_EXPORT=1 before "
    "the first use of Vulkan"
)


def device_refusal(physical: PhysicalDevice, usage: int) -> str:
    """Why buffers of *usage* on this device cannot be exported; empty if they can."""
    if FD_MEMORY not in physical.extensions:
        return f"{physical.name} has no {FD_MEMORY}"
    info = struct("VkPhysicalDeviceExternalBufferInfo", usage=usage, handleType=OPAQUE_FD)
    found = struct("VkExternalBufferProperties")
    load().vkGetPhysicalDeviceExternalBufferProperties(physical.pointer, info, found)
    features = found.externalMemoryProperties.externalMemoryFeatures
    if not features & constant("VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT"):
        return f"{physical.name} does not export the memory of buffers"
    if features & constant("VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT"):
        return f"{physical.name} exports only memory that belongs to one buffer alone"
    return ""
