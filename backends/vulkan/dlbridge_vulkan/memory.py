"""Memory of a device: few VkDeviceMemory blocks, shared out to many VkBuffers.

Drivers allow few allocations (4096 is common), so buffers are bound at offsets
inside large blocks. Each tensor still has a VkBuffer of its own, bound at one
place and beginning at its byte 0, as TVM's convention wants it.

No lock guards the ranges of a block: they are replaced as a whole, if they are still those that
the change was made for. Between that comparison and the assignment there is no call, and so no
other thread, finalizer or signal handler.
"""

from __future__ import annotations

import bisect
import os
from contextlib import suppress
from typing import Any

from dlbridge.errors import DeviceMemoryError
from dlbridge.kit.limits import pool_limit
from dlbridge.kit.resources import AllocationOwner, Owner, Resources, call

from .instance import MemoryType
from .library import check, constant, ffi, load, struct
from .queue import Queue

__all__ = [
    "IN_SLICES",
    "MAGIC",
    "USAGE",
    "Block",
    "Buffer",
    "BufferOwner",
    "Given",
    "Heap",
    "create_buffer",
    "external",
]

BLOCK = 64 << 20
"""Bytes of a block. Larger buffers get one of their own size."""

IN_SLICES = "move a large tensor in slices, each a tensor of its own"

KEEP = 256 << 20
"""Bytes of empty blocks that are kept unless the user sets a limit, because fresh memory costs
page faults (measured: they halve the speed of the first copy)."""

MAGIC = 0x6B56656764697262
"""The descriptor's magic: the bytes ``bridgeVk``."""

USAGE = (
    constant("VK_BUFFER_USAGE_TRANSFER_SRC_BIT")
    | constant("VK_BUFFER_USAGE_TRANSFER_DST_BIT")
    | constant("VK_BUFFER_USAGE_STORAGE_BUFFER_BIT")
)

# Looking a type up by name costs as much as to make one.
_CELL = ffi.typeof("VkBuffer[1]")
_DESCRIPTOR = ffi.typeof("DlbridgeVulkanBuffer *")
_INFO = ffi.typeof("VkBufferCreateInfo *")
_INFO_TYPE = constant("VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO")
_NEEDS = ffi.typeof("VkMemoryRequirements *")
_NUMBER = ffi.typeof("uintptr_t")


# One VkDeviceMemory -----------------------------------------------------------------


class Given:
    """A VkDeviceMemory, or what there is of one: the resource of a `Block`."""

    __slots__ = ("cell", "codes", "device", "file", "original")

    def __init__(self, device: Any) -> None:
        self.device = device
        self.cell = ffi.new("VkDeviceMemory[1]")
        self.codes: list[int] = []
        """What the driver said: a failed call may leave anything in the cell."""
        self.file: list[int] = []
        """A file descriptor that the driver takes over if it says 0."""
        self.original = -1
        """What it is a duplicate of."""

    @property
    def is_ours(self) -> bool:
        """Whether there is memory, which is to be given back."""
        return self.codes[-1:] == [0] and bool(self.cell[0])

    def close_file(self) -> None:
        """Close what the driver has not taken over."""
        if self.file and self.codes[-1:] != [0]:
            # Vulkan leaves it to the caller then; lavapipe (Mesa 22.3) closes it all the same.
            with suppress(OSError):
                if os.path.sameopenfile(self.file[0], self.original):
                    list(map(os.close, map(self.file.pop, [0])))  # one step: it is closed once
            self.file.clear()

    def free(self) -> bool:
        """Give the memory back to the driver; nothing may be using it."""
        free = load().vkFreeMemory
        if self.is_ours:
            # Python runs no signal handler between these two lines.
            memory, self.cell[0] = self.cell[0], 0
            free(self.device, memory, ffi.NULL)
        self.close_file()
        return True


Ranges = list[tuple[int, int]]


class Block(Owner[Given]):
    """A VkDeviceMemory and its free ranges, sorted and never adjacent.

    It goes back to the driver when neither its heap nor a buffer has it.
    """

    __slots__ = ("free", "mapped", "size")

    def __init__(self, memories: Resources[Given], given: Given, size: int) -> None:
        super().__init__(memories, given)
        self.size = size
        self.free: Ranges = []
        self.mapped = 0
        """Host address of its first byte; 0 if the host cannot address it."""

    def allocate(self, kind: int, chain: Any, what: str = "") -> None:
        """Get the memory, of type *kind*, from the driver; *chain* is the rest of its info."""
        given = self.resource
        info = struct(
            "VkMemoryAllocateInfo", pNext=chain, allocationSize=self.size, memoryTypeIndex=kind
        )
        code = call(given.codes, load().vkAllocateMemory, given.device, info, ffi.NULL, given.cell)
        given.close_file()
        what = what or f"{self.size} bytes of memory type {kind}"
        check(code, f"vkAllocateMemory of {what}")

    def map(self) -> None:
        """Let the host address it, for its whole life."""
        address = ffi.new("void **")
        function, device = load().vkMapMemory, self.resource.device
        check(function(device, self.memory, 0, self.size, 0, address), "vkMapMemory")
        self.mapped = int(ffi.cast("uintptr_t", address[0]))

    @property
    def memory(self) -> int:
        """The VkDeviceMemory."""
        return int(self.resource.cell[0])

    def fit(self, size: int, alignment: int, step: int) -> tuple[int, int] | None:
        """``(waste, start)`` of the best place for *size* bytes, or None.

        *alignment* is honoured for the host's address where there is one (as
        long as the block's own address is a multiple of *step*, what Vulkan wants).
        """
        origin = self.mapped if self.mapped % step == 0 else 0
        best = None
        for low, high in self.free:
            start = -(-(origin + low) // alignment) * alignment - origin
            if start + size <= high and (best is None or high - low - size < best[0]):
                best = (high - low - size, start)
        return best

    def take(self, place: Buffer, start: int, size: int) -> bool:
        """Let *place* have *size* bytes from *start* on; False if they are not free."""
        free, end = self.free, start + size
        index = bisect.bisect_right(free, (start, self.size + 1)) - 1
        if index < 0 or free[index][1] < end:
            return False
        low, high = free[index]
        left = [part for part in ((low, start), (end, high)) if part[0] < part[1]]
        left = [*free[:index], *left, *free[index + 1 :]]
        if self.free is not free:
            return False
        # No tuple of them all: CPython 3.11 may run finalizers where it makes one.
        self.free = left
        place.block = self
        place.start, place.end = start, end
        return True

    def put_back(self, place: Buffer) -> None:
        """Take the bytes of *place* back, joined with their free neighbours."""
        while place.block is self:
            free, start, end = self.free, place.start, place.end
            first = last = bisect.bisect_left(free, (start, end))
            if first and free[first - 1][1] == start:
                first, start = first - 1, free[first - 1][0]
            if last < len(free) and free[last][0] == end:
                last, end = last + 1, free[last][1]
            joined = [*free[:first], (start, end), *free[last:]]
            if self.free is free:
                self.free, place.block = joined, None

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it is in use."""
        return self.free == [(0, self.size)]

    def retire(self) -> bool:
        """Let nobody take any of it; False if it is in use."""
        free = self.free
        if free != [(0, self.size)] or self.free is not free:
            return False
        self.free = []
        return True


class Heap:
    """All blocks of one memory type of one device."""

    def __init__(self, device: Any, kind: MemoryType, handle_types: int = 0) -> None:
        self.kind = kind
        self.blocks: list[Block] = []
        self._device = device
        self._handle_types = handle_types
        """As what its memory can be exported (VkExternalMemoryHandleTypeFlags); 0: not at all."""
        self._limit = min(device.physical.limits["max_allocation"], kind.size)
        self._block = min(BLOCK, max(1 << 20, kind.size // 8))
        self._keep = pool_limit(KEEP)

    def place(self, place: Buffer, size: int, alignment: int, step: int) -> None:
        """Let *place* have *size* bytes at a multiple of *alignment*; DeviceMemoryError if full."""
        while True:
            best: tuple[int, int] | None = None
            found = None
            for block in self.blocks:
                fit = block.fit(size, alignment, step)
                if fit is not None and (best is None or fit[0] < best[0]):
                    best, found = fit, block
            if found is None or best is None:
                # A block's own address may be less aligned than the buffer wants.
                self._grow(size + (alignment if alignment > step else 0), place, alignment, step)
                return
            if found.take(place, best[1], size):
                return

    def _grow(self, need: int, place: Buffer, alignment: int, step: int) -> None:
        """A new block for *need* bytes, and the first of them for *place*."""
        large = need > self._block // 2
        try:
            block = self._new(need if large else self._block)
        except DeviceMemoryError:
            if large:
                raise
            block = self._new(need)
        size = need - (alignment if alignment > step else 0)
        fit = block.fit(size, alignment, step)
        assert fit is not None  # it was made large enough
        block.take(place, fit[1], size)
        self.blocks.append(block)  # others see it only now

    def _new(self, size: int) -> Block:
        device = self._device
        if size > self._limit:
            raise DeviceMemoryError(
                f"{device.physical.name} gives at most {self._limit} bytes of this memory at once, "
                f"and {size} are needed with what the alignment may take; {IN_SLICES}"
            )
        if device.is_full:
            raise DeviceMemoryError(
                f"{device.most_allocations} blocks of memory are allocated, as many as "
                f"{device.physical.name} allows at once; free tensors first"
            )
        block = Block(device.memories, Given(device.pointer), size)
        chain = ffi.NULL
        if self._handle_types:
            chain = struct("VkExportMemoryAllocateInfo", handleTypes=self._handle_types)
        block.allocate(self.kind.index, chain)
        if self.kind.mapped:
            block.map()
        block.free = [(0, size)]
        return block

    def trim(self, keep: int | None = None) -> bool:
        """Give empty blocks back until *keep* bytes of them are left; whether there were any."""
        empty = [block for block in self.blocks if block.is_empty]
        kept = sum(block.size for block in empty)
        for block in empty:
            if kept <= (self._keep if keep is None else keep):
                break
            kept -= block.size
            if block.retire():
                self.blocks.remove(block)
                block.resource.free()  # now: the traceback of an exception may keep it
        return bool(empty)


# Buffers ----------------------------------------------------------------------------


class Buffer:
    """A VkBuffer that tensors may lie in: what its owner gives back.

    Whoever looks it up by its ``data`` gets this, and not the owner: so its end is where the owner
    is dropped, also while a call, or the traceback of an exception, still has this.
    """

    __slots__ = (
        "block",
        "cached",
        "cell",
        "data",
        "descriptor",
        "device",
        "end",
        "heap",
        "is_foreign",
        "is_marked",
        "last_use",
        "mapped",
        "memory",
        "nbytes",
        "queue",
        "size",
        "start",
        "stream",
    )

    def __init__(self, device: Any, queue: Queue, is_foreign: bool) -> None:
        self.device = device
        """The `device.Device` that has made it."""
        self.queue = queue
        self.cell = ffi.new(_CELL)
        """The VkBuffer that is ours to destroy; 0 if there is none."""
        self.descriptor = ffi.new(_DESCRIPTOR)
        """What the ``data`` of tensors points to: no other buffer has it until this is back."""
        self.stream = queue.number
        self.is_foreign = is_foreign
        """Whether the memory is somebody else's, so that the end waits."""
        self.is_marked = False
        """Whether `last_use` covers what others have submitted."""
        self.heap: Heap | None = None
        self.block: Block | None = None
        self.start = 0
        """Where the buffer is bound in the memory."""
        self.end = 0
        self.last_use = 0
        """The queue's value after which nothing uses it."""
        self.data = self.nbytes = self.memory = 0
        self.mapped = 0
        """Host address of its first byte; 0 if the host cannot address it."""
        self.cached = False
        """Whether the host reads it at full speed."""
        self.size = 0
        """Bytes of its memory, where that is its own; else 0."""

    @property
    def buffer(self) -> int:
        """The VkBuffer."""
        return int(self.descriptor.buffer)

    @property
    def words(self) -> int:
        """Bytes of the buffer that shaders may see: our own are whole 32-bit words."""
        return self.nbytes if self.is_foreign else -(-self.nbytes // 4) * 4

    def settle(self) -> None:
        """Block until no work uses it, so that the host may touch it."""
        queue = self.queue
        if queue.shared:
            queue.finish()
        elif self.last_use > queue.reached:
            queue.wait(self.last_use)


class BufferOwner(AllocationOwner[Buffer]):
    """What a caller gets for a `Buffer`; *keeps* is somebody else's object, needed as long."""

    __slots__ = ("keeps",)

    keeps: object


def external(handle_types: int) -> Any:
    """What is chained to a buffer in memory that can be exported so; NULL for 0."""
    if not handle_types:
        return ffi.NULL
    return struct("VkExternalMemoryBufferCreateInfo", handleTypes=handle_types)


def create_buffer(device: Any, nbytes: int, cell: Any, chain: Any = ffi.NULL) -> tuple[int, int]:
    """Make a VkBuffer into *cell*, if it has none; the size and alignment of memory that it needs.

    Its own size is rounded up to 4 bytes, which vkCmdFillBuffer and 32-bit
    shaders count in.
    """
    lib = load()
    if not cell[0]:
        info = ffi.new(_INFO)
        info.sType, info.pNext = _INFO_TYPE, chain
        info.size, info.usage = -(-nbytes // 4) * 4, USAGE
        result = lib.vkCreateBuffer(device, info, ffi.NULL, cell)
        if result < 0:
            cell[0] = 0  # what a failed call leaves there is not defined
            check(result, f"vkCreateBuffer of {nbytes} bytes")
    needs = ffi.new(_NEEDS)
    lib.vkGetBufferMemoryRequirements(device, cell[0], needs)
    return needs.size, needs.alignment
