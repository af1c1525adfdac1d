"""Memory of a device: few VkDeviceMemory blocks, shared out to many VkBuffers.

Drivers allow few allocations (4096 is common), so buffers are bound at offsets
inside large blocks. Each tensor still has a VkBuffer of its own, bound at one
offset and beginning at its byte 0, as TVM's convention wants it. Small ones that
nobody uses any more are kept as they are, in a pool.

No lock guards the ranges of a block: they are replaced as a whole, if they are still those that
the change was made for. Between that comparison and the assignment there is no call, and so no
other thread, finalizer or signal handler.
"""

from __future__ import annotations

import bisect
import os
from contextlib import suppress
from functools import lru_cache
from typing import Any

from dlbridge.errors import DeviceMemoryError
from dlbridge.kit.resources import Owner, Resources, call

from .instance import MemoryType
from .library import check, constant, ffi, load, struct
from .queue import Queue

BLOCK = 64 << 20
"""Bytes of a block. Larger buffers get one of their own size."""

POOLED = 1 << 20
"""Bytes of the largest buffer that is kept in a pool."""

IN_SLICES = "move a large tensor in slices, each a tensor of its own"

USAGE = (
    constant("VK_BUFFER_USAGE_TRANSFER_SRC_BIT")
    | constant("VK_BUFFER_USAGE_TRANSFER_DST_BIT")
    | constant("VK_BUFFER_USAGE_STORAGE_BUFFER_BIT")
)

# One VkDeviceMemory -----------------------------------------------------------------


class DeviceMemory:
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


class Block(Owner[DeviceMemory]):
    """A VkDeviceMemory and its free ranges, sorted and never adjacent.

    It goes back to the driver when neither its heap nor a buffer has it.
    """

    __slots__ = ("free", "mapped", "size")

    def __init__(self, memories: Resources[DeviceMemory], given: DeviceMemory, size: int) -> None:
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
        """``(waste, start)`` of the best range for *size* bytes, or None.

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

    def take(self, buffer: Buffer, start: int, size: int) -> bool:
        """Let *buffer* have *size* bytes from *start* on; False if they are not free."""
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
        buffer.block = self
        buffer.start, buffer.end = start, end
        return True

    def put_back(self, buffer: Buffer) -> None:
        """Take the bytes of *buffer* back, joined with their free neighbours."""
        while buffer.block is self:
            free, start, end = self.free, buffer.start, buffer.end
            first = last = bisect.bisect_left(free, (start, end))
            if first and free[first - 1][1] == start:
                first, start = first - 1, free[first - 1][0]
            if last < len(free) and free[last][0] == end:
                last, end = last + 1, free[last][1]
            joined = [*free[:first], (start, end), *free[last:]]
            if self.free is free:
                self.free, buffer.block = joined, None

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

    def __init__(
        self, device: Any, kind: MemoryType, handle_types: int, keep: int, pool: Pool
    ) -> None:
        self.kind = kind
        self.pool = pool
        """Where its small buffers go when nobody has them."""
        self.blocks: list[Block] = []
        self._device = device
        self._handle_types = handle_types
        """As what its memory can be exported (VkExternalMemoryHandleTypeFlags); 0: not at all."""
        self._limit = min(device.physical.limits["max_allocation"], kind.size)
        self._block = min(BLOCK, max(1 << 20, kind.size // 8))
        self._keep = keep

    def take(self, buffer: Buffer, size: int, alignment: int, step: int) -> None:
        """Let *buffer* have *size* bytes at a multiple of *alignment*; else DeviceMemoryError."""
        while True:
            best: tuple[int, int] | None = None
            tightest = None
            for block in self.blocks:
                fit = block.fit(size, alignment, step)
                if fit is not None and (best is None or fit[0] < best[0]):
                    best, tightest = fit, block
            if tightest is None or best is None:
                # A block's own address may be less aligned than the buffer wants.
                self._grow(size + (alignment if alignment > step else 0), buffer, alignment, step)
                return
            if tightest.take(buffer, best[1], size):
                return

    def _grow(self, need: int, buffer: Buffer, alignment: int, step: int) -> None:
        """A new block for *need* bytes, and the first of them for *buffer*."""
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
        block.take(buffer, fit[1], size)
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
        block = Block(device.memories, DeviceMemory(device.pointer), size)
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

Key = tuple[int, int]
"""Of what a pool has: the bytes that there is room for, and their alignment."""


class Buffer:
    """A VkBuffer that tensors may lie in, with its memory; somebody has it, or a pool.

    Whoever looks it up by its ``data`` gets this, and not the owner: so its end is where the owner
    is dropped, also while a call, or the traceback of an exception, still has this.
    """

    def __init__(self, device: Any, is_foreign: bool) -> None:
        self.device = device
        """The `device.Device` that has made it."""
        self.queue: Queue = device.queue
        self.cell = ffi.new("VkBuffer[1]")
        """The VkBuffer that is ours to destroy; 0 if there is none."""
        self.buffer = 0
        """The VkBuffer."""
        self.descriptor = ffi.new("DlbridgeVulkanBuffer *")
        """What the ``data`` of tensors points to: no other buffer has it until this is back."""
        self.is_foreign = is_foreign
        """Whether the memory is somebody else's, so that the end waits."""
        self.is_marked = False
        """Whether `last_use` covers what others have submitted."""
        self.key: Key | None = None
        """Where a pool keeps it; None if no pool does."""
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


class Allocation(Owner[list[Buffer]]):
    """The owner of a buffer, which its resource names; for dlbridge's contract.

    *keeps* is somebody else's object, which is needed as long.
    """

    __slots__ = ("data", "keeps", "nbytes", "offset", "stream")

    data: int
    nbytes: int
    offset: int
    stream: int
    keeps: object


@lru_cache(maxsize=1024)
def room_for(nbytes: int) -> int:
    """The bytes of a small buffer for *nbytes*: few sizes, a quarter more at most."""
    step = 1 << max(nbytes.bit_length() - 3, 8)
    return -(-nbytes // step) * step


class Pool:
    """Buffers that nobody has and no work uses, up to *limit* bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = self._spare = limit
        self._idle: dict[Key, list[Buffer]] = {}

    def take(self, key: Key, lease: list[Buffer]) -> bool:
        """Put a buffer of *key* into *lease*, in one step of C; False if there is none."""
        try:
            lease.extend(map(self._idle[key].pop, _LAST))
        except LookupError:  # or another thread was faster
            return False
        self._spare += key[0]
        return True

    def put(self, lease: list[Buffer]) -> bool:
        """Keep the buffer of *lease*, which loses it; False if it is not for a pool, or no room."""
        buffer = lease[0]
        key = buffer.key
        if key is None or key[0] > self._spare:
            return False
        try:
            append = self._idle[key].append
        except KeyError:
            append = self._idle.setdefault(key, []).append
        # Python runs no signal handler between these lines.
        self._spare -= key[0]
        del lease[:]
        append(buffer)
        return True

    def take_any(self, lease: list[Buffer]) -> bool:
        """Put any buffer into *lease*; False if there is none."""
        return any(self.take(key, lease) for key in list(self._idle))

    def reset(self) -> None:
        """Count from the beginning, when it is empty: a signal may have come before a count."""
        self._spare = self._limit


_LAST = (-1,)


def external(handle_types: int) -> Any:
    """What is chained to a buffer in memory that can be exported so; NULL for 0."""
    if not handle_types:
        return ffi.NULL
    return struct("VkExternalMemoryBufferCreateInfo", handleTypes=handle_types)


def create_buffer(device: Any, nbytes: int, cell: Any, chain: Any = ffi.NULL) -> Any:
    """Make a VkBuffer into *cell*; what it needs of memory (VkMemoryRequirements).

    Its own size is rounded up to 4 bytes, which vkCmdFillBuffer and 32-bit
    shaders count in.
    """
    info = struct("VkBufferCreateInfo", pNext=chain, size=-(-nbytes // 4) * 4, usage=USAGE)
    result = load().vkCreateBuffer(device, info, ffi.NULL, cell)
    if result < 0:
        cell[0] = 0  # what a failed call leaves there is not defined
        check(result, f"vkCreateBuffer of {nbytes} bytes")
    needs = ffi.new("VkMemoryRequirements *")
    load().vkGetBufferMemoryRequirements(device, cell[0], needs)
    return needs
