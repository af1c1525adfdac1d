"""The VkInstance, the physical devices that it lists in TVM's order, and their memory types."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dlbridge.errors import BackendUnavailable, DeviceError, DeviceMemoryError

from .library import array, check, constant, ffi, load, struct, text

NEEDED = (1 << 22) | (2 << 12)
"""Vulkan 1.2: timeline semaphores in the core."""

NEWEST = (1 << 22) | (3 << 12)
"""Vulkan 1.3: the newest version whose rules this package was written for; with
it, user modules of SPIR-V 1.6 are allowed."""

WITH_MAX_BUFFER = (1 << 22) | (3 << 12)
"""Vulkan 1.3: from here on a device says how large a buffer may be."""

PORTABILITY = "VK_KHR_portability_enumeration"
HOST_MEMORY = "VK_EXT_external_memory_host"
FD_MEMORY = "VK_KHR_external_memory_fd"

KINDS = ("discrete", "integrated", "virtual", "cpu", "other")
"""TVM's order of devices (src/runtime/vulkan/vulkan_device_api.cc)."""

_NAMES = {
    constant("VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU"): "discrete",
    constant("VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU"): "integrated",
    constant("VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU"): "virtual",
    constant("VK_PHYSICAL_DEVICE_TYPE_CPU"): "cpu",
}


@dataclass(frozen=True)
class PhysicalDevice:
    """The facts about a device that are known before it is opened."""

    pointer: Any = field(repr=False)
    """VkPhysicalDevice; lives as long as the instance, which is never destroyed."""
    name: str
    kind: str
    version: int
    """The Vulkan version to use it with: the lesser of its own and ours."""
    uuid: str
    driver: str
    pci: str
    extensions: frozenset[str]
    queue_family: int
    limits: Mapping[str, Any]
    memory_types: tuple[tuple[int, int, int], ...]
    """Per memory type: property flags, heap index, heap size in bytes."""
    memory: int
    """Bytes of its largest device-local heap."""

    @cached_property
    def shares_memory(self) -> bool:
        """Whether all its memory is the host's.

        The flag DEVICE_LOCAL says nothing of it: AMD's drivers show an APU's memory
        as one part with it and one without.
        """
        return self.kind in ("integrated", "cpu")


def version_text(version: int) -> str:
    """``1.3.230`` for an encoded Vulkan version."""
    return f"{version >> 22 & 0x7F}.{version >> 12 & 0x3FF}.{version & 0xFFF}"


def create_instance() -> tuple[Any, int]:
    """A new VkInstance and the version it was made for.

    It is immortal: layers and drivers may still use it while the process ends.
    BackendUnavailable if there is no loader, or one older than Vulkan 1.2.
    """
    lib = load()
    version = min(_loader_version(), NEWEST)
    offered = {
        text(item.extensionName)
        for item in array(
            lib.vkEnumerateInstanceExtensionProperties, "VkExtensionProperties", ffi.NULL
        )
    }
    # Without it the loader hides drivers that are not fully conformant (MoltenVK).
    wanted = [ffi.new("char[]", PORTABILITY.encode())] if PORTABILITY in offered else []
    names = ffi.new("char *[]", wanted)
    engine = ffi.new("char[]", b"dlbridge")
    application = struct("VkApplicationInfo", pEngineName=engine, apiVersion=version)
    info = struct(
        "VkInstanceCreateInfo",
        flags=constant("VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR") if wanted else 0,
        pApplicationInfo=application,
        enabledExtensionCount=len(wanted),
        ppEnabledExtensionNames=names,
    )
    instance = ffi.new("VkInstance *")
    try:
        check(lib.vkCreateInstance(info, ffi.NULL, instance), "vkCreateInstance")
    except (DeviceError, DeviceMemoryError) as exc:
        raise BackendUnavailable(
            f"{exc}. Is a Vulkan driver installed? (Debian, Ubuntu: apt install "
            "mesa-vulkan-drivers; VK_DRIVER_FILES names drivers by hand)"
        ) from exc
    return instance[0], version


def _loader_version() -> int:
    """The Vulkan version of the loader; BackendUnavailable below 1.2."""
    loader = ffi.new("uint32_t *")
    try:
        check(load().vkEnumerateInstanceVersion(loader), "vkEnumerateInstanceVersion")
    except AttributeError:  # a loader of Vulkan 1.0 does not export it
        loader[0] = 1 << 22
    if loader[0] < NEEDED:
        raise BackendUnavailable(
            f"the Vulkan loader speaks {version_text(loader[0])}; 1.2 or newer is needed"
        )
    return int(loader[0])


def physical_devices(instance: Any, version: int) -> list[PhysicalDevice]:
    """The usable devices: Vulkan 1.2, timeline semaphores, a compute queue.

    Sorted as TVM sorts them: discrete, integrated, virtual, cpu, other, and
    within a kind as the loader lists them. BackendUnavailable, with what each
    device lacks, if none is left.
    """
    usable, refused = [], []
    try:
        listed = array(load().vkEnumeratePhysicalDevices, "VkPhysicalDevice", instance)
    except (DeviceError, DeviceMemoryError) as exc:
        raise BackendUnavailable(f"no usable Vulkan driver: {exc}") from exc
    for pointer in listed:
        try:
            described = describe(pointer, version)
        except (DeviceError, DeviceMemoryError) as exc:  # one that fails hides no other
            described = f"{device_name(pointer)} could not be described: {exc}"
        if isinstance(described, str):
            refused.append(described)
        else:
            usable.append(described)
    if not usable:
        raise BackendUnavailable(
            f"no usable Vulkan device ({'; '.join(refused) or 'the loader found no driver'}). "
            "Install your GPU's Vulkan driver, or the software one (Debian, Ubuntu: apt "
            "install mesa-vulkan-drivers)"
        )
    return sorted(usable, key=lambda device: KINDS.index(device.kind))


def device_name(pointer: Any) -> str:
    """The name of a physical device."""
    properties = ffi.new("VkPhysicalDeviceProperties *")
    load().vkGetPhysicalDeviceProperties(pointer, properties)
    return text(properties.deviceName)


def describe(pointer: Any, version: int) -> PhysicalDevice | str:
    """The device behind *pointer*, or the reason why it cannot be used."""
    lib = load()
    plain = ffi.new("VkPhysicalDeviceProperties *")
    lib.vkGetPhysicalDeviceProperties(pointer, plain)
    name = text(plain.deviceName)
    if plain.apiVersion < NEEDED:
        # Its version decides which structures may be asked for: nothing more is.
        return f"{name} speaks Vulkan {version_text(plain.apiVersion)}, 1.2 is needed"
    if not features(pointer)["VkPhysicalDeviceVulkan12Features"].timelineSemaphore:
        return f"{name} has no timeline semaphores"
    families = array(
        lib.vkGetPhysicalDeviceQueueFamilyProperties, "VkQueueFamilyProperties", pointer
    )
    family = compute_family([f.queueFlags for f in families])
    if family is None:
        return f"{name} has no compute queue"
    extensions = frozenset(
        text(item.extensionName)
        for item in array(
            lib.vkEnumerateDeviceExtensionProperties, "VkExtensionProperties", pointer, ffi.NULL
        )
    )
    types, memory = _memory(pointer)
    return PhysicalDevice(
        pointer=pointer,
        name=name,
        version=min(plain.apiVersion, version),
        queue_family=family,
        extensions=extensions,
        memory_types=types,
        memory=memory,
        **_properties(pointer, extensions, plain.apiVersion),
    )


def compute_family(flags: Sequence[int]) -> int | None:
    """The queue family to use, by the families' flags; None if none computes.

    One without graphics where there is one: its work runs beside a desktop's,
    and is not interrupted by it.
    """
    compute, graphics = constant("VK_QUEUE_COMPUTE_BIT"), constant("VK_QUEUE_GRAPHICS_BIT")
    able = [family for family, has in enumerate(flags) if has & compute]
    return min(able, key=lambda family: bool(flags[family] & graphics), default=None)


def features(pointer: Any) -> dict[str, Any]:
    """The feature structures of Vulkan 1.2, filled in; chained in this order."""
    twelve = struct("VkPhysicalDeviceVulkan12Features")
    eleven = struct("VkPhysicalDeviceVulkan11Features", pNext=twelve)
    first = struct("VkPhysicalDeviceFeatures2", pNext=eleven)
    load().vkGetPhysicalDeviceFeatures2(pointer, first)
    return {
        "VkPhysicalDeviceFeatures2": first,
        "VkPhysicalDeviceVulkan11Features": eleven,
        "VkPhysicalDeviceVulkan12Features": twelve,
    }


def _properties(pointer: Any, extensions: frozenset[str], version: int) -> dict[str, Any]:
    identity = struct("VkPhysicalDeviceIDProperties")
    driver = struct("VkPhysicalDeviceDriverProperties", pNext=identity)
    sizes = struct("VkPhysicalDeviceMaintenance3Properties", pNext=driver)
    # An extension's structure may be chained only where the extension is offered.
    host = struct("VkPhysicalDeviceExternalMemoryHostPropertiesEXT", pNext=sizes)
    last = host if HOST_MEMORY in extensions else sizes
    # No limit of its own before Vulkan 1.3: then only the memory's counts.
    buffers = struct("VkPhysicalDeviceMaintenance4Properties", pNext=last)
    buffers.maxBufferSize = (1 << 64) - 1
    last = buffers if version >= WITH_MAX_BUFFER else last
    pci = struct("VkPhysicalDevicePCIBusInfoPropertiesEXT", pNext=last)
    last = pci if "VK_EXT_pci_bus_info" in extensions else last
    first = struct("VkPhysicalDeviceProperties2", pNext=last)
    load().vkGetPhysicalDeviceProperties2(pointer, first)
    properties = first.properties
    limits = properties.limits
    return {
        "kind": _NAMES.get(properties.deviceType, "other"),
        "uuid": str(uuid.UUID(bytes=bytes(identity.deviceUUID))),
        "driver": f"{text(driver.driverName)} {text(driver.driverInfo)}".strip(),
        "pci": ""
        if last is not pci
        else f"{pci.pciDomain:04x}:{pci.pciBus:02x}:{pci.pciDevice:02x}.{pci.pciFunction}",
        "limits": {
            "max_allocation": sizes.maxMemoryAllocationSize,
            "max_allocations": limits.maxMemoryAllocationCount,
            "max_buffer": buffers.maxBufferSize,
            "max_storage_buffer_range": limits.maxStorageBufferRange,
            "min_storage_buffer_offset_alignment": limits.minStorageBufferOffsetAlignment,
            "max_push_constants": limits.maxPushConstantsSize,
            "max_work_groups": tuple(limits.maxComputeWorkGroupCount),
            "max_work_group_size": tuple(limits.maxComputeWorkGroupSize),
            "max_work_group_invocations": limits.maxComputeWorkGroupInvocations,
            "max_storage_buffers": limits.maxPerStageDescriptorStorageBuffers,
            "min_imported_host_pointer_alignment": host.minImportedHostPointerAlignment,
        },
    }


def _memory(pointer: Any) -> tuple[tuple[tuple[int, int, int], ...], int]:
    memory = ffi.new("VkPhysicalDeviceMemoryProperties *")
    load().vkGetPhysicalDeviceMemoryProperties(pointer, memory)
    heaps = [memory.memoryHeaps[i] for i in range(memory.memoryHeapCount)]
    types = tuple(
        (kind.propertyFlags, kind.heapIndex, heaps[kind.heapIndex].size)
        for kind in (memory.memoryTypes[i] for i in range(memory.memoryTypeCount))
    )
    local = constant("VK_MEMORY_HEAP_DEVICE_LOCAL_BIT")
    return types, max((heap.size for heap in heaps if heap.flags & local), default=0)


# Memory types -----------------------------------------------------------------------

LOCAL = constant("VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT")
COHERENT = constant("VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT") | constant(
    "VK_MEMORY_PROPERTY_HOST_COHERENT_BIT"
)
CACHED = constant("VK_MEMORY_PROPERTY_HOST_CACHED_BIT")
SPECIAL = ~(LOCAL | COHERENT | CACHED)
"""Flags of memory that is not for buffers in general: lazily allocated, protected,
device-coherent and uncached (AMD), for RDMA (NVIDIA)."""


class MemoryType:
    """A memory type of a device, and what the host can do with it.

    Only coherent memory is ever mapped: every device has some for staging
    (Vulkan 1.3, "Device Memory"), and nothing need be flushed.
    """

    def __init__(self, index: int, flags: int, size: int) -> None:
        self.index = index
        self.size = size
        """Bytes of the heap that it belongs to."""
        self.mapped = flags & COHERENT == COHERENT
        self.cached = self.mapped and bool(flags & CACHED)

    @classmethod
    def for_tensors(cls, device: PhysicalDevice, bits: int, staged: bool) -> list[MemoryType]:
        """The types for tensors, best first; the next is for when one is full.

        On a discrete GPU device-local memory comes first, and among that what
        the host can address too, if there is enough of it: its heap must hold
        half of what the largest device-local heap does, which the usual window
        of 256 MiB does not. Where host and device share their memory (integrated
        GPUs, CPUs), memory that the host caches comes first: it is the same
        memory, and the host reads it at full speed. With *staged* all memory is
        treated as if the host could not address it.
        """
        big = device.memory // 2
        shared = device.shares_memory
        rows = [
            (index, flags, size)
            for index, (flags, _, size) in enumerate(device.memory_types)
            if bits >> index & 1 and not flags & SPECIAL
        ]

        def rank(row: tuple[int, int, int]) -> tuple[bool, ...]:
            _, flags, size = row
            mapped = flags & COHERENT == COHERENT and (shared or size >= big)
            cached = mapped and bool(flags & CACHED)
            local = bool(flags & LOCAL)
            return (shared and cached, local, size >= big, mapped, cached)

        rows.sort(key=rank, reverse=True)  # stable: as the driver orders them within a rank
        return [
            cls(index, 0 if staged or (size < big and not shared) else flags, size)
            for index, flags, size in rows
        ]

    @classmethod
    def for_staging(cls, device: PhysicalDevice, bits: int) -> MemoryType:
        """Memory that the host addresses, cached if there is such."""
        rows = [
            (index, flags, size)
            for index, (flags, _, size) in enumerate(device.memory_types)
            if bits >> index & 1 and flags & COHERENT == COHERENT and not flags & SPECIAL
        ]
        return cls(*max(rows, key=lambda row: (bool(row[1] & CACHED), not row[1] & LOCAL)))
