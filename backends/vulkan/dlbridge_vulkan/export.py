"""A file descriptor of a buffer's memory, for another driver of the device or another process."""

from __future__ import annotations

import os

from dlbridge.errors import Error, ExchangeError
from dlbridge.protocol import ExportedMemory

from .buffer import Buffer
from .errors import check
from .exportable import Exportable
from .fd_memory import OPAQUE_FD
from .library import ffi, struct

__all__ = ["export", "export_refusal"]


def export_refusal(buffer: Buffer) -> str:
    """Why the buffer's memory cannot be exported; empty if it can."""
    if isinstance(buffer, Exportable):
        return ""
    device = buffer.device
    if device.export_refusal:
        return device.export_refusal
    if buffer.place.block is None:
        return "this Vulkan buffer is somebody else's: it is wrapped, or host memory in place"
    return ""


def export(buffer: Buffer) -> ExportedMemory:
    """A new file descriptor for the memory that the buffer is bound in.

    ExchangeError where `export_refusal` has a reason.
    """
    refusal = export_refusal(buffer)
    if refusal:
        raise ExchangeError(f"this memory cannot be exported: {refusal}")
    device, block = buffer.device, buffer.place.block
    size = buffer.size if isinstance(buffer, Exportable) else block.size if block else 0
    info = struct("VkMemoryGetFdInfoKHR", memory=buffer.memory, handleType=OPAQUE_FD)
    fd = ffi.new("int *", -1)
    try:
        check(device.get_memory_fd(device.pointer, info, fd), "vkGetMemoryFdKHR")
        return ExportedMemory(fd[0], size, buffer.start)
    except Error:
        raise  # there is none
    except BaseException:  # of a signal handler
        if fd[0] >= 0:
            os.close(fd[0])
        raise
