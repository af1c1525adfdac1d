"""Which memory types to take, and in which order: for tensors, and for staging."""

from __future__ import annotations

from .instance import PhysicalDevice
from .library import constant

__all__ = ["COHERENT", "LOCAL", "MemoryType"]

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
        shared = device.kind in ("integrated", "cpu")
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
