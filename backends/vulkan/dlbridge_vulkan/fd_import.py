"""Memory that another driver of the same device, or another process, has exported."""

from __future__ import annotations

import os

from dlbridge.errors import ExchangeError
from dlbridge.kit.resources import call
from dlbridge.protocol import ExportedMemory

from .device import Device
from .errors import check
from .fd_memory import FD_MEMORY, OPAQUE_FD
from .host_import import Imported
from .library import ffi, load, struct
from .memory import create_buffer, external
from .memory_types import COHERENT, LOCAL

__all__ = ["fd_refusal", "import_fd", "memory_type_of"]


def fd_refusal(device: Device) -> str:
    """Why the device imports no memory of other drivers; empty if it does."""
    return "" if device.imports_fds else f"{device.physical.name} has no {FD_MEMORY} switched on"


def import_fd(device: Device, memory: ExportedMemory) -> Imported:
    """A buffer on all of the allocation that *memory* is in; it must outlive the buffer.

    ``memory.fd`` stays the caller's. ExchangeError where `fd_refusal` has a reason.
    """
    refusal = fd_refusal(device)
    device.reclaim()
    if not refusal and device.allocations >= device.physical.limits["max_allocations"]:
        refusal = f"{device.physical.name} allows no more allocations at once"
    if refusal:
        raise ExchangeError(f"this memory cannot be a Vulkan buffer in place: {refusal}")
    made = Imported(device)
    try:
        _import(made, memory)
    except BaseException:
        made.release()  # while the caller's descriptor is open
        raise
    return made


def _import(made: Imported, memory: ExportedMemory) -> None:
    lib, device = load(), made.device
    chain = external(OPAQUE_FD)
    size, _ = create_buffer(device.pointer, memory.nbytes, made.imported.buffer, chain)
    if size > memory.nbytes:
        raise ExchangeError(
            f"{device.physical.name} needs {size} bytes behind a buffer of {memory.nbytes}, as "
            "many as there are"
        )
    made.imported.original = memory.fd
    own = call(made.imported.file, os.dup, memory.fd)
    source = struct("VkImportMemoryFdInfoKHR", handleType=OPAQUE_FD, fd=own)
    info = struct(
        "VkMemoryAllocateInfo",
        pNext=source,
        allocationSize=memory.nbytes,
        memoryTypeIndex=memory_type_of(device, made.imported.buffer[0]),
    )
    what = f"vkAllocateMemory of {memory.nbytes} bytes of another driver's"
    made.memory = made.imported.allocate(info, what)
    made.buffer, made.nbytes = made.imported.buffer[0], memory.nbytes
    check(lib.vkBindBufferMemory(device.pointer, made.buffer, made.memory, 0), "vkBindBufferMemory")
    made.describe()


def memory_type_of(device: Device, buffer: int) -> int:
    """Device-local memory that the buffer may be in, best such that the host cannot address.

    Always the same one: Vulkan imports its own memory as the type that it was made of.
    """
    needs = ffi.new("VkMemoryRequirements *")
    load().vkGetBufferMemoryRequirements(device.pointer, buffer, needs)
    able = [
        (not flags & LOCAL, flags & COHERENT == COHERENT, index)
        for index, (flags, _, _) in enumerate(device.physical.memory_types)
        if needs.memoryTypeBits >> index & 1
    ]
    return min(able)[2]
