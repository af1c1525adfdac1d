"""Memory for other processes: an allocation of its own, which the driver can export."""

from __future__ import annotations

import mmap

from dlbridge.errors import DeviceMemoryError, ExchangeError

from .device import Device
from .errors import check
from .fd_import import memory_type_of
from .fd_memory import OPAQUE_FD
from .host_import import Imported
from .library import load, struct
from .memory import IN_SLICES, create_buffer, external

__all__ = ["Exportable", "allocate"]


class Exportable(Imported):
    """A buffer, and memory of the device that nothing else is in."""

    __slots__ = ("size",)

    size: int
    """Bytes of the memory. Who imports it makes a buffer of that size."""


def allocate(device: Device, nbytes: int) -> Exportable:
    """A buffer of at least *nbytes* bytes; ExchangeError where the device exports no memory."""
    if device.sharing_refusal:
        raise ExchangeError(f"no memory for other processes: {device.sharing_refusal}")
    device.reclaim()
    name, most = device.physical.name, device.physical.limits["max_allocations"]
    if nbytes > device.most:
        raise DeviceMemoryError(
            f"{name} gives at most {device.most} bytes at once, and {nbytes} are needed; "
            f"{IN_SLICES}"
        )
    if device.allocations >= most:
        raise DeviceMemoryError(
            f"{most} blocks of memory are allocated, as many as {name} allows at once, and memory "
            "for other processes is a block by itself; share one large tensor, and send its parts"
        )
    made = Exportable(device)
    try:
        try:
            _allocate(made, nbytes)
        except DeviceMemoryError:
            if not [heap for heap in device.heaps if heap.make_room()]:
                raise
            _allocate(made, nbytes)
    except BaseException:
        made.release()
        raise
    return made


def _allocate(made: Exportable, nbytes: int) -> None:
    lib, device, owned = load(), made.device, made.imported
    whole = min(-(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE, device.most)
    size, _ = create_buffer(device.pointer, whole, owned.buffer, external(OPAQUE_FD))
    chain = struct("VkExportMemoryAllocateInfo", handleTypes=OPAQUE_FD)
    info = struct(
        "VkMemoryAllocateInfo",
        pNext=chain,
        allocationSize=size,
        memoryTypeIndex=memory_type_of(device, owned.buffer[0]),
    )
    made.memory = owned.allocate(info, f"vkAllocateMemory of {size} bytes for other processes")
    made.buffer = owned.buffer[0]
    made.nbytes, made.size = whole, size
    check(lib.vkBindBufferMemory(device.pointer, made.buffer, made.memory, 0), "vkBindBufferMemory")
    made.describe()
