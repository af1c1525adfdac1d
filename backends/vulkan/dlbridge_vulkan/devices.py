"""The devices by number and by name, and the buffers on them.

A device is opened at its first use, with what tensors need; one of the caller's can be adopted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError
from dlbridge.kit.gate import wait_at_exit
from dlbridge.kit.resources import Owner, Resources, shared_lock
from dlbridge.protocol import Span

from .device import OPAQUE_FD, Device, Table
from .instance import (
    FD_MEMORY,
    HOST_MEMORY,
    NEWEST,
    PhysicalDevice,
    create_instance,
    describe,
    features,
    physical_devices,
    version_text,
)
from .library import Objects, constant, ffi, handle, load, struct
from .memory import USAGE, Buffer
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


class Entry:
    """One numbered device: what is known of it, and the open device."""

    def __init__(self, physical: PhysicalDevice) -> None:
        self.physical = physical
        self.device: Device | None = None
        self.owner: object = None
        """Of what `device` has."""


class Devices:
    """All devices of one VkInstance in TVM's order, then the adopted ones.

    BackendUnavailable if this machine has none.
    """

    def __init__(self, *, staged: bool, exportable: bool = False) -> None:
        self.staged = staged
        self.exportable = exportable
        self.instance, version = create_instance()
        self._entries = [Entry(one) for one in physical_devices(self.instance, version)]
        self.table: Table = {}
        self._lock = shared_lock()  # a finalizer may come in while its thread is inside
        self._objects: Resources[Objects] = Resources(Objects.destroy)
        wait_at_exit(self.pending)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> Device:
        """The device *index*, opened now if it is not yet."""
        try:
            device = self._entries[index].device if index >= 0 else None
        except IndexError:
            device = None
        if device is None:
            device = self._open(index)
        if not device.queue.alive:
            raise DeviceError(f"vulkan:{index} has been closed")
        return device

    def _open(self, index: int) -> Device:
        entry = self._entry(index)
        with self._lock:
            owner = Owner(self._objects, Objects())
            try:
                device = entry.device or self._new(owner.resource, entry.physical)
                device.index = index
                if entry.device is None:  # a finalizer may have opened it in this thread meanwhile
                    entry.device, entry.owner = device, owner
            finally:
                del owner  # now, also if an exception keeps this frame
        return entry.device

    def _entry(self, index: int) -> Entry:
        if not 0 <= index < len(self._entries):
            listed = enumerate(entry.physical for entry in self._entries)
            names = ", ".join(f"vulkan:{i} {one.name} ({one.uuid})" for i, one in listed)
            raise ExchangeError(f"there is no vulkan:{index}; devices: {names}")
        return self._entries[index]

    def opened(self, index: int) -> Device | None:
        """The device *index*, or None if it was not used yet."""
        return None if self._entry(index).device is None else self[index]

    def _new(self, objects: Objects, physical: PhysicalDevice) -> Device:
        """A new VkDevice with one compute queue; *objects* gets what is made.

        After an exception that is the caller's to destroy.
        """
        extensions = [name for name in EXTENSIONS if name in physical.extensions]
        refusal = device_refusal(physical)
        pointer = _create(objects, physical, extensions)
        taken = ffi.new("VkQueue *")
        load().vkGetDeviceQueue(pointer, physical.queue_family, 0, taken)
        return Device(
            objects,
            self.table,
            self.instance,
            physical,
            pointer,
            Queue(objects, pointer, taken[0], physical.queue_family, self._lock),
            extensions,
            staged=self.staged,
            export_refusal=refusal if self.exportable else ASK,
            sharing_refusal=refusal,
        )

    def adopt(self, handles: Sequence[Any], family: int, lock: Any, host_import: bool) -> Device:
        """An open VkDevice of the caller's as one more device; it stays the caller's to destroy.

        *handles* are those of the instance, the physical device, the device and the queue, as
        integers or cffi pointers. Both instance and device must have
        been created for Vulkan 1.2 or newer, through the system's loader, with the
        feature timelineSemaphore; *host_import* says that the device has
        VK_EXT_external_memory_host switched on.
        """
        kinds = "VkInstance", "VkPhysicalDevice", "VkDevice", "VkQueue"
        pointers = [ffi.cast(k, handle(each)) for k, each in zip(kinds, handles, strict=True)]
        if not all(pointers):
            raise ValueError("adopt_device needs four handles, and one of them is 0")
        if isinstance(lock, type(threading.Lock())):
            raise ValueError(
                f"lock={lock!r} is not reentrant: a finalizer that runs while your code holds it "
                "could not take it, and would wait for ever. Give a threading.RLock"
            )
        instance, physical_device, pointer, queue = pointers
        physical = describe(physical_device, NEWEST)
        if isinstance(physical, str):
            raise DeviceError(f"this VkDevice cannot be adopted: {physical}")
        if not load().vkGetDeviceProcAddr(pointer, b"vkWaitSemaphores"):
            raise DeviceError(
                f"this VkDevice of {physical.name} was created for a Vulkan older than 1.2; set "
                "VkApplicationInfo.apiVersion to 1.2 or newer"
            )
        lock = self._lock if lock is None else lock
        entry, owner = Entry(physical), Owner(self._objects, Objects())
        try:
            objects = owner.resource
            device = entry.device = Device(
                objects,
                self.table,
                instance,
                physical,
                pointer,
                Queue(objects, pointer, queue, family, lock, shared=True),
                [HOST_MEMORY] if host_import else [],
                staged=self.staged,
                export_refusal=ADOPTED,
                sharing_refusal=ADOPTED,
            )
            entry.owner = owner
            self._entries.append(entry)  # one step, which gives it its number
            device.index = self._entries.index(entry)
        finally:
            del owner  # now, also if an exception keeps this frame
        return device

    def info(self, index: int) -> Mapping[str, Any]:
        """The device described; opens nothing."""
        physical = self._entry(index).physical
        return {
            "name": physical.name,
            "kind": physical.kind if physical.kind in ("cpu", "other") else "gpu",
            "type": physical.kind,
            "memory": physical.memory,
            "uuid": physical.uuid,
            "driver": physical.driver,
            "vulkan": version_text(physical.version),
            "host_memory_shared": physical.shares_memory,
            "host_import": bool(physical.limits["min_imported_host_pointer_alignment"]),
            **physical.limits,
            **({"pci": physical.pci} if physical.pci else {}),
        }

    def pending(self) -> Iterator[Callable[[], bool]]:
        """Of each open device: whether the work that is on its queue now is done.

        It is waited for at exit: a driver that is still busy while the process unloads it would
        crash.
        """
        for entry in self._entries:
            device = entry.device
            if device is not None and device.queue.alive:
                try:
                    value = device.queue.mark()
                except (DeviceError, DeviceMemoryError):  # a lost device has no work left
                    continue
                yield partial(device.queue.done, value)

    # --- Buffers ---

    def find(self, data: int) -> Buffer | None:
        """The buffer behind *data*, or None if this package did not make it, or no longer has."""
        return self.table.get(data)

    def buffer(self, data: int) -> Buffer:
        """The buffer behind *data*; DeviceError if there is none, or no longer."""
        try:
            return self.table[data]
        except KeyError:
            raise DeviceError(
                f"{data:#x} is not a live Vulkan buffer of this process: it was freed, or its "
                "device was closed"
            ) from None

    def at(self, span: Span) -> Buffer:
        """The buffer, in which the whole span must lie."""
        device_id, data, offset, nbytes = span
        try:
            buffer = self.table[data]
        except KeyError:
            buffer = self.buffer(data)  # which says what is wrong
        if offset < 0 or offset + nbytes > buffer.nbytes:
            raise ExchangeError(
                f"bytes {offset} to {offset + nbytes} are outside a Vulkan buffer of "
                f"{buffer.nbytes} bytes"
            )
        if buffer.device.index != device_id:
            raise ExchangeError(
                f"{data:#x} is memory of vulkan:{buffer.device.index}, and not of "
                f"vulkan:{device_id}; name the device of the memory"
            )
        return buffer

    def buffers(self, device: Device | None = None) -> int:
        """How many buffers somebody has, of all devices or of one."""
        return sum(device in (None, each.device) for each in list(self.table.values()))


# How one is opened -----------------------------------------------------------------


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


def device_refusal(physical: PhysicalDevice) -> str:
    """Why buffers on this device cannot be exported; empty if they can.

    Memory of `VK_KHR_external_memory_fd` must be allocated for it. So it is asked for
    (``DLBRIDGE_VULKAN_EXPORT=1``): drivers may place it in another way. lavapipe makes a file
    of each block, which stays open.
    """
    if FD_MEMORY not in physical.extensions:
        return f"{physical.name} has no {FD_MEMORY}"
    info = struct("VkPhysicalDeviceExternalBufferInfo", usage=USAGE, handleType=OPAQUE_FD)
    properties = struct("VkExternalBufferProperties")
    load().vkGetPhysicalDeviceExternalBufferProperties(physical.pointer, info, properties)
    features = properties.externalMemoryProperties.externalMemoryFeatures
    if not features & constant("VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT"):
        return f"{physical.name} does not export the memory of buffers"
    if features & constant("VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT"):
        return f"{physical.name} exports only memory that belongs to one buffer alone"
    return ""
