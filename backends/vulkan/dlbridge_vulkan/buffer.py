"""The buffer behind a tensor: memory of a device, and the descriptor that is its ``data``."""

from __future__ import annotations

from typing import Any

from .device import Device
from .library import ffi
from .memory import Allocation

__all__ = ["MAGIC", "Buffer"]

MAGIC = 0x6B56656764697262
"""The descriptor's magic: the bytes ``bridgeVk``."""


SIZE = ffi.sizeof("DlbridgeVulkanBuffer")
# Looking a type up by name costs as much as the cast.
ADDRESS, NUMBER = ffi.typeof("void *"), ffi.typeof("uintptr_t")
DESCRIPTOR = ffi.typeof("DlbridgeVulkanBuffer *")


class Buffer(Allocation):
    """A VkBuffer on *device* that tensors may lie in, with its descriptor."""

    __slots__ = ("data", "descriptor", "device")

    def __init__(self, device: Device) -> None:
        super().__init__(device.queue)
        self.device = device
        self.descriptor = ffi.new(DESCRIPTOR)
        """The value that tensors carry as their ``data``; it lives as long as this object."""
        self.data = int(ffi.cast(NUMBER, self.descriptor))

    @classmethod
    def new(cls, device: Device, nbytes: int, alignment: int) -> Buffer:
        """A buffer of *nbytes* bytes of the device's memory."""
        made = cls(device)
        try:
            device.allocate(made, nbytes, alignment)
        except BaseException:
            made.release()  # now: the traceback may keep it
            raise
        made.describe()
        return made

    def describe(self) -> None:
        """Fill in the descriptor."""
        described, device = self.descriptor, self.device
        common = device.tools.get("descriptor")
        if common is None:
            common = device.tools["descriptor"] = _common(device)
        ffi.memmove(described, common, SIZE)
        described.buffer = self.buffer
        described.memory = self.memory
        described.size = self.nbytes
        described.offset = self.start
        described.mapped = ffi.cast(ADDRESS, self.mapped)


def _common(device: Device) -> Any:
    """The descriptor's members that are the same for all buffers of *device*."""
    return ffi.new(
        "DlbridgeVulkanBuffer *",
        {
            "device": device.pointer,
            "magic": MAGIC,
            "instance": device.instance,
            "physical_device": device.physical.pointer,
            "queue": device.queue.handle,
            "queue_family": device.queue.family,
            "version": 1,
        },
    )
