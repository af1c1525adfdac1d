"""Memory that others have, too: of the host, of other drivers of the device, of other processes."""

from __future__ import annotations

import mmap
import os
from functools import cache
from typing import Any

from dlbridge.errors import DeviceMemoryError, Error, ExchangeError
from dlbridge.kit.resources import Owner, Resources, call
from dlbridge.protocol import ExportedMemory

from .device import OPAQUE_FD, Device
from .instance import COHERENT, FD_MEMORY, LOCAL
from .library import check, constant, ffi, struct
from .memory import IN_SLICES, Allocation, Block, Buffer, DeviceMemory, create_buffer, external

# Host memory in place ---------------------------------------------------------------


def import_refusal(device: Device, address: int, nbytes: int) -> str:
    """Why the host memory cannot be used in place; empty if it can.

    The memory must begin on a page: its first bytes belong to whoever allocated
    them. Its last page is imported whole, as the driver wants whole pages; its end
    must be a word's, because shaders write whole words.
    """
    if device.host_pointer_properties is None:
        return f"{device.physical.name} has no VK_EXT_external_memory_host"
    page = device.physical.limits["min_imported_host_pointer_alignment"]
    if address % page:
        return f"pointer not page aligned: {hex(address)} {_why_misaligned(page)}"
    if nbytes % 4:
        return (
            f"{nbytes} bytes are not a multiple of 4: a shader writes 32-bit words, and would "
            "change what lies behind the last byte"
        )
    if nbytes % page and page > mmap.PAGESIZE:
        return (
            f"{nbytes} bytes are not a multiple of the {page} bytes that the driver imports at once"
        )
    if nbytes > device.most:
        name = device.physical.name
        return f"{nbytes} bytes are more than the {device.most} of one buffer of {name}"
    return ""


@cache  # most arrays are refused so: to format the text took a tenth of an upload of 4 KiB
def _why_misaligned(page: int) -> str:
    return (
        f"is not a multiple of {page} bytes, which VK_EXT_external_memory_host needs; memory of "
        f"dlbridge.empty(shape, dtype, alignment={page}).numpy() needs no copy"
    )


def import_drawback(device: Device) -> str:
    """Why a copy is better than using host memory in place, on a device with memory of its own.

    A discrete GPU reads and writes imported memory over its bus, each time.
    """
    return (
        f"{device.physical.name} is a {device.physical.kind} device: each access to host memory in "
        "place would cross its bus (copy=False asks for it)"
    )


def import_memory(device: Device, address: int, nbytes: int, readonly: bool) -> Allocation:
    """A buffer on the host memory itself; it must outlive the buffer.

    ExchangeError where `import_refusal` has a reason, or the driver has one,
    whatever it calls it: the memory can be copied instead. Source:
    VK_EXT_external_memory_host.
    """
    refusal = import_refusal(device, address, nbytes)
    if not refusal and readonly and device.physical.kind != "cpu":
        # Mesa's RADV pins the pages for writing and refuses those of mapped files (amdgpu's
        # AMDGPU_GEM_USERPTR_ANONONLY); no driver says so before.
        refusal = (
            f"it is read-only, and the driver of {device.physical.name}, a GPU's, may pin it for "
            "writing"
        )
    refusal = refusal or _limit_refusal(device)
    if refusal:
        raise ExchangeError(f"this host memory cannot be a Vulkan buffer in place: {refusal}")
    host = constant("VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT")
    pointer = ffi.cast("void *", address)
    page = device.physical.limits["min_imported_host_pointer_alignment"]
    source = struct("VkImportMemoryHostPointerInfoEXT", handleType=host, pHostPointer=pointer)
    made, block = device.own(), _block(device, -(-nbytes // page) * page)
    try:
        kind = _make_buffer(made.resource[0], nbytes, block, host, pointer)
        block.allocate(kind, source, f"{nbytes} bytes of host memory in place")
        # The address itself: coherent memory needs no mapping to be seen.
        return _bind(made, block, nbytes, address)
    except Error as exc:
        raise ExchangeError(
            f"this host memory cannot be a Vulkan buffer in place: {exc}; copy it instead"
        ) from exc


def _coherent_type(device: Device, bits: int, pointer: Any) -> int:
    """A coherent memory type that the buffer (*bits*) and the host memory allow."""
    host = constant("VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT")
    properties = struct("VkMemoryHostPointerPropertiesEXT")
    ask: Any = device.host_pointer_properties  # refused before where there is none
    check(ask(device.pointer, host, pointer, properties), "vkGetMemoryHostPointerPropertiesEXT")
    bits &= properties.memoryTypeBits
    for index, (flags, _, _) in enumerate(device.physical.memory_types):
        if bits >> index & 1 and flags & COHERENT == COHERENT:
            return index
    raise ExchangeError(f"{device.physical.name} has no coherent memory type for this host memory")


# Memory of other drivers of the device, and for other processes ---------------------


def fd_refusal(device: Device) -> str:
    """Why the device imports no memory of other drivers; empty if it does."""
    return "" if device.imports_fds else f"{device.physical.name} has no {FD_MEMORY} switched on"


def import_fd(device: Device, memory: ExportedMemory) -> Allocation:
    """A buffer on all of the allocation that *memory* is in; it must outlive the buffer.

    ``memory.fd`` stays the caller's. ExchangeError where `fd_refusal` has a reason.
    """
    refusal = fd_refusal(device) or _limit_refusal(device)
    if refusal:
        raise ExchangeError(f"this memory cannot be a Vulkan buffer in place: {refusal}")
    made, block = device.own(), _block(device, memory.nbytes)
    kind = _make_buffer(made.resource[0], memory.nbytes, block, OPAQUE_FD)
    given = block.resource
    given.original = memory.fd
    own = call(given.file, os.dup, memory.fd)
    source = struct("VkImportMemoryFdInfoKHR", handleType=OPAQUE_FD, fd=own)
    block.allocate(kind, source, f"{memory.nbytes} bytes of another driver's")
    made.offset = memory.offset
    return _bind(made, block, memory.nbytes)


def allocate_exportable(device: Device, nbytes: int) -> Allocation:
    """A buffer of at least *nbytes* bytes, on memory of the device that nothing else is in.

    ExchangeError where the device exports no memory.
    """
    if device.sharing_refusal:
        raise ExchangeError(f"no memory for other processes: {device.sharing_refusal}")
    name = device.physical.name
    if nbytes > device.most:
        raise DeviceMemoryError(
            f"{name} gives at most {device.most} bytes at once, and {nbytes} are needed; "
            f"{IN_SLICES}"
        )
    if _limit_refusal(device):
        raise DeviceMemoryError(
            f"{device.most_allocations} blocks of memory are allocated, as many as {name} allows "
            "at once, and memory for other processes is a block by itself; share one large tensor, "
            "and send its parts"
        )
    whole = min(-(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE, device.most)
    chain = struct("VkExportMemoryAllocateInfo", handleTypes=OPAQUE_FD)
    made = device.own()
    buffer = made.resource[0]
    needs = create_buffer(device.pointer, whole, buffer.cell, external(OPAQUE_FD))
    block = _block(device, needs.size)
    kind = _local_type(device, needs.memoryTypeBits)
    what = f"{needs.size} bytes for other processes"
    try:
        block.allocate(kind, chain, what)
    except DeviceMemoryError:
        if not device.make_room(device.heaps):
            raise
        block.allocate(kind, chain, what)
    buffer.size = needs.size
    return _bind(made, block, whole)


def _local_type(device: Device, bits: int) -> int:
    """Device-local memory that a buffer (*bits*) may be in, best such that the host cannot address.

    Always the same one: Vulkan imports its own memory as the type that it was made of.
    """
    able = [
        (not flags & LOCAL, flags & COHERENT == COHERENT, index)
        for index, (flags, _, _) in enumerate(device.physical.memory_types)
        if bits >> index & 1
    ]
    return min(able)[2]


def export_refusal(buffer: Buffer) -> str:
    """Why the buffer's memory cannot be exported; empty if it can."""
    if buffer.size:
        return ""
    if buffer.device.export_refusal:
        return str(buffer.device.export_refusal)
    if buffer.is_foreign:
        return "this Vulkan buffer is somebody else's: it is wrapped, or host memory in place"
    return ""


def export(buffer: Buffer) -> ExportedMemory:
    """A new file descriptor for the memory that the buffer is bound in.

    ExchangeError where `export_refusal` has a reason.
    """
    refusal = export_refusal(buffer)
    if refusal:
        raise ExchangeError(f"this memory cannot be exported: {refusal}")
    device, block = buffer.device, buffer.block
    assert block is not None  # as there is no refusal
    info = struct("VkMemoryGetFdInfoKHR", memory=buffer.memory, handleType=OPAQUE_FD)
    owner = Owner(_exports, ffi.new("int[1]", [-1]))
    check(device.get_memory_fd(device.pointer, info, owner.resource), "vkGetMemoryFdKHR")
    return ExportedMemory(owner.resource[0], block.size, buffer.start, owner=owner)


def _close(cell: Any) -> bool:
    fd, cell[0] = cell[0], -1
    if fd >= 0:
        os.close(fd)
    return True


_exports: Resources[Any] = Resources(_close)


# What they share --------------------------------------------------------------------


def _limit_refusal(device: Device) -> str:
    """Why the device gives no more memory of its own to one buffer, once dropped ones are back."""
    device.buffers.sweep()
    return f"{device.physical.name} allows no more allocations at once" if device.is_full else ""


def _block(device: Device, size: int) -> Block:
    """Memory of *size* bytes that one buffer alone will have."""
    return Block(device.memories, DeviceMemory(device.pointer), size)


def _make_buffer(
    buffer: Buffer, nbytes: int, block: Block, handle_type: int, pointer: Any = None
) -> int:
    """The VkBuffer for memory of *handle_type*, and the type of that memory."""
    device = buffer.device
    needs = create_buffer(device.pointer, nbytes, buffer.cell, external(handle_type))
    if needs.size > block.size:
        raise ExchangeError(
            f"{device.physical.name} needs {needs.size} bytes behind a buffer of {nbytes}, more "
            f"than the {block.size} that there are"
        )
    if pointer is None:
        return _local_type(device, needs.memoryTypeBits)
    return _coherent_type(device, needs.memoryTypeBits, pointer)


def _bind(made: Allocation, block: Block, nbytes: int, mapped: int = 0) -> Allocation:
    buffer = made.resource[0]
    device: Device = buffer.device
    buffer.block, buffer.end = block, block.size
    device.bind(buffer, block, nbytes, mapped, bool(mapped))
    return device.enter(made)
