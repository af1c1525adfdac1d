"""Device memory: few VkDeviceMemory blocks, shared out to many VkBuffers.

Drivers allow few allocations (4096 is common), so buffers are bound at offsets
inside large blocks. Each tensor still has a VkBuffer of its own, bound at one
place and beginning at its byte 0, as TVM's convention wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from dlbridge.errors import DeviceError, DeviceMemoryError
from dlbridge.kit.limits import pool_limit
from dlbridge.kit.resources import Resources

from .blocks import Block
from .errors import check
from .library import constant, ffi, load, struct
from .locks import holds, package_lock
from .memory_types import MemoryType
from .queue import Queue

__all__ = ["IN_SLICES", "USAGE", "Allocation", "Heap", "Place", "create_buffer", "external"]

BLOCK = 64 << 20
"""Bytes of a block. Larger buffers get one of their own size."""

IN_SLICES = "move a large tensor in slices, each a tensor of its own"

KEEP = 256 << 20
"""Bytes of empty blocks that are kept unless the user sets a limit, because fresh memory costs
page faults (measured: they halve the speed of the first copy)."""

USAGE = (
    constant("VK_BUFFER_USAGE_TRANSFER_SRC_BIT")
    | constant("VK_BUFFER_USAGE_TRANSFER_DST_BIT")
    | constant("VK_BUFFER_USAGE_STORAGE_BUFFER_BIT")
)


# Looking a type up by name costs as much as to make one.
_CELL = ffi.typeof("VkBuffer[1]")
_INFO = ffi.typeof("VkBufferCreateInfo *")
_INFO_TYPE = constant("VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO")
_NEEDS = ffi.typeof("VkMemoryRequirements *")


_is_ready = attrgetter("ready")


class Place:
    """The parts that an allocation owns: a VkBuffer, and a range of a block."""

    __slots__ = ("block", "cell", "end", "last_use", "start")

    def __init__(self) -> None:
        self.cell = ffi.new(_CELL)
        self.block: Block | None = None
        self.start = 0
        self.end = 0
        self.last_use: int | None = None
        """The queue's value after which nothing uses it, if that is known when it is freed."""


class Allocation:
    """One VkBuffer and the memory behind it.

    It is made empty; `Heap.allocate` makes the buffer into its `place`, which goes back when the
    allocation is released or dropped.
    """

    __slots__ = (
        "__weakref__",
        "_life",
        "buffer",
        "cached",
        "heap",
        "last_use",
        "mapped",
        "memory",
        "nbytes",
        "place",
        "queue",
    )

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.heap: Heap | None = None
        self.place = Place()
        self._life: object = None
        """While it has this, the place is its own (`Resources.enter`)."""
        self.buffer = 0
        self.memory = 0
        self.nbytes = 0
        self.mapped = 0
        """Host address of its first byte; 0 if the host cannot address it."""
        self.cached = False
        """Whether the host reads it at full speed."""
        self.last_use = 0
        """The queue's value after which nothing uses it."""

    def enter(self, heap: Heap) -> None:
        """Belong to *heap* from now on."""
        self.heap, self.place = heap, Place()
        self._life = heap.resources.enter(self.place)

    def settle(self) -> None:
        """Block until no work uses it, so that the host may touch it."""
        queue = self.queue
        if queue.shared:
            queue.finish()
        elif self.last_use > queue.reached:
            queue.wait(self.last_use)

    def release(self) -> None:
        """Give it back once no work uses it; does not block. Harmless when repeated.

        Where others may submit to the queue, their work that is on it now counts as well.
        """
        if not self.queue.shared:
            self.place.last_use = self.last_use
        self._life = None
        if self.heap is not None:
            self.heap.collect()

    @property
    def start(self) -> int:
        """Where the buffer is bound in the memory."""
        return self.place.start

    @property
    def end(self) -> int:
        """Where its range of the memory ends."""
        return self.place.end

    @property
    def words(self) -> int:
        """Bytes of the buffer that shaders may see: our own are whole 32-bit words."""
        return -(-self.nbytes // 4) * 4


class Heap:
    """All blocks of one memory type of one device. Safe from any thread and any finalizer."""

    def __init__(
        self,
        device: Any,
        name: str,
        limits: Mapping[str, Any],
        queue: Queue,
        kind: MemoryType,
        allocations: Callable[[], int],
        handle_types: int = 0,
    ) -> None:
        self.kind = kind
        self._handle_types = handle_types
        """As what its memory can be exported (VkExternalMemoryHandleTypeFlags); 0: not at all."""
        self._chain = external(handle_types)
        self._device = device
        self._lib = load()
        self._name = name
        self._allocations = allocations
        """The VkDeviceMemory objects of the device, of all heaps and imports."""
        self._most = limits["max_allocations"]
        self._limit = min(limits["max_allocation"], kind.size)
        self._queue = queue
        self._block = min(BLOCK, max(1 << 20, kind.size // 8))
        self._keep = pool_limit(KEEP)
        self._lock = package_lock()
        self._busy = False
        """Whether the blocks are being changed, by the thread that holds the lock."""
        self._blocks: list[Block] = []
        self.resources: Resources[Place] = Resources(self._give_back)

    def allocate(self, into: Allocation, nbytes: int, alignment: int) -> None:
        """Make *into* a new buffer of *nbytes* bytes.

        *alignment* (bytes, a power of two) holds for the host's address, or
        for the place in the block where there is none. DeviceMemoryError if
        there is no room even after what is still in use by the queue was freed.
        """
        self.collect()
        into.enter(self)
        into.nbytes = nbytes
        place = into.place
        size, step = create_buffer(self._device, nbytes, place.cell, self._chain)
        alignment = max(alignment, step)
        try:
            self._place(place, size, alignment, step)
        except DeviceMemoryError:
            if not self.make_room():
                raise
            self._place(place, size, alignment, step)
        block = place.block
        assert block is not None  # placed above
        into.buffer, into.memory = place.cell[0], block.memory
        into.mapped = block.mapped and block.mapped + into.start
        into.cached = self.kind.cached
        check(
            self._lib.vkBindBufferMemory(self._device, into.buffer, into.memory, into.start),
            "vkBindBufferMemory",
        )

    def collect(self) -> None:
        """Take back what was freed and is no longer in use."""
        self.resources.sweep()

    def _give_back(self, place: Place) -> bool:
        """Take *place* back if the queue is done with it. Waits for no device.

        May run in a finalizer, and so in the middle of any other call of the same thread: not
        while that changes the blocks.
        """
        queue = self._queue
        if not queue.alive:
            return True
        if holds(self._lock):
            return False
        try:
            if place.last_use is None:
                place.last_use = queue.mark()
            if not queue.done(place.last_use):
                return False
        except (DeviceError, DeviceMemoryError):
            return False
        with self._lock:
            self._changing(self._destroy, place)
        return True

    def close(self) -> None:
        """Give everything back to the driver; nothing may be in use."""
        with self._lock:
            for place in self.resources.all():
                self._destroy(place)
            while self._blocks:
                self._blocks[-1].destroy()
                self._blocks.pop()

    @property
    def blocks(self) -> list[Block]:
        """The blocks now held, for tests and figures."""
        return list(self._blocks)

    def _changing(self, change: Callable[..., None], *arguments: Any) -> None:
        """Run *change*, which may change the blocks; the lock is held."""
        if self._busy:
            return
        self._busy = True
        try:
            change(*arguments)
        finally:
            self._busy = False

    def _sweep(self) -> None:
        """Give back blocks whose making was interrupted."""
        if all(map(_is_ready, self._blocks)):
            return
        for block in [block for block in self._blocks if not block.ready]:
            block.destroy()
            self._blocks.remove(block)

    def _destroy(self, place: Place) -> None:
        cell = place.cell
        if cell[0]:
            # Python runs no signal handler between these two lines.
            buffer, cell[0] = cell[0], 0
            self._lib.vkDestroyBuffer(self._device, buffer, ffi.NULL)
        block = place.block
        if block is None:
            return
        free = block.joined(place.start, place.end)
        block.free, place.block = free, None
        if block.empty:
            self._trim(self._keep)

    def _trim(self, keep: int) -> None:
        """Give empty blocks back to the driver until *keep* bytes of them are left."""
        empty = [block for block in self._blocks if block.empty]
        kept = sum(block.size for block in empty)
        for block in empty:
            if kept <= keep:
                break
            kept -= block.size
            block.destroy()
            self._blocks.remove(block)

    def make_room(self) -> bool:
        """Wait for what was freed and give all empty blocks back; False if there was nothing."""
        if not self.resources.waiting and not any(block.empty for block in self._blocks):
            return False
        self._queue.finish()
        self.collect()
        with self._lock:
            self._changing(self._trim, 0)
        return True

    def _place(self, into: Place, size: int, alignment: int, step: int) -> None:
        # A block's own address may be less aligned than the buffer wants.
        need = size + (alignment if alignment > step else 0)
        with self._lock:
            if self._busy:  # in a finalizer, in the middle of another change: a block of its own
                block = self._grow(need)
                self._take(into, block, size, block.fit(size, alignment, step))
            else:
                self._changing(self._find, into, size, alignment, step, need)

    def _find(self, into: Place, size: int, alignment: int, step: int, need: int) -> None:
        self._sweep()
        fits = [
            (fit[0], index, fit)
            for index, block in enumerate(self._blocks)
            if (fit := block.fit(size, alignment, step)) is not None
        ]
        if fits:
            _, index, fit = min(fits)
            self._take(into, self._blocks[index], size, fit)
            return
        try:
            block = self._grow(need if need > self._block // 2 else self._block)
        except DeviceMemoryError:
            if need > self._block // 2:
                raise
            block = self._grow(need)
        self._take(into, block, size, block.fit(size, alignment, step))

    def _take(self, into: Place, block: Block, size: int, fit: tuple[int, int] | None) -> None:
        assert fit is not None  # found or made large enough
        start, end = fit[1], fit[1] + size
        free = block.without(start, end)
        # One step: there is no call in between.
        block.free, into.block, into.start, into.end = free, block, start, end

    def _grow(self, size: int) -> Block:
        if size > self._limit:
            raise DeviceMemoryError(
                f"{self._name} gives at most {self._limit} bytes of this memory at once, and "
                f"{size} are needed with what the alignment may take; {IN_SLICES}"
            )
        if self._allocations() >= self._most:
            raise DeviceMemoryError(
                f"{self._most} blocks of memory are allocated, as many as {self._name} allows at "
                "once; free tensors first"
            )
        block = Block(self._device, size)
        self._blocks.append(block)
        try:
            block.allocate(self.kind, self._handle_types)
        except BaseException:
            block.destroy()
            self._blocks.remove(block)
            raise
        return block


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
