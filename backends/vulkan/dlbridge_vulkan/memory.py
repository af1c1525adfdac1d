"""Device memory: few VkDeviceMemory blocks, shared out to many VkBuffers.

Drivers allow few allocations (4096 is common), so buffers are bound at offsets
inside large blocks. Each tensor still has a VkBuffer of its own, bound at one
place and beginning at its byte 0, as TVM's convention wants it.
"""

from __future__ import annotations

import bisect
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from dlbridge.errors import DeviceMemoryError

from .errors import check
from .library import constant, ffi, load, struct

if TYPE_CHECKING:
    from .device import Device
    from .memory_types import MemoryType

__all__ = ["USAGE", "Allocation", "Block", "Heap", "create_buffer"]

BLOCK = 64 << 20
"""Bytes of a block. Larger buffers get one of their own size."""

KEEP = 256 << 20
"""Bytes of empty blocks that are kept, because fresh memory costs page faults
(measured: they halve the speed of the first copy)."""

USAGE = (
    constant("VK_BUFFER_USAGE_TRANSFER_SRC_BIT")
    | constant("VK_BUFFER_USAGE_TRANSFER_DST_BIT")
    | constant("VK_BUFFER_USAGE_STORAGE_BUFFER_BIT")
)


class Block:
    """One VkDeviceMemory and its free ranges, sorted and never adjacent."""

    __slots__ = ("free", "mapped", "memory", "size")

    def __init__(self, memory: int, size: int, mapped: int) -> None:
        self.memory = memory
        self.size = size
        self.mapped = mapped
        self.free = [(0, size)]

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

    def take(self, start: int, end: int) -> None:
        """Cut ``start:end`` out of the free range that holds it."""
        index = bisect.bisect_right(self.free, (start, self.size + 1)) - 1
        low, high = self.free[index]
        self.free[index : index + 1] = [
            part for part in ((low, start), (end, high)) if part[0] < part[1]
        ]

    def give(self, start: int, end: int) -> None:
        """Make ``start:end`` free again, joined with its neighbours."""
        index = bisect.bisect_left(self.free, (start, end))
        first = last = index
        if index and self.free[index - 1][1] == start:
            first, start = index - 1, self.free[index - 1][0]
        if index < len(self.free) and self.free[index][0] == end:
            last, end = index + 1, self.free[index][1]
        self.free[first:last] = [(start, end)]

    @property
    def empty(self) -> bool:
        """Whether nothing of it is in use."""
        return self.free == [(0, self.size)]


class Allocation:
    """One VkBuffer with memory behind it, and the descriptor that is its ``data``."""

    __slots__ = (
        "block",
        "buffer",
        "cached",
        "data",
        "descriptor",
        "device",
        "end",
        "last_use",
        "mapped",
        "memory",
        "nbytes",
        "owned",
        "start",
    )

    def __init__(self, device: Device, buffer: int, memory: int, start: int, nbytes: int) -> None:
        self.device = device
        self.buffer = buffer
        self.memory = memory
        self.start = start
        self.nbytes = nbytes
        self.end = start + nbytes
        self.mapped = 0
        """Host address of its first byte; 0 if the host cannot address it."""
        self.cached = False
        """Whether the host reads it at full speed."""
        self.last_use = 0
        """The queue's value after which nothing uses it."""
        self.block: Block | None = None
        """What it is a part of; None for imported memory, and for a foreign buffer."""
        self.owned = True
        """Whether buffer and memory are ours to destroy."""
        self.descriptor: Any = None
        self.data = 0

    def settle(self) -> None:
        """Block until no work uses it, so that the host may touch it."""
        queue = self.device.queue
        if queue.shared:
            queue.finish()
        elif self.last_use > queue.reached:
            queue.wait(self.last_use)

    @property
    def words(self) -> int:
        """Bytes of the buffer that shaders may see: our own are whole 32-bit words."""
        return -(-self.nbytes // 4) * 4 if self.owned else self.nbytes


class Heap:
    """All blocks of one memory type of one device. Safe from any thread."""

    def __init__(self, device: Device, kind: MemoryType) -> None:
        self._device = device
        self._lib = device.lib
        self._kind = kind
        self._limit = device.physical.limits["max_allocation"]
        room = device.physical.memory_types[kind.index][2]
        self._block = min(BLOCK, max(1 << 20, room // 8))
        self._lock = threading.Lock()
        self._blocks: list[Block] = []
        self._pending: deque[Allocation] = deque()

    def allocate(self, nbytes: int, alignment: int) -> Allocation:
        """A new buffer of *nbytes* bytes.

        *alignment* (bytes, a power of two) holds for the host's address, or
        for the place in the block where there is none. DeviceMemoryError if
        there is no room even after what is still in use by the queue was freed.
        """
        self._refuse_beyond(nbytes)
        with self._lock:
            self._collect()
            buffer, size, step = create_buffer(self._device.pointer, nbytes)
            try:
                block, start = self._place(size, max(alignment, step), step)
                check(
                    self._lib.vkBindBufferMemory(self._device.pointer, buffer, block.memory, start),
                    "vkBindBufferMemory",
                )
                block.take(start, start + size)
            except BaseException:
                self._lib.vkDestroyBuffer(self._device.pointer, buffer, ffi.NULL)
                raise
        found = Allocation(self._device, buffer, block.memory, start, nbytes)
        found.block = block
        found.end = start + size
        found.mapped = block.mapped and block.mapped + start
        found.cached = self._kind.cached
        return found

    def free(self, allocation: Allocation) -> None:
        """Give *allocation* back once the queue is done with it. Never blocks.

        May run in a finalizer, and so in the middle of `allocate` in the same
        thread: it then only notes it for the next call.
        """
        self._pending.append(allocation)
        if self._lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Give everything back to the driver; nothing may be in use."""
        with self._lock:
            while self._pending:
                self._destroy(self._pending.popleft())
            for block in self._blocks:
                self._lib.vkFreeMemory(self._device.pointer, block.memory, ffi.NULL)
            self._blocks.clear()

    @property
    def blocks(self) -> list[Block]:
        """The blocks now held, for tests and figures."""
        return list(self._blocks)

    def _collect(self) -> None:
        for _ in range(len(self._pending)):
            # Taken out when the answer is known: an error loses nothing.
            if self._device.queue.done(self._pending[0].last_use):
                self._destroy(self._pending.popleft())
            else:
                self._pending.rotate(-1)

    def _destroy(self, allocation: Allocation) -> None:
        self._lib.vkDestroyBuffer(self._device.pointer, allocation.buffer, ffi.NULL)
        block = allocation.block
        assert block is not None  # imported memory is not freed here
        block.give(allocation.start, allocation.end)
        if block.empty:
            self._trim(KEEP)

    def _trim(self, keep: int) -> None:
        """Give empty blocks back to the driver until *keep* bytes of them are left."""
        empty = [block for block in self._blocks if block.empty]
        kept = sum(block.size for block in empty)
        for block in empty:
            if kept <= keep:
                break
            kept -= block.size
            self._blocks.remove(block)
            self._lib.vkFreeMemory(self._device.pointer, block.memory, ffi.NULL)

    def _place(self, size: int, alignment: int, step: int) -> tuple[Block, int]:
        fits = [(block.fit(size, alignment, step), block) for block in self._blocks]
        found = [(fit, block) for fit, block in fits if fit is not None]
        if found:
            (_, start), block = min(found, key=lambda pair: pair[0])
            return block, start
        # A block's own address may be less aligned than the buffer wants.
        need = size + (alignment if alignment > step else 0)
        self._refuse_beyond(need)
        try:
            block = self._grow(need if need > self._block // 2 else self._block)
        except DeviceMemoryError:
            self._device.queue.finish()
            self._collect()
            self._trim(0)
            block = self._grow(need)
        fit = block.fit(size, alignment, step)
        assert fit is not None  # made large enough above
        return block, fit[1]

    def _refuse_beyond(self, nbytes: int) -> None:
        if nbytes > self._limit:
            raise DeviceMemoryError(
                f"{nbytes} bytes asked for; {self._device.physical.name} gives at most "
                f"{self._limit} at once"
            )

    def _grow(self, size: int) -> Block:
        info = struct("VkMemoryAllocateInfo", allocationSize=size, memoryTypeIndex=self._kind.index)
        memory = ffi.new("VkDeviceMemory *")
        check(
            self._lib.vkAllocateMemory(self._device.pointer, info, ffi.NULL, memory),
            f"vkAllocateMemory of {size} bytes",
        )
        address = ffi.new("void **")
        if self._kind.mapped:
            # Mapped once and for its whole life, as Vulkan allows.
            result = self._lib.vkMapMemory(self._device.pointer, memory[0], 0, size, 0, address)
            if result < 0:
                self._lib.vkFreeMemory(self._device.pointer, memory[0], ffi.NULL)
            check(result, "vkMapMemory")
        block = Block(memory[0], size, int(ffi.cast("uintptr_t", address[0])))
        self._blocks.append(block)
        return block


def create_buffer(device: Any, nbytes: int, chain: Any = ffi.NULL) -> tuple[int, int, int]:
    """A new VkBuffer with the size and the alignment that its memory must have.

    Its own size is rounded up to 4 bytes, which vkCmdFillBuffer and 32-bit
    shaders count in.
    """
    lib = load()
    buffer = ffi.new("VkBuffer *")
    info = struct("VkBufferCreateInfo", pNext=chain, size=-(-nbytes // 4) * 4, usage=USAGE)
    check(lib.vkCreateBuffer(device, info, ffi.NULL, buffer), f"vkCreateBuffer of {nbytes} bytes")
    needs = ffi.new("VkMemoryRequirements *")
    lib.vkGetBufferMemoryRequirements(device, buffer[0], needs)
    return buffer[0], needs.size, needs.alignment
