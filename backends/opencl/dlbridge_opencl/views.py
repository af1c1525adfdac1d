"""The host's views of device memory: mapped while the host uses it, then unmapped.

One thread at a time gives the commands that map or unmap: PoCL 3.1 crashes
if two threads do so at once for one buffer (measured). No thread waits for work while it holds
that lock, so finalizers may acquire it: the work on the buffer is waited for
before, the commands afterwards, and they go to a queue that has no other work
(`queues.service`).
"""

from __future__ import annotations

from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import pyopencl as cl

from dlbridge.errors import Error, ExchangeError
from dlbridge.kit.resources import AllocationOwner, Resources, call, shared_lock
from dlbridge.protocol import Span

from . import queues
from .driver import Driver, lasting
from .memory import READONLY, Memory, find, memory_at, note_host_address

_flags = cl.mem_flags

# Re-entrant, because a finalizer may come in the thread that holds it.
_lock = shared_lock()

# What the driver did not unmap. pyopencl's destructor would ask it again, and an exception in a
# destructor of C++ ends the process.
_kept: list[object] = lasting([])


class _View:
    """A mapping, the queue for the command that unmaps it, and the event of that command."""

    __slots__ = ("driver", "events", "host_address", "mapped", "queue", "stream", "to_release")

    def __init__(self, driver: Driver, queue: cl.CommandQueue, stream: int) -> None:
        self.driver = driver
        self.queue = queue
        self.stream = stream
        self.mapped: list[tuple[np.ndarray[Any, Any], cl.Event]] = []
        # Gives the mapping once, whatever comes between two calls.
        self.to_release = map(attrgetter("base"), map(itemgetter(0), self.mapped))
        self.events: list[cl.Event] = []
        self.host_address: object = None
        """What keeps the known address of a user's memory."""


def _release(view: _View) -> bool:
    """Unmap the view, and wait until that is done.

    Waiting makes what the host wrote visible to work on any queue, also of users.
    """
    try:  # noqa: SIM105 - suppress would be three more calls in each move to the host
        view.driver.run("unmapping", _unmap, view)
    except Error:  # the context is lost, and the memory with it
        pass
    return True


def _unmap(view: _View) -> None:
    """Give the command, unless an earlier call has done so; cl.Error if the driver refuses.

    `MemoryMap.release` must not be called twice: it asks the driver each time, and PoCL 3.1
    then takes another mapping of the same address for this one (measured).
    """
    with _lock:
        # One step: only C code runs between taking the mapping and storing the event.
        try:
            view.events.extend(map(cl.MemoryMap.release, view.to_release, [view.queue]))
        except cl.Error:
            _kept.extend(view.mapped)
            raise
        view.queue.flush()
    for event in view.events:
        event.wait()


_resources: Resources[_View] = Resources(_release)


def host_view_refusal(device_id: int, data: int) -> str:
    """Why the host cannot address *data*; empty if it can."""
    return _refusal(memory_at(device_id, data), writable=False)


def _refusal(memory: Memory, *, writable: bool) -> str:
    chosen = memory.device
    if not chosen.shares_memory:
        return f"{chosen.name} has memory of its own (CL_DEVICE_HOST_UNIFIED_MEMORY is false)"
    flags = 0 if memory.is_ours else memory.buffer.flags
    if memory.is_readonly:
        flags = READONLY
    if flags & (_flags.HOST_NO_ACCESS | _flags.HOST_WRITE_ONLY):
        return "the buffer was made with CL_MEM_HOST_NO_ACCESS or CL_MEM_HOST_WRITE_ONLY"
    if flags & _flags.HOST_READ_ONLY and (writable or not flags & _flags.READ_ONLY):
        return "the buffer was made with CL_MEM_HOST_READ_ONLY, and the tensor is writable"
    return ""


def host_view(span: Span, writable: bool, stream: int) -> AllocationOwner[_View]:
    """Map the bytes for the host, once the work on *stream* is done."""
    device_id, data, offset, nbytes = span
    memory = find(span)
    if refusal := _refusal(memory, writable=writable):
        raise ExchangeError(f"opencl:{device_id}: the host cannot address {data:#x}: {refusal}")
    queues.synchronize(device_id, stream)
    for each in [] if memory.users is None else list(memory.users.queues):
        queues.finish(device_id, each)
    view = _View(memory.device.driver, queues.service(device_id, memory.context), stream)
    owner = AllocationOwner(_resources, view)
    access = cl.map_flags.READ | (cl.map_flags.WRITE if writable else 0)

    def enqueue() -> None:
        what = view.queue, memory.buffer, access, offset, (nbytes,), np.uint8
        with _lock:
            call(view.mapped, cl.enqueue_map_buffer, *what, "C", None, None, False)
            view.queue.flush()
        view.mapped[0][1].wait()

    view.driver.run("mapping for the host", enqueue)
    address = view.mapped[0][0].__array_interface__["data"][0]
    if memory.is_ours:
        memory.host_address = address - offset
    else:
        view.host_address = note_host_address(memory, address, offset)
    owner.data, owner.nbytes = address, nbytes
    return owner
