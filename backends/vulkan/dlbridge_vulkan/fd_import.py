"""Memory that another driver of the same device, or another process, has exported."""

from __future__ import annotations

import os
from contextlib import suppress

from dlbridge.errors import ExchangeError
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
    own: list[int] = []
    codes: list[int] = []
    try:
        _import(made, memory, own, codes)
    except BaseException:
        try:
            _undo(made, memory, own, codes)
        except BaseException:  # of a signal handler: nobody calls this again
            _undo(made, memory, own, codes)
            raise
        raise
    return made


def _import(made: Imported, memory: ExportedMemory, own: list[int], codes: list[int]) -> None:
    """Make the buffer. *own* gets a duplicate of the descriptor, *codes* what the driver says.

    C code fills both, so that an exception of a signal handler loses neither.
    """
    lib, device = load(), made.device
    chain = external(OPAQUE_FD)
    size, _ = create_buffer(device.pointer, memory.nbytes, made.imported.buffer, chain)
    if size > memory.nbytes:
        raise ExchangeError(
            f"{device.physical.name} needs {size} bytes behind a buffer of {memory.nbytes}, as "
            "many as there are"
        )
    own.extend(map(os.dup, [memory.fd]))  # the driver takes it over, if it succeeds
    source = struct("VkImportMemoryFdInfoKHR", handleType=OPAQUE_FD, fd=own[0])
    info = struct(
        "VkMemoryAllocateInfo",
        pNext=source,
        allocationSize=memory.nbytes,
        memoryTypeIndex=memory_type_of(device, made.imported.buffer[0]),
    )
    cell = made.imported.memory
    codes.extend(map(lib.vkAllocateMemory, [device.pointer], [info], [ffi.NULL], [cell]))
    check(codes[0], f"vkAllocateMemory of {memory.nbytes} bytes of another driver's")
    made.buffer, made.memory, made.nbytes = made.imported.buffer[0], cell[0], memory.nbytes
    check(lib.vkBindBufferMemory(device.pointer, made.buffer, made.memory, 0), "vkBindBufferMemory")
    made.describe()


def _undo(made: Imported, memory: ExportedMemory, own: list[int], codes: list[int]) -> None:
    """Give back what `_import` has made. Harmless when repeated."""
    if codes != [0]:
        made.imported.memory[0] = 0  # what a failed call leaves there is not defined
        _close(own, memory.fd)
    made.release()


def _close(own: list[int], original: int) -> None:
    """Close *own*, a duplicate of *original*, unless the driver has done so when it refused.

    Vulkan leaves it to the caller then; lavapipe (Mesa 22.3) closes it all the same.
    """
    with suppress(OSError):
        if own and os.path.sameopenfile(own[0], original):
            list(map(os.close, map(own.pop, [0])))  # one step: it is closed once


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
