"""Find out whether a device and the host see the same bytes in host memory used in place.

CL_MEM_USE_HOST_PTR does not promise that: a driver may "cache the buffer contents
pointed to by host_ptr in device memory", and only mapping makes the two equal
(OpenCL 3.0, 5.2.1). Some drivers do so always, some where it suits them. A tensor
over a user's array is never mapped when the user writes to the array.
"""

from __future__ import annotations

import numpy as np
import pyopencl as cl

from . import devices, queues
from .driver import Call

__all__ = ["PAGE", "why_not_one_memory"]

PAGE = 4096
"""Bytes."""

_found: dict[int, str] = {}  # device_id -> why not, empty if it is one memory


def why_not_one_memory(device_id: int) -> str:
    """Why host memory in place is not one memory with the device's; empty if it is.

    A test on two pages, once per device: a millisecond.
    """
    found = _found.get(device_id)
    if found is None:
        found = _found.setdefault(device_id, _try(device_id))
    return found


def _try(device_id: int) -> str:
    raw = np.zeros(3 * PAGE, "u1")
    start = -raw.ctypes.data % PAGE
    host = raw[start : start + 2 * PAGE]
    context = devices.context(device_id)
    queue = queues.service(device_id, context)
    flags = cl.mem_flags
    try:
        with devices.device(device_id).lock, Call():
            buffer = cl.Buffer(context, flags.READ_WRITE | flags.USE_HOST_PTR, hostbuf=host)
            scratch = cl.Buffer(context, flags.READ_WRITE, size=host.nbytes)
            try:
                return _compare(queue, host, buffer, scratch)
            finally:
                queue.finish()
                buffer.release()  # before its memory, in every case
    except cl.Error as exc:
        return f"its driver does not use host memory in place ({exc})"


def _compare(
    queue: cl.CommandQueue, host: np.ndarray, buffer: cl.Buffer, scratch: cl.Buffer
) -> str:
    """Why the two differ, with *scratch* to see what the device sees."""
    seen = np.empty_like(host)
    # Two rounds: a driver may fetch the host's bytes once, at the first command.
    for turn in (1, 2):
        host[:] = turn
        cl.enqueue_copy(queue, scratch, buffer)
        cl.enqueue_copy(queue, seen, scratch, is_blocking=True)
        if not (seen == turn).all():
            return "its driver keeps a copy of host memory, and the device reads that copy"
        cl.enqueue_fill_buffer(queue, buffer, bytes([100 + turn]), 0, host.nbytes)
        queue.finish()
        if not (host == 100 + turn).all():
            return "its driver keeps a copy of host memory, and the device writes to that copy"
    return ""
