"""An open VkDevice: its queue, its memory by types, and how it is opened or adopted."""

from __future__ import annotations

import threading
from collections import deque
from itertools import pairwise
from typing import Any, Protocol

from dlbridge.errors import DeviceError, DeviceMemoryError
from dlbridge.kit.resources import Resources

from .instance import (
    FD_MEMORY,
    HOST_MEMORY,
    NEWEST,
    MemoryType,
    PhysicalDevice,
    describe,
    features,
)
from .library import Objects, check, constant, ffi, handle, load, struct
from .memory import (
    IN_SLICES,
    MAGIC,
    USAGE,
    Block,
    Buffer,
    BufferOwner,
    Given,
    Heap,
    create_buffer,
    external,
)
from .queue import Queue

__all__ = ["ADOPTED", "CHUNK", "OPAQUE_FD", "SLOTS", "Device", "Finishes", "adopt", "open_device"]

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

OPAQUE_FD = constant("VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT")

ADOPTED = "a VkDevice that was adopted gives no memory to other drivers"

ASK = (
    "Vulkan's memory was not allocated for other drivers; set DLBRIDGE_VULKAN_EXPORT=1 before "
    "the first use of Vulkan"
)

CHUNK = 4 << 20
"""Bytes of a slot of the staging ring."""

SLOTS = 4
# Measured on lavapipe with two busy cores, against memcpy: chunks of 512 KiB 0.47x,
# 1 MiB 0.53x, 2 MiB 0.57x, 4 MiB 0.61x; more slots change nothing.

Table = dict[int, Buffer]
"""Buffers whose owner somebody has, by their ``data``. A pointer is looked up here and never
dereferenced, so that one of another library can do no harm."""

_SIZE = ffi.sizeof("DlbridgeVulkanBuffer")
_ADDRESS, _NUMBER = ffi.typeof("void *"), ffi.typeof("uintptr_t")


class Finishes(Protocol):
    """The Vulkan objects of something made for a device, to be destroyed before the device."""

    def close(self, wait: bool = True) -> bool:
        """Give back what is its own when its work is done, or *wait* for that; False: not yet."""


class Device:
    """One open device. *index* is its device_id.

    *pointer* is the VkDevice; *objects* holds what is this package's to destroy,
    the VkDevice included if it was opened here; *host_import* says whether
    VK_EXT_external_memory_host is switched on in it; *export_refusal* why memory of
    tensors is not allocated for other drivers, empty if it is; *sharing_refusal* why no memory
    at all can be; *imports_fds* whether VK_KHR_external_memory_fd is switched on.
    """

    def __init__(
        self,
        objects: Objects,
        table: Table,
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
        self.most_allocations = physical.limits["max_allocations"]
        self.queue = queue
        self.objects = objects
        self.lib = load()
        self.kernels: Resources[Finishes] = Resources(_close)
        self.memories: Resources[Given] = Resources(Given.free)
        self.buffers: Resources[Buffer] = Resources(self._give_back)
        self.table = table
        self.host_pointer_properties = (
            self._function("vkGetMemoryHostPointerPropertiesEXT") if host_import else None
        )
        self.imports_fds = imports_fds
        self.get_memory_fd: Any = None if sharing_refusal else self._function("vkGetMemoryFdKHR")
        self.export_refusal = export_refusal
        self.sharing_refusal = sharing_refusal
        handle_types = 0 if export_refusal else OPAQUE_FD
        self._chain = external(handle_types)
        # Equal for all buffers of equal usage (Vulkan 1.3, "Resource Memory Association").
        bits = self._memory_type_bits()
        self.heaps = [
            Heap(self, kind, handle_types)
            for kind in MemoryType.for_tensors(physical, bits, staged)
        ]
        """Memory for tensors, the best type first."""
        self._staging = Heap(self, MemoryType.for_staging(physical, bits), handle_types)
        self._slots: deque[BufferOwner] = deque()
        self._common = self._descriptor()

    # --- Buffers ---

    def allocate(self, nbytes: int, alignment: int) -> BufferOwner:
        """A new buffer, of the first memory type that has room.

        *alignment* (bytes, a power of two) holds for the host's address, or for the place in
        the block where there is none. DeviceMemoryError if no type has room, even after what was
        freed has been waited for, or if it is more than the device allows at once.
        """
        if nbytes > self.most:
            raise DeviceMemoryError(
                f"no memory of {self.physical.name} has room for {nbytes} bytes: it gives at "
                f"most {self.most} at once; {IN_SLICES}"
            )
        return self._placed(self.heaps, nbytes, alignment)

    def _placed(self, heaps: list[Heap], nbytes: int, alignment: int) -> BufferOwner:
        if self.buffers.waiting:
            self.buffers.sweep()
        made = self.new()
        place = made.resource
        size, step = create_buffer(self.pointer, nbytes, place.cell, self._chain)
        reasons = dict[str, DeviceMemoryError]()
        for heap in heaps:
            try:
                self._place_in(heap, place, size, max(alignment, step), step)
            except DeviceMemoryError as exc:
                reasons[str(exc)] = exc.with_traceback(None)  # which would keep *made*
            else:
                break
        block = place.block
        if block is None:
            raise DeviceMemoryError(
                f"no memory of {self.physical.name} has room for {nbytes} bytes: "
                f"{'; '.join(reasons)}"
            ) from next(iter(reasons.values()))
        mapped = block.mapped and block.mapped + place.start
        self.bind(made, block, nbytes, mapped, heap.kind.cached)
        return made

    def _place_in(self, heap: Heap, place: Buffer, size: int, alignment: int, step: int) -> None:
        place.heap = heap
        try:
            heap.place(place, size, alignment, step)
        except DeviceMemoryError:
            if not self.make_room([heap]):
                raise
            heap.place(place, size, alignment, step)

    def new(self, is_foreign: bool = False) -> BufferOwner:
        """A buffer without memory, which goes back when its owner, the result, is dropped."""
        return BufferOwner(self.buffers, Buffer(self, self.queue, is_foreign))

    def bind(self, made: BufferOwner, block: Block, nbytes: int, mapped: int, cached: bool) -> None:
        """Bind the VkBuffer of *made* to its memory in *block*, and let it be found."""
        place = made.resource
        memory = int(block.resource.cell[0])
        buffer, start = place.cell[0], place.start
        result = self.lib.vkBindBufferMemory(self.pointer, buffer, memory, start)
        if result:
            check(result, "vkBindBufferMemory")
        self.describe(made, buffer, memory, nbytes, mapped, cached)

    def describe(
        self, made: BufferOwner, handle: int, memory: int, nbytes: int, mapped: int, cached: bool
    ) -> None:
        """Fill in what is known of *made* and its descriptor; it is in the table then."""
        buffer = made.resource
        described = buffer.descriptor
        ffi.memmove(described, self._common, _SIZE)
        described.buffer, described.memory = handle, memory
        described.size, described.offset = nbytes, buffer.start
        if mapped:
            described.mapped = ffi.cast(_ADDRESS, mapped)
        buffer.memory, buffer.mapped, buffer.cached = memory, mapped, cached
        made.nbytes = buffer.nbytes = nbytes
        made.data = buffer.data = int(ffi.cast(_NUMBER, described))
        self.table[buffer.data] = buffer

    def _give_back(self, place: Buffer) -> bool:
        """Take *place* back if the queue is done with it.

        Waits only where the memory is someone else's (imported, wrapped): its owner may take it
        away as soon as this returns. It may run in a finalizer, and so in the middle of any
        other call of the same thread.
        """
        queue = self.queue
        self.table.pop(place.data, None)
        if not queue.alive:
            return True
        try:
            if queue.shared and not place.is_marked:
                place.last_use, place.is_marked = queue.mark(), True
            if place.last_use > queue.reached and not queue.done(place.last_use):
                if not place.is_foreign:
                    return False
                queue.wait(place.last_use)
        except DeviceMemoryError:
            return False  # it may be in use still
        except DeviceError:
            if not place.is_foreign:
                return False
        self._destroy(place)
        return True

    def _destroy(self, place: Buffer) -> None:
        """Give back all of *place*, which nothing uses."""
        cell, destroy = place.cell, self.lib.vkDestroyBuffer
        if cell[0]:
            # Python runs no signal handler between these two lines.
            buffer, cell[0] = cell[0], 0
            destroy(self.pointer, buffer, ffi.NULL)
        block, heap = place.block, place.heap
        if block is not None:
            block.put_back(place)
            if heap is None:  # its own
                block.resource.free()
            elif block.is_empty:
                heap.trim()

    # --- The staging ring: host memory through which unmapped memory is copied ---

    def claim(self) -> BufferOwner:
        """A slot of `CHUNK` bytes for the caller alone, until `put_back`; it is done with its work.

        It is claimed by one step, and a copy that finds none makes one: so no copy waits for
        another one, not even for one that this copy has interrupted (a finalizer). A slot that
        is not put back goes when it is dropped.
        """
        slot = None
        try:
            if len(self._slots) >= SLOTS:
                slot = self._slots.popleft()
        except IndexError:  # claimed by another thread since
            pass
        if slot is None:
            slot = self._placed([self._staging], CHUNK, 4096)
            del self.table[slot.data]  # it is nobody's tensor
            return slot
        self.queue.wait(slot.resource.last_use)
        return slot

    def put_back(self, slot: BufferOwner) -> None:
        """Let others claim *slot*, unless many threads have copied at once."""
        if len(self._slots) < 2 * SLOTS:
            self._slots.append(slot)

    # --- All of it ---

    def make_room(self, heaps: list[Heap]) -> bool:
        """Wait for what was freed and give all empty blocks back; False if there was nothing."""
        blocks = [block for heap in heaps for block in heap.blocks]
        if not self.buffers.waiting and not any(block.is_empty for block in blocks):
            return False
        self.queue.finish()
        self.buffers.sweep()
        for heap in heaps:
            heap.trim(0)
        return True

    def trim(self) -> None:
        """Give the driver all blocks of memory that nothing uses, the staging ring's too."""
        self._slots.clear()
        self.make_room([*self.heaps, self._staging])

    def close(self) -> None:
        """Wait for the device, destroy what is ours in it, and the device if it is ours.

        No tensor may be left on it; its kernels are closed.
        """
        for kernel in self.kernels.all():
            kernel.close()
        self._slots.clear()
        self.queue.finish()
        self.queue.alive = False
        self.queue.finish()
        for place in self.buffers.all():
            self._destroy(place)
        for heap in (*self.heaps, self._staging):
            heap.blocks.clear()
        for given in self.memories.all():
            given.free()
        self.objects.destroy()

    @property
    def allocations(self) -> int:
        """The VkDeviceMemory objects that this package has in the device."""
        return sum(given.is_ours for given in self.memories.all())

    @property
    def is_full(self) -> bool:
        """Whether the device allows no more of them."""
        return bool(self.allocations >= self.most_allocations)

    def _descriptor(self) -> Any:
        """The members of descriptors that are the same for all buffers."""
        return ffi.new(
            "DlbridgeVulkanBuffer *",
            {
                "device": self.pointer,
                "magic": MAGIC,
                "instance": self.instance,
                "physical_device": self.physical.pointer,
                "queue": self.queue.handle,
                "queue_family": self.queue.family,
                "version": 1,
            },
        )

    def _memory_type_bits(self) -> int:
        info = struct("VkBufferCreateInfo", pNext=self._chain, size=4, usage=USAGE)
        probe = self.objects.create(self.pointer, "Buffer", info)  # it stays, without memory
        needs = ffi.new("VkMemoryRequirements *")
        self.lib.vkGetBufferMemoryRequirements(self.pointer, probe[0], needs)
        return int(needs.memoryTypeBits)

    def _function(self, name: str) -> Any:
        """A device function of an extension; None if the driver does not have it."""
        function = self.lib.vkGetDeviceProcAddr(self.pointer, name.encode())
        return ffi.cast(f"PFN_{name}", function) if function else None


def _close(one: Finishes) -> bool:
    return one.close(wait=False)


# Opening ----------------------------------------------------------------------------


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
    has such. *objects* owns what is made; after an exception it is the caller's to destroy.
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
    VK_EXT_external_memory_host switched on. What is made in it goes to the object
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
