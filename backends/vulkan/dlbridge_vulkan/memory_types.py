"""Which memory type to take: for tensors, and for staging."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .library import constant

if TYPE_CHECKING:
    from .instance import PhysicalDevice

__all__ = ["COHERENT", "LOCAL", "MemoryType"]

LOCAL = constant("VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT")
COHERENT = constant("VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT") | constant(
    "VK_MEMORY_PROPERTY_HOST_COHERENT_BIT"
)
CACHED = constant("VK_MEMORY_PROPERTY_HOST_CACHED_BIT")


class MemoryType:
    """A memory type of a device, and what the host can do with it.

    Only coherent memory is ever mapped: every device has some for staging
    (Vulkan 1.3, "Device Memory"), and nothing need be flushed.
    """

    def __init__(self, index: int, flags: int) -> None:
        self.index = index
        self.mapped = flags & COHERENT == COHERENT
        self.cached = self.mapped and bool(flags & CACHED)

    @classmethod
    def for_tensors(cls, device: PhysicalDevice, bits: int, staged: bool) -> MemoryType:
        """Device-local memory, that the host can address too if there is enough of it.

        A discrete GPU's small window (256 MiB) is not: its host-visible heap
        must hold half of what the largest device-local heap does. With *staged*
        the memory is treated as if the host could not address it.
        """
        big = device.memory // 2
        rows = [row for row in enumerate(device.memory_types) if bits >> row[0] & 1]

        def rank(row: tuple[int, tuple[int, int, int]]) -> tuple[bool, bool, bool]:
            flags, _, size = row[1]
            mapped = flags & COHERENT == COHERENT and size >= big
            return bool(flags & LOCAL), mapped, mapped and bool(flags & CACHED)

        index, (flags, _, size) = max(rows, key=rank)  # the first of the best
        return cls(index, 0 if staged or size < big else flags)

    @classmethod
    def for_staging(cls, device: PhysicalDevice, bits: int) -> MemoryType:
        """Memory that the host addresses, cached if there is such."""
        rows = [
            (index, flags)
            for index, (flags, _, _) in enumerate(device.memory_types)
            if bits >> index & 1 and flags & COHERENT == COHERENT
        ]
        return cls(*max(rows, key=lambda row: (bool(row[1] & CACHED), not row[1] & LOCAL)))
