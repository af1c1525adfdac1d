"""An open VkDevice: its queue, its memory by types, its pools of buffers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dlbridge.errors import DeviceError, DeviceMemoryError
from dlbridge.kit.limits import pool_limit
from dlbridge.kit.resources import Resources

from .instance import FD_MEMORY, HOST_MEMORY, MemoryType, PhysicalDevice
from .library import Objects, check, constant, ffi, load
from .memory import (
    IN_SLICES,
    POOLED,
    Allocation,
    Block,
    Buffer,
    DeviceMemory,
    Heap,
    Key,
    Pool,
    create_buffer,
    external,
    room_for,
)
from .queue import Queue

KEEP = 256 << 20
"""Bytes of freed memory that are kept unless the user sets a limit, because fresh memory costs
page faults (measured: they halve the speed of the first copy)."""

MAGIC = 0x6B56656764697262
"""The descriptor's magic: the bytes ``bridgeVk``."""

OPAQUE_FD = constant("VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT")

CHUNK = 4 << 20
"""Bytes of a slot of the staging ring."""

SLOTS = 4
"""Slots that one copy uses at a time."""
# Measured on lavapipe with two busy cores, against memcpy: chunks of 512 KiB 0.47x,
# 1 MiB 0.53x, 2 MiB 0.57x, 4 MiB 0.61x; more slots change nothing.

Table = dict[int, Buffer]
"""Buffers whose owner somebody has, by their ``data``. A pointer is looked up here and never
dereferenced, so that one of another library can do no harm."""

_SIZE = ffi.sizeof("DlbridgeVulkanBuffer")


class KernelObjects(Objects):
    """What a kernel has of the device, and when the queue is done with it."""

    __slots__ = ("last_use",)

    def __init__(self) -> None:
        super().__init__()
        self.last_use = 0


class Device:
    """One open device. *index* is its device_id.

    *pointer* is the VkDevice; *objects* holds what is this package's to destroy,
    the VkDevice included if it was opened here; *extensions* are switched on in it;
    *export_refusal* says why memory of tensors is not allocated for other drivers, empty if it
    is; *sharing_refusal* why no memory at all can be.
    """

    def __init__(
        self,
        objects: Objects,
        table: Table,
        instance: Any,
        physical: PhysicalDevice,
        pointer: Any,
        queue: Queue,
        extensions: Collection[str],
        *,
        staged: bool,
        export_refusal: str,
        sharing_refusal: str,
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
        self.lib = load()
        self.objects = objects
        self.kernels: Resources[KernelObjects] = Resources(self._end_kernel)
        self.memories: Resources[DeviceMemory] = Resources(DeviceMemory.free)
        self.buffers: Resources[list[Buffer]] = Resources(self._give_back)
        self.table = table
        self.imports_fds = FD_MEMORY in extensions
        self.host_pointer_properties: Any = None
        if HOST_MEMORY in extensions:
            self.host_pointer_properties = self._function("vkGetMemoryHostPointerPropertiesEXT")
        self.get_memory_fd: Any = None if sharing_refusal else self._function("vkGetMemoryFdKHR")
        self.export_refusal = export_refusal
        self.sharing_refusal = sharing_refusal
        handle_types = 0 if export_refusal else OPAQUE_FD
        self._chain = external(handle_types)
        # Equal for all buffers of equal usage (Vulkan 1.3, "Resource Memory Association").
        bits = self._memory_type_bits()
        keep = pool_limit(KEEP)
        self.pool, self._slots = Pool(keep // 8), Pool(2 * SLOTS * CHUNK)
        self.heaps = [
            Heap(self, kind, handle_types, keep - keep // 8, self.pool)
            for kind in MemoryType.for_tensors(physical, bits, staged)
        ]
        """Memory for tensors, the best type first."""
        kind = MemoryType.for_staging(physical, bits)
        self._staging = Heap(self, kind, handle_types, keep, self._slots)
        self._common = self._descriptor()

    # --- Buffers ---

    def allocate(self, nbytes: int, alignment: int, is_slot: bool = False) -> Allocation:
        """A new buffer, of the first memory type that has room; *is_slot*: one for staging.

        *alignment* (bytes, a power of two) holds for the host's address, or for the offset in
        the block where there is none. DeviceMemoryError if no type has room, even after what was
        freed has been waited for, or if it is more than the device allows at once.
        """
        if self.buffers.ended:
            self.buffers.sweep()
        lease: list[Buffer] = []
        made = Allocation(self.buffers, lease)
        made.stream, made.offset = self.queue.number, 0
        key = (room_for(nbytes) if nbytes <= POOLED else nbytes), alignment
        if not (self._slots if is_slot else self.pool).take(key, lease):
            lease.append(Buffer(self, is_foreign=False))
            self._place(lease[0], nbytes, key, is_slot)
        buffer = lease[0]
        buffer.is_marked = is_slot  # which others never have
        buffer.nbytes = buffer.descriptor.size = made.nbytes = nbytes
        made.data = buffer.data
        if not is_slot:  # which is nobody's tensor
            self.table[buffer.data] = buffer
        return made

    def _place(self, buffer: Buffer, nbytes: int, key: Key, is_slot: bool) -> None:
        """Make the VkBuffer, and find memory for it."""
        if nbytes > self.most:
            raise DeviceMemoryError(
                f"no memory of {self.physical.name} has room for {nbytes} bytes: it gives at "
                f"most {self.most} at once; {IN_SLICES}"
            )
        room, alignment = key
        needs = create_buffer(self.pointer, room, buffer.cell, self._chain)
        step = needs.alignment
        reasons = dict[str, DeviceMemoryError]()
        for heap in [self._staging] if is_slot else self.heaps:
            try:
                self._place_in(heap, buffer, needs.size, max(alignment, step), step)
            except DeviceMemoryError as exc:
                reasons[str(exc)] = exc.with_traceback(None)  # which would keep the owner
                continue
            block = buffer.block
            assert block is not None  # as it has been placed
            mapped = block.mapped and block.mapped + buffer.start
            self.bind(buffer, block, room, mapped, heap.kind.cached)
            if is_slot or room <= POOLED:
                buffer.key = key
            return
        raise DeviceMemoryError(
            f"no memory of {self.physical.name} has room for {nbytes} bytes: {'; '.join(reasons)}"
        ) from next(iter(reasons.values()))

    def _place_in(self, heap: Heap, buffer: Buffer, size: int, alignment: int, step: int) -> None:
        buffer.heap = heap
        try:
            heap.take(buffer, size, alignment, step)
        except DeviceMemoryError:
            if not self.make_room([heap]):
                raise
            heap.take(buffer, size, alignment, step)

    def own(self) -> Allocation:
        """The owner of a buffer that is made for itself, on memory of no heap: nothing yet."""
        made = Allocation(self.buffers, [Buffer(self, is_foreign=True)])
        made.stream, made.offset = self.queue.number, 0
        return made

    def bind(self, buffer: Buffer, block: Block, nbytes: int, mapped: int, cached: bool) -> None:
        """Bind the VkBuffer to its memory in *block*, and describe it."""
        memory, handle = block.memory, int(buffer.cell[0])
        result = self.lib.vkBindBufferMemory(self.pointer, handle, memory, buffer.start)
        check(result, "vkBindBufferMemory")
        self.describe(buffer, handle, memory, nbytes, mapped, cached)

    def describe(
        self, buffer: Buffer, handle: int, memory: int, nbytes: int, mapped: int, cached: bool
    ) -> None:
        """Fill in what is known of *buffer*, and its descriptor."""
        described = buffer.descriptor
        ffi.memmove(described, self._common, _SIZE)
        described.buffer, described.memory = handle, memory
        described.size, described.offset = nbytes, buffer.start
        described.mapped = ffi.cast("void *", mapped)
        buffer.buffer, buffer.memory, buffer.nbytes = handle, memory, nbytes
        buffer.mapped, buffer.cached = mapped, cached
        buffer.data = int(ffi.cast("uintptr_t", described))

    def enter(self, made: Allocation) -> Allocation:
        """Let the buffer of `own`, which has been described, be found."""
        buffer = made.resource[0]
        made.data, made.nbytes = buffer.data, buffer.nbytes
        self.table[buffer.data] = buffer
        return made

    def _give_back(self, lease: list[Buffer]) -> bool:
        """Take a buffer back if the queue is done with it.

        Waits only where the memory is someone else's (imported, wrapped): its owner may take it
        away as soon as this returns. It may run in a finalizer, and so in the middle of any
        other call of the same thread.
        """
        queue = self.queue
        if not lease:
            return True
        buffer = lease[0]
        self.table.pop(buffer.data, None)
        if not queue.alive:
            return True
        try:
            if queue.shared and not buffer.is_marked:
                buffer.last_use, buffer.is_marked = queue.mark(), True
            if buffer.last_use > queue.reached and not queue.done(buffer.last_use):
                if not buffer.is_foreign:
                    return False
                queue.wait(buffer.last_use)
        except DeviceMemoryError:
            return False  # it may be in use still
        except DeviceError:
            if not buffer.is_foreign:
                return False
        heap, key = buffer.heap, buffer.key
        if heap is None or not heap.pool.put(lease):
            self._destroy(buffer)
            if heap is not None and key is not None:  # a full pool: it shall leave whole blocks
                self._empty(heap.pool)
        return True

    def _destroy(self, buffer: Buffer) -> None:
        """Give back all of *buffer*, which nothing uses."""
        cell, destroy = buffer.cell, self.lib.vkDestroyBuffer
        buffer.key = None
        if cell[0]:
            # Python runs no signal handler between these two lines.
            handle, cell[0] = cell[0], 0
            destroy(self.pointer, handle, ffi.NULL)
        block, heap = buffer.block, buffer.heap
        if block is not None:
            block.put_back(buffer)
            if heap is None:  # its own
                block.resource.free()
            elif block.is_empty:
                heap.trim()

    def _empty(self, pool: Pool) -> bool:
        """Destroy what *pool* has; whether there was anything."""
        had_any = False
        while True:
            owner = Allocation(self.buffers, [])
            if not pool.take_any(owner.resource):
                break
            had_any, owner.resource[0].key = True, None
        pool.reset()
        return had_any

    def _end_kernel(self, kernel: KernelObjects) -> bool:
        """Destroy what a kernel had, if its work is done."""
        queue = self.queue
        if queue.alive:
            try:
                if not queue.done(kernel.last_use):
                    return False
            except DeviceMemoryError:
                return False  # it may be in use still
            except DeviceError:
                pass  # a lost device has no work left
            kernel.destroy()
        return True

    # --- All of it ---

    def make_room(self, heaps: list[Heap]) -> bool:
        """Wait for what was freed and give all empty blocks back; False if there was nothing."""
        was_waiting = bool(self.buffers.ended)
        self.queue.finish()
        self.buffers.sweep()
        emptied = [self._empty(heap.pool) for heap in heaps]
        trimmed = [heap.trim(0) for heap in heaps]
        return was_waiting or any(emptied) or any(trimmed)

    def trim(self) -> None:
        """Give the driver all blocks of memory that nothing uses, the staging ring's too."""
        self.make_room([*self.heaps, self._staging])

    def close(self) -> None:
        """Wait for the device, destroy what is ours in it, and the device if it is ours.

        No tensor may be left on it.
        """
        self.queue.finish()
        self.buffers.sweep()
        for pool in (self.pool, self._slots):
            self._empty(pool)
        self.queue.alive = False
        self.queue.finish()
        for kernel in self.kernels.all():
            kernel.destroy()
        for lease in self.buffers.all():
            for buffer in lease.copy():
                self._destroy(buffer)
        for heap in (*self.heaps, self._staging):
            heap.blocks.clear()
        for memory in self.memories.all():
            memory.free()
        self.objects.destroy()

    @property
    def allocations(self) -> int:
        """The VkDeviceMemory objects that this package has in the device."""
        return sum(memory.is_ours for memory in self.memories.all())

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
        probe = self.objects.cell("Buffer", self.pointer)  # it stays, without memory
        return int(create_buffer(self.pointer, 4, probe, self._chain).memoryTypeBits)

    def _function(self, name: str) -> Any:
        """A device function of an extension; None if the driver does not have it."""
        function = self.lib.vkGetDeviceProcAddr(self.pointer, name.encode())
        return ffi.cast(f"PFN_{name}", function) if function else None
