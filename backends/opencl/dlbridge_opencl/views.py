"""The host's views of device memory: mapped while somebody looks, then unmapped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyopencl as cl

from dlbridge.errors import Error, ExchangeError

from . import devices
from .commands import Commands
from .driver import InDriver
from .memory import buffer_of

__all__ = ["host_view", "host_view_refusal", "release_host_view"]

_flags = cl.mem_flags


@dataclass(frozen=True)
class _Mapped:
    """A mapping, with the queue of the context that it is in."""

    mapping: cl.MemoryMap
    queue: cl.CommandQueue
    writable: bool


# Several views of one place have the same address, and are as many mappings.
_mapped: dict[tuple[int, int], list[_Mapped]] = {}


def host_view_refusal(device_id: int, data: int) -> str:
    """Why the host cannot address *data*; empty if it can."""
    chosen = devices.device(device_id)
    if not chosen.shares_memory:
        return f"{chosen.name} has memory of its own (CL_DEVICE_HOST_UNIFIED_MEMORY is false)"
    flags = buffer_of(data).flags
    if flags & (_flags.HOST_NO_ACCESS | _flags.HOST_WRITE_ONLY):
        return "the buffer was made with CL_MEM_HOST_NO_ACCESS or CL_MEM_HOST_WRITE_ONLY"
    if flags & _flags.HOST_READ_ONLY and not flags & _flags.READ_ONLY:
        return "the buffer was made with CL_MEM_HOST_READ_ONLY, and the tensor is writable"
    return ""


def host_view(
    device_id: int, data: int, offset: int, nbytes: int, writable: bool, stream: int
) -> int:
    """Map the bytes for the host, once the work on *stream* is done; their address."""
    if refusal := host_view_refusal(device_id, data):
        raise ExchangeError(f"opencl:{device_id}: the host cannot address {data:#x}: {refusal}")
    buffer = buffer_of(data, offset, nbytes)
    access = cl.map_flags.READ | (cl.map_flags.WRITE if writable else 0)
    with Commands(device_id, stream, "mapping for the host", buffer) as queue:
        array, _ = cl.enqueue_map_buffer(
            queue, buffer, access, offset, (nbytes,), np.uint8, is_blocking=True
        )
    address: int = array.__array_interface__["data"][0]
    view = _Mapped(array.base, queue, writable)
    _mapped.setdefault((data, address), []).append(view)
    return address


def release_host_view(device_id: int, data: int, address: int, stream: int) -> None:
    """Unmap what the host wrote, and wait for that; never raises (finalizers).

    Waiting makes it visible to work on any queue, also of the user's own.
    """
    views = _mapped.get((data, address))
    if not views:
        return
    view = views.pop()
    if not views:
        _mapped.pop((data, address), None)
    try:
        unmapped = view.mapping.release(view.queue)
        if view.writable:
            with InDriver(device_id):
                unmapped.wait()
        else:
            view.queue.flush()
    except (Error, cl.Error):  # the context is lost, and the memory with it
        return
