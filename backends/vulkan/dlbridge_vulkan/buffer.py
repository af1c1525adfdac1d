"""The buffer behind a tensor: memory of a device, and the descriptor that is its ``data``."""

from __future__ import annotations

from .device import Device
from .library import ffi, handle
from .memory import Allocation

__all__ = ["MAGIC", "Buffer"]

MAGIC = 0x6B56656764697262
"""The descriptor's magic: the bytes ``bridgeVk``."""


class Buffer(Allocation):
    """A VkBuffer on *device* that tensors may lie in, with its descriptor."""

    __slots__ = ("data", "descriptor", "device")

    def __init__(self, device: Device) -> None:
        super().__init__(device.queue)
        self.device = device
        self.descriptor = ffi.new("DlbridgeVulkanBuffer *")
        """What tensors carry as their ``data``; it lives as long as this object."""
        self.data = handle(self.descriptor)

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
        described.device = device.pointer
        described.buffer = self.buffer
        described.memory = self.memory
        described.magic = MAGIC
        described.instance = device.instance
        described.physical_device = device.physical.pointer
        described.queue = device.queue.handle
        described.queue_family = device.queue.family
        described.version = 1
        described.size = self.nbytes
        described.offset = self.start
        described.mapped = ffi.cast("void *", self.mapped)
