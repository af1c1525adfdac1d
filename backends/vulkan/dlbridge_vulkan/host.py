"""Host memory: moving bytes in it, and using it in place as device memory."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dlbridge.errors import DeviceError, ExchangeError

from .errors import check
from .library import constant, ffi, load, struct
from .memory import Allocation, create_buffer
from .memory_types import COHERENT

if TYPE_CHECKING:
    from .device import Device

__all__ = ["address_of", "import_memory", "import_refusal", "move", "read", "release", "write"]

HOLD_GIL = 64 << 10
"""Bytes up to which a copy keeps the GIL: ffi.memmove keeps it and takes 0.3 us
for 4 KiB, ctypes.memmove drops it and takes 0.5 us."""

CHARS = ffi.typeof("char *")  # looking a type up by name costs as much as the cast


def address_of(memory: memoryview) -> int:
    """The address of *memory*'s first byte; *memory* stays the caller's to keep."""
    return int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))


def write(address: int, source: memoryview) -> None:
    """Copy the bytes of *source* to *address*."""
    nbytes = len(source)
    if nbytes <= HOLD_GIL:
        ffi.memmove(ffi.cast(CHARS, address), source, nbytes)
    else:
        ctypes.memmove(address, address_of(source), nbytes)


def read(into: memoryview, address: int) -> None:
    """Copy ``len(into)`` bytes at *address* to *into*."""
    nbytes = len(into)
    if nbytes <= HOLD_GIL:
        ffi.memmove(into, ffi.cast(CHARS, address), nbytes)
    else:
        ctypes.memmove(address_of(into), address, nbytes)


def move(target: int, source: int, nbytes: int) -> None:
    """Copy *nbytes* bytes from one host address to another."""
    if nbytes <= HOLD_GIL:
        ffi.memmove(ffi.cast(CHARS, target), ffi.cast(CHARS, source), nbytes)
    else:
        ctypes.memmove(target, source, nbytes)


def import_refusal(device: Device, address: int, nbytes: int) -> str:
    """Why the host memory cannot be used in place; empty if it can.

    The memory must begin on a page: a page's head belongs to whoever allocated
    it. Its last page is imported whole, as the driver wants whole pages; its end
    must be a word's, because shaders write whole words.
    """
    if device.host_pointer_properties is None:
        return f"{device.physical.name} has no VK_EXT_external_memory_host"
    page = device.physical.limits["min_imported_host_pointer_alignment"]
    if address % page:
        return (
            f"pointer not page aligned: {address:#x} is no multiple of {page} bytes, "
            "which VK_EXT_external_memory_host wants"
        )
    if nbytes % 4:
        return (
            f"{nbytes} bytes are no multiple of 4: a shader writes 32-bit words, and would change "
            "what lies behind the last byte"
        )
    if nbytes % page and page > mmap.PAGESIZE:
        return f"{nbytes} bytes are no multiple of the {page} bytes that the driver imports at once"
    return ""


def import_memory(device: Device, address: int, nbytes: int) -> Allocation:
    """A buffer on the host memory itself; it must outlive the allocation.

    ExchangeError where `import_refusal` has a reason, or the driver has one.
    Source: VK_EXT_external_memory_host.
    """
    refusal = import_refusal(device, address, nbytes)
    if refusal:
        raise ExchangeError(f"this host memory cannot be a Vulkan buffer in place: {refusal}")
    lib = load()
    host = constant("VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT")
    pointer = ffi.cast("void *", address)
    page = device.physical.limits["min_imported_host_pointer_alignment"]
    whole = -(-nbytes // page) * page
    external = struct("VkExternalMemoryBufferCreateInfo", handleTypes=host)
    buffer, size, _ = create_buffer(device.pointer, nbytes, external)
    memory = ffi.new("VkDeviceMemory *")
    try:
        source = struct("VkImportMemoryHostPointerInfoEXT", handleType=host, pHostPointer=pointer)
        info = struct(
            "VkMemoryAllocateInfo",
            pNext=source,
            allocationSize=whole,
            memoryTypeIndex=_memory_type(device, buffer, pointer),
        )
        if size > whole:
            raise ExchangeError(
                f"{device.physical.name} wants {size} bytes behind a buffer of {nbytes}, more "
                "than its pages hold"
            )
        check(
            lib.vkAllocateMemory(device.pointer, info, ffi.NULL, memory),
            f"vkAllocateMemory of {nbytes} bytes of host memory in place",
        )
        check(lib.vkBindBufferMemory(device.pointer, buffer, memory[0], 0), "vkBindBufferMemory")
    except BaseException:
        lib.vkDestroyBuffer(device.pointer, buffer, ffi.NULL)
        if memory[0]:
            lib.vkFreeMemory(device.pointer, memory[0], ffi.NULL)
        raise
    allocation = Allocation(device, buffer, memory[0], 0, nbytes)
    # The address itself: coherent memory needs no mapping to be seen.
    allocation.mapped = address
    allocation.cached = True
    return device.describe(allocation)


def release(allocation: Allocation) -> None:
    """Let go of memory that is someone else's, once no work uses it.

    Blocks until then: its owner may unmap it, or destroy a foreign buffer, as
    soon as this returns.
    """
    device = allocation.device
    # After any other error than this it may be in use still, and stays.
    with suppress(DeviceError):  # a lost device has no work left
        device.queue.wait(allocation.last_use)
    if allocation.owned:  # the buffer on it is ours
        device.lib.vkDestroyBuffer(device.pointer, allocation.buffer, ffi.NULL)
        device.lib.vkFreeMemory(device.pointer, allocation.memory, ffi.NULL)


def _memory_type(device: Device, buffer: int, pointer: Any) -> int:
    """A coherent memory type that both the host memory and the buffer allow."""
    properties = struct("VkMemoryHostPointerPropertiesEXT")
    check(
        device.host_pointer_properties(  # type: ignore[misc]  # refused before when None
            device.pointer,
            constant("VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT"),
            pointer,
            properties,
        ),
        "vkGetMemoryHostPointerPropertiesEXT",
    )
    needs = ffi.new("VkMemoryRequirements *")
    load().vkGetBufferMemoryRequirements(device.pointer, buffer, needs)
    bits = properties.memoryTypeBits & needs.memoryTypeBits
    for index, (flags, _, _) in enumerate(device.physical.memory_types):
        if bits >> index & 1 and flags & COHERENT == COHERENT:
            return index
    raise ExchangeError(
        f"{device.physical.name} has no coherent memory type for this host memory; copy it"
    )
