"""One VkDeviceMemory, and which ranges of it are free."""

from __future__ import annotations

import bisect
from typing import Any

from .errors import check
from .library import ffi, load, struct
from .memory_types import MemoryType

__all__ = ["Block"]

Ranges = list[tuple[int, int]]


class Block:
    """A VkDeviceMemory and its free ranges, sorted and never adjacent.

    `free` is only ever replaced as a whole, so that an interrupted change is
    either done or not.
    """

    __slots__ = ("_cell", "_device", "free", "mapped", "ready", "size")

    def __init__(self, device: Any, size: int, mapped: int = 0) -> None:
        self._device = device
        self._cell = ffi.new("VkDeviceMemory[1]")
        self.size = size
        self.mapped = mapped
        """Host address of its first byte; 0 if the host cannot address it."""
        self.free: Ranges = []
        self.ready = False
        """Whether it has its memory."""

    def allocate(self, kind: MemoryType, handle_types: int = 0) -> None:
        """Get the memory from the driver, and map it for its whole life if it can be.

        *handle_types* says as what it can be exported; 0: not at all.
        """
        lib = load()
        chain = struct("VkExportMemoryAllocateInfo", handleTypes=handle_types)
        info = struct(
            "VkMemoryAllocateInfo",
            pNext=chain if handle_types else ffi.NULL,
            allocationSize=self.size,
            memoryTypeIndex=kind.index,
        )
        result = lib.vkAllocateMemory(self._device, info, ffi.NULL, self._cell)
        if result < 0:
            self._cell[0] = 0  # what a failed call leaves there is not defined
        check(result, f"vkAllocateMemory of {self.size} bytes of memory type {kind.index}")
        if kind.mapped:
            address = ffi.new("void **")
            check(
                lib.vkMapMemory(self._device, self._cell[0], 0, self.size, 0, address),
                "vkMapMemory",
            )
            self.mapped = int(ffi.cast("uintptr_t", address[0]))
        self.free = [(0, self.size)]
        self.ready = True

    def destroy(self) -> None:
        """Give the memory back to the driver; nothing may be using it."""
        if self._cell[0]:
            # Python runs no signal handler between these two lines.
            memory, self._cell[0] = self._cell[0], 0
            load().vkFreeMemory(self._device, memory, ffi.NULL)

    @property
    def memory(self) -> int:
        """The VkDeviceMemory."""
        return int(self._cell[0])

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

    def without(self, start: int, end: int) -> Ranges:
        """The free ranges when ``start:end``, which lies in one of them, is taken."""
        index = bisect.bisect_right(self.free, (start, self.size + 1)) - 1
        low, high = self.free[index]
        left = [part for part in ((low, start), (end, high)) if part[0] < part[1]]
        return [*self.free[:index], *left, *self.free[index + 1 :]]

    def joined(self, start: int, end: int) -> Ranges:
        """The free ranges when ``start:end`` is given back, joined with its neighbours."""
        index = bisect.bisect_left(self.free, (start, end))
        first = last = index
        if index and self.free[index - 1][1] == start:
            first, start = index - 1, self.free[index - 1][0]
        if index < len(self.free) and self.free[index][0] == end:
            last, end = index + 1, self.free[index][1]
        return [*self.free[:first], (start, end), *self.free[last:]]

    @property
    def empty(self) -> bool:
        """Whether nothing of it is in use."""
        return self.ready and self.free == [(0, self.size)]
