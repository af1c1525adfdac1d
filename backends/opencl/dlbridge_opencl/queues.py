"""Command queues as dlbridge's streams: one in order per thread, and the user's own.

A stream is a ``cl_command_queue`` as an integer, 0 the thread's own queue.
"""

from __future__ import annotations

import operator
import threading
from typing import Any

import pyopencl as cl

from . import devices, handles, sharing
from .driver import InDriver
from .errors import translated

__all__ = [
    "current",
    "current_stream",
    "elsewhere",
    "finish",
    "finish_all",
    "is_ours",
    "known",
    "new",
    "normalize_stream",
    "order",
    "resolve",
    "synchronize",
    "users",
    "wait",
]

USERS_KEPT = 64
"""How many of the users' queues are kept alive, so that their handles stay good; and of
the users' contexts, with a queue in each."""

# Queues made here live as long as the process: a tensor may hold the handle of
# one whose thread has ended. The next thread takes it over.
_ours: dict[int, cl.CommandQueue] = {}
_spare: dict[tuple[int, cl.Context], list[cl.CommandQueue]] = {}
_users: dict[int, cl.CommandQueue] = {}
_elsewhere: dict[tuple[int, cl.Context], cl.CommandQueue] = {}  # in contexts of the users'


class _QueuesOfThread(dict[int, tuple[cl.Context, cl.CommandQueue]]):
    """device_id -> context and queue; gives the queues back when its thread ends."""

    def __del__(self, spare: dict[Any, list[cl.CommandQueue]] = _spare) -> None:
        # The default outlives the module, whose names are gone when the process ends.
        for device_id, (context, queue) in self.items():
            spare.setdefault((device_id, context), []).append(queue)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.queues = _QueuesOfThread()


_thread = _Thread()


def current(device_id: int) -> cl.CommandQueue:
    """The thread's in-order queue on the device, in the context of `devices.context`."""
    context = devices.context(device_id)
    found = _thread.queues.get(device_id)
    if found is None or found[0] is not context:
        found = _thread.queues[device_id] = context, _take(device_id, context)
    return found[1]


def _take(device_id: int, context: cl.Context) -> cl.CommandQueue:
    try:
        return _spare[device_id, context].pop()  # atomic: another thread may be here, too
    except LookupError:
        queue = new(device_id, context)
        _ours[queue.int_ptr] = queue
        return queue


def new(device_id: int, context: cl.Context) -> cl.CommandQueue:
    """A queue in order in *context*, for the caller alone."""
    chosen = devices.device(device_id)
    try:
        with InDriver(device_id):
            return cl.CommandQueue(context, chosen.handle)
    except cl.Error as exc:
        raise translated(exc, f"making a queue on {chosen.name}") from exc


def elsewhere(device_id: int, context: cl.Context) -> cl.CommandQueue:
    """A queue in order in a *context* of the user's own, for all arrays handed out there."""
    queue = _elsewhere.get((device_id, context))
    if queue is None:
        queue = _elsewhere[device_id, context] = new(device_id, context)
        _forget_oldest(_elsewhere)
    return queue


def current_stream(device_id: int) -> int:
    """The handle of this thread's queue."""
    handle: int = current(device_id).int_ptr
    return handle


def is_ours(stream: int, context: cl.Context) -> bool:
    """Whether *stream* is a queue made here, in *context*; its handle is never used again."""
    queue = _ours.get(stream)
    return queue is not None and queue.context == context


def resolve(device_id: int, stream: int) -> cl.CommandQueue:
    """The queue *stream*, of which the device is *device_id*; 0 is `current`."""
    if stream == 0:
        return current(device_id)
    queue = _ours.get(stream) or _users.get(stream)
    if queue is None:
        return _adopt(device_id, stream)
    return queue


def normalize_stream(device_id: int, stream: object) -> int:
    """The handle for ``stream=``: None or 0 the thread's queue, -1 none, or a queue.

    A queue is a `pyopencl.CommandQueue` or a ``cl_command_queue`` as an
    integer, in order and on this device. It must live as long as work goes to
    it, as any stream must; the last few are also kept alive here. An integer
    that is no OpenCL object is refused, one that is another kind of object only
    if the driver finds out.

    Exports ask this for their consumer's queue, so what is allocated by now may
    be on its way to one (`sharing.may_be_exported`).
    """
    sharing.may_be_exported()
    if stream is None:
        return current_stream(device_id)
    if isinstance(stream, cl.CommandQueue):
        return _keep(device_id, stream)
    try:
        handle = operator.index(stream)  # type: ignore[arg-type] # what else it is raises
    except TypeError:
        handle = None
    if handle is None or isinstance(stream, bool):
        raise TypeError(
            f"opencl: {stream!r} is no stream; pass None, -1, a pyopencl.CommandQueue, "
            "or a cl_command_queue as an integer"
        )
    if handle == -1:
        return -1
    if handle == 0:
        return current_stream(device_id)
    if handle not in _ours:
        _adopt(device_id, handle)
    return handle


def _adopt(device_id: int, handle: int) -> cl.CommandQueue:
    if not handles.is_object(handle):
        raise ValueError(
            f"opencl: stream {handle:#x} is no cl_command_queue of the drivers in use; "
            "pass None, -1, a pyopencl.CommandQueue or its int_ptr"
        )
    try:
        queue = cl.CommandQueue.from_int_ptr(handle, True)
        _keep(device_id, queue)
    except cl.Error as exc:  # an object of another kind
        raise ValueError(f"opencl: stream {handle:#x} is no cl_command_queue ({exc})") from exc
    return queue


def _keep(device_id: int, queue: cl.CommandQueue) -> int:
    chosen = devices.device(device_id)
    if queue.device is None:  # of another kind of object
        raise ValueError(f"opencl: stream {queue.int_ptr:#x} is no cl_command_queue")
    if queue.device != chosen.handle:
        raise ValueError(f"opencl: stream {queue!r} is on {queue.device.name}, not {chosen.name}")
    if queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE:
        raise ValueError(
            f"opencl: {queue!r} runs out of order, and a stream is what runs in order; "
            "make one without OUT_OF_ORDER_EXEC_MODE_ENABLE"
        )
    handle: int = queue.int_ptr
    if handle not in _ours:
        _users[handle] = queue
    _forget_oldest(_users)
    return handle


def _forget_oldest(kept: dict[Any, cl.CommandQueue]) -> None:
    while len(kept) > USERS_KEPT:
        kept.pop(next(iter(kept)), None)


def synchronize(device_id: int, stream: int) -> None:
    """Block until the work on *stream* is done."""
    finish(device_id, resolve(device_id, stream))


def finish(device_id: int, queue: cl.CommandQueue) -> None:
    """Block until the work on *queue* is done."""
    try:
        with InDriver(device_id):
            queue.finish()
    except cl.Error as exc:
        raise translated(exc, "waiting for a queue") from exc


def wait(device_id: int, stream: int, on: int) -> None:
    """Make later work on *stream* wait for the work now on *on*.

    If *stream* is a user's queue it may be about to get memory that other users
    have, too, and nobody says which: it waits for all their queues in its context.
    """
    later = resolve(device_id, stream)
    order(device_id, later, resolve(device_id, on))
    if stream in _users:
        for queue in sharing.all_queues():
            if queue.context == later.context:
                order(device_id, later, queue)


def order(device_id: int, later: cl.CommandQueue, earlier: cl.CommandQueue) -> None:
    """Make later work on one queue wait for the work now on another.

    By an event; the host waits only where the two are of different contexts,
    between which OpenCL has no events.
    """
    if later == earlier:
        return
    if later.context != earlier.context:
        finish(device_id, earlier)
        return
    try:
        with InDriver(device_id):
            event = cl.enqueue_marker(earlier)
            earlier.flush()  # an event of a queue that was never flushed may never come
            cl.enqueue_barrier(later, wait_for=[event])
    except cl.Error as exc:
        raise translated(exc, "ordering two queues") from exc


def users(context: cl.Context) -> list[cl.CommandQueue]:
    """The users' queues that are known here, in *context*."""
    return [queue for queue in list(_users.values()) if queue.context == context]


def known() -> list[cl.CommandQueue]:
    """Every queue that is known here, of all devices and contexts."""
    return [*list(_ours.values()), *list(_users.values()), *list(_elsewhere.values())]


def finish_all(device_id: int, context: cl.Context) -> None:
    """Wait for every queue known here in *context*."""
    for queue in [*list(_ours.values()), *users(context)]:
        if queue.context == context:
            finish(device_id, queue)
