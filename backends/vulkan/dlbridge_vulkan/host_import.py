"""Host memory used in place as device memory."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from typing import Any

from dlbridge.errors import DeviceError, Error, ExchangeError
from dlbridge.kit.resources import call

from .buffer import Buffer
from .device import Device
from .errors import check
from .library import constant, ffi, load, struct
from .memory import create_buffer
from .memory_types import COHERENT
from .queue import NEVER

__all__ = ["Imported", "import_drawback", "import_memory", "import_refusal"]


def import_refusal(device: Device, address: int, nbytes: int) -> str:
    """Why the host memory cannot be used in place; empty if it can.

    The memory must begin on a page: its first bytes belong to whoever allocated
    them. Its last page is imported whole, as the driver wants whole pages; its end
    must be a word's, because shaders write whole words.
    """
    if device.host_pointer_properties is None:
        return f"{device.physical.name} has no VK_EXT_external_memory_host"
    limits = device.physical.limits
    page = limits["min_imported_host_pointer_alignment"]
    if address % page:
        return (
            f"pointer not page aligned: {address:#x} is not a multiple of {page} bytes, "
            "which VK_EXT_external_memory_host needs; memory of dlbridge.empty(shape, dtype, "
            f"alignment={page}).numpy() needs no copy"
        )
    if nbytes % 4:
        return (
            f"{nbytes} bytes are not a multiple of 4: a shader writes 32-bit words, and would "
            "change what lies behind the last byte"
        )
    if nbytes % page and page > mmap.PAGESIZE:
        return (
            f"{nbytes} bytes are not a multiple of the {page} bytes that the driver imports at once"
        )
    most = min(limits["max_allocation"], limits["max_buffer"])
    if nbytes > most:
        return f"{nbytes} bytes are more than the {most} of one buffer of {device.physical.name}"
    return ""


def import_drawback(device: Device) -> str:
    """Why a copy is better than using host memory in place; empty if it is not.

    A discrete GPU reads and writes imported memory over its bus, each time.
    """
    if device.physical.kind in ("integrated", "cpu"):
        return ""
    return (
        f"{device.physical.name} is a {device.physical.kind} device: each access to host memory in "
        "place would cross its bus (copy=False asks for it)"
    )


class Import:
    """The objects of an imported buffer: a VkBuffer, and the import as a VkDeviceMemory."""

    __slots__ = ("_device", "buffer", "codes", "file", "last_use", "memory", "original", "queue")

    def __init__(self, device: Device) -> None:
        self._device = device.pointer
        self.queue = device.queue
        self.buffer = ffi.new("VkBuffer[1]")
        self.memory = ffi.new("VkDeviceMemory[1]")
        self.codes: list[int] = []
        """What the driver said to `allocate`: a failed call may leave anything in `memory`."""
        self.file: list[int] = []
        """A file descriptor that the driver takes over if `allocate` succeeds."""
        self.original = -1
        """What it is a duplicate of."""
        self.last_use = NEVER

    def allocate(self, info: Any, what: str) -> int:
        """The VkDeviceMemory of *info*."""
        function = load().vkAllocateMemory
        check(call(self.codes, function, self._device, info, ffi.NULL, self.memory), what)
        return int(self.memory[0])

    def close(self, wait: bool = True) -> bool:
        """Wait for the value `last_use` of the queue, and end the import."""
        if not self.queue.alive:
            return True
        lib, null, is_ours = load(), ffi.NULL, self.codes[-1:] == [0]
        if self.buffer[0] or (is_ours and self.memory[0]):
            # After any other error than this it may be in use still, and stays.
            with suppress(DeviceError):  # a lost device has no work left
                self.queue.wait(self.last_use)
            # Python runs no signal handler between taking a handle and destroying it.
            destroy, free = lib.vkDestroyBuffer, lib.vkFreeMemory
            buffer, self.buffer[0] = self.buffer[0], 0
            destroy(self._device, buffer, null)
            if is_ours:
                memory, self.memory[0] = self.memory[0], 0
                free(self._device, memory, null)
        if self.file and not is_ours:
            # Vulkan leaves it to the caller then; lavapipe (Mesa 22.3) closes it all the same.
            with suppress(OSError):
                if os.path.sameopenfile(self.file[0], self.original):
                    list(map(os.close, map(self.file.pop, [0])))  # one step: it is closed once
        return True


class Imported(Buffer):
    """A buffer on memory of the host, which its owner may take back after `release`."""

    __slots__ = ("imported",)

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.imported = Import(device)
        self._life = device.imports.enter(self.imported)

    @property
    def words(self) -> int:
        """Bytes that shaders may see: a word's end, by `import_refusal`."""
        return self.nbytes

    def release(self) -> None:
        """Wait until no work uses it, and end the import. Harmless when repeated.

        The owner of the memory may unmap it as soon as this returns.
        """
        if not self.queue.shared:
            self.imported.last_use = self.last_use
        self.imported.close()
        self._life = None
        self.device.imports.sweep()


def import_memory(device: Device, address: int, nbytes: int, readonly: bool) -> Imported:
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
    device.reclaim()
    if not refusal and device.allocations >= device.physical.limits["max_allocations"]:
        refusal = f"{device.physical.name} allows no more allocations at once"
    if refusal:
        raise ExchangeError(f"this host memory cannot be a Vulkan buffer in place: {refusal}")
    made = Imported(device)
    try:
        _import(made, address, nbytes)
    except Error as exc:
        made.release()
        raise ExchangeError(
            f"this host memory cannot be a Vulkan buffer in place: {exc}; copy it instead"
        ) from exc
    return made


def _import(made: Imported, address: int, nbytes: int) -> None:
    lib, device = load(), made.device
    host = constant("VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT")
    pointer = ffi.cast("void *", address)
    page = device.physical.limits["min_imported_host_pointer_alignment"]
    whole = -(-nbytes // page) * page
    external = struct("VkExternalMemoryBufferCreateInfo", handleTypes=host)
    size, _ = create_buffer(device.pointer, nbytes, made.imported.buffer, external)
    if size > whole:
        raise ExchangeError(
            f"{device.physical.name} needs {size} bytes behind a buffer of {nbytes}, more than its "
            "pages hold"
        )
    source = struct("VkImportMemoryHostPointerInfoEXT", handleType=host, pHostPointer=pointer)
    info = struct(
        "VkMemoryAllocateInfo",
        pNext=source,
        allocationSize=whole,
        memoryTypeIndex=_memory_type(device, made.imported.buffer[0], pointer),
    )
    what = f"vkAllocateMemory of {nbytes} bytes of host memory in place"
    made.memory = made.imported.allocate(info, what)
    made.buffer, made.nbytes = made.imported.buffer[0], nbytes
    check(lib.vkBindBufferMemory(device.pointer, made.buffer, made.memory, 0), "vkBindBufferMemory")
    # The address itself: coherent memory needs no mapping to be seen.
    made.mapped = address
    made.cached = True
    made.describe()


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
    raise ExchangeError(f"{device.physical.name} has no coherent memory type for this host memory")
