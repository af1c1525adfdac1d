"""The host's views of device memory: mapped while the host uses it, then unmapped.

One thread at a time gives the commands that map or unmap a buffer: PoCL 3.1 crashes
if two threads do so at once (measured). No thread waits for work while it holds
that lock, so finalizers may acquire it: the work on the buffer is waited for
before, the commands afterwards, and they go to a queue that has no other work
(`queues.service`).
"""

from __future__ import annotations

import itertools
import threading
from contextlib import contextmanager
from operator import length_hint
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

from dlbridge.errors import Error, ExchangeError

from . import devices, queues, sharing
from .driver import Call
from .errors import translated
from .forking import in_child, inherited, never_released
from .memory import buffer_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dlbridge.protocol import Span

__all__ = ["host_view", "host_view_refusal", "mapped", "release_host_view"]

_flags = cl.mem_flags

# A fixed number of locks: none has to be made or removed with its buffer. Re-entrant,
# because a finalizer may come in the thread that holds one.
_locks = tuple(threading.RLock() for _ in range(64))


def _lock(data: int) -> threading.RLock:
    return _locks[data // 64 % len(_locks)]  # handles are addresses of structures


# What the driver did not unmap. pyopencl's destructor would ask it again, and an exception in a
# destructor of C++ ends the process.
_kept: list[cl.MemoryMap] = never_released([])


class _Mapping:
    """A mapping, the queue for the command that unmaps it, and the event of that command."""

    __slots__ = ("_mapped", "_to_release", "events", "queue")

    def __init__(self, mapped: cl.MemoryMap, queue: cl.CommandQueue) -> None:
        self._mapped = mapped
        self._to_release = iter([mapped])  # gives it once
        self.queue = queue
        self.events: list[cl.Event] = []

    def unmap(self) -> None:
        """Give the command, unless an earlier call has done so; cl.Error if the driver refuses.

        `MemoryMap.release` must not be called twice: it asks the driver each time, and PoCL 3.1
        then takes another mapping of the same address for this one (measured).
        """
        # One step: only C code runs between taking the mapping and storing the event.
        try:
            self.events.extend(map(cl.MemoryMap.release, self._to_release, [self.queue]))
        finally:
            if not self.events and not length_hint(self._to_release):
                _kept.append(self._mapped)


# Data, address, and a number: several views of one region have the same address, and
# are as many mappings.
_mapped: dict[tuple[int, int, int], _Mapping] = inherited({})
_numbers = itertools.count()


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


def host_view(span: Span, writable: bool, stream: int) -> int:
    """Map the bytes for the host, once the work on *stream* is done; their address."""
    device_id, data, offset, nbytes = span
    if refusal := host_view_refusal(device_id, data):
        raise ExchangeError(f"opencl:{device_id}: the host cannot address {data:#x}: {refusal}")
    buffer = buffer_of(data, offset, nbytes)
    _finish_work(device_id, buffer, stream)
    queue = queues.service(device_id, buffer.context)
    view: _Mapping | None = None
    try:
        with _lock(data):
            array, event = _map(device_id, queue, buffer, offset, nbytes, writable)
            view = _Mapping(array.base, queue)
        address: int = array.__array_interface__["data"][0]
        key = data, address, next(_numbers)
        _wait(device_id, event)
    except BaseException:
        if view is not None:
            with _lock(data):
                _unmap(device_id, view)
        raise
    # The last step, as in `memory.allocate`: no view is recorded that nobody has.
    _mapped[key] = view
    return address


def release_host_view(span: Span, address: int, stream: int) -> None:
    """Unmap the view, and wait until that is done; never raises an Error (finalizers).

    Waiting makes what the host wrote visible to work on any queue, also of users.
    """
    device_id, data, _, _ = span
    taken: list[_Mapping] = []
    try:
        _release(taken, device_id, data, address)
    except BaseException:
        # Of a signal handler, in a destructor: nobody calls this again.
        _release(taken, device_id, data, address)
        raise


def _release(taken: list[_Mapping], device_id: int, data: int, address: int) -> None:
    """See `release_host_view`. *taken* gets the view: a second call does the rest."""
    if in_child():
        return  # the mapping belongs to the parent process
    try:
        with _lock(data):
            for key in list(_mapped):
                if not taken and key[:2] == (data, address):
                    # One step, also for other threads. None: another one had it.
                    taken.extend(filter(None, map(_mapped.pop, [key], [None])))
            if not taken:
                return
            _unmap(device_id, taken[0])
        for event in taken[0].events:
            _wait(device_id, event)
    except (Error, cl.Error):  # the context is lost, and the memory with it
        return


@contextmanager
def mapped(
    device_id: int, buffer: cl.MemoryObject, offset: int, nbytes: int
) -> Iterator[memoryview]:
    """The bytes of a region for the host to read during the block, once its work is done."""
    data: int = buffer.int_ptr
    _finish_work(device_id, buffer, 0)
    queue = queues.service(device_id, buffer.context)
    with _lock(data):
        array, event = _map(device_id, queue, buffer, offset, nbytes, writable=False)
        view = _Mapping(array.base, queue)
    try:
        _wait(device_id, event)
        yield array.data
    finally:
        with _lock(data):
            _unmap(device_id, view)
        for event in view.events:
            _wait(device_id, event)


def _finish_work(device_id: int, buffer: cl.MemoryObject, stream: int) -> None:
    """Wait for the work on *stream*, and on the queues of users that have the buffer."""
    queues.synchronize(device_id, stream)
    for queue in sharing.queues_of(buffer.int_ptr):
        queues.finish(device_id, queue)


def _map(
    device_id: int,
    queue: cl.CommandQueue,
    buffer: cl.MemoryObject,
    offset: int,
    nbytes: int,
    writable: bool,
) -> tuple[np.ndarray[Any, Any], cl.Event]:
    """The bytes for the host, and the event after which they are there."""
    access = cl.map_flags.READ | (cl.map_flags.WRITE if writable else 0)
    try:
        with devices.device(device_id).lock, Call():
            array: np.ndarray[Any, Any]
            array, event = cl.enqueue_map_buffer(
                queue, buffer, access, offset, (nbytes,), np.uint8, is_blocking=False
            )
            queue.flush()
            return array, event
    except cl.Error as exc:
        raise translated(exc, "mapping for the host") from exc


def _unmap(device_id: int, view: _Mapping) -> None:
    """Unmap *view*, unless an earlier call has done so. Its events say when that is over."""
    with devices.device(device_id).lock, Call():
        view.unmap()
        view.queue.flush()


def _wait(device_id: int, event: cl.Event) -> None:
    try:
        with devices.device(device_id).lock, Call():
            event.wait()
    except cl.Error as exc:
        raise translated(exc, "waiting for a mapping") from exc
