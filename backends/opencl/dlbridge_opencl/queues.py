"""Command queues as dlbridge's streams: one in-order queue per thread, and the users' queues.

A stream is a ``cl_command_queue`` as an integer; 0 is the thread's own queue.
"""

from __future__ import annotations

import operator
import threading
from typing import Any, NamedTuple

import pyopencl as cl

from . import devices, forking, handles, sharing
from .driver import Call
from .errors import translated
from .forking import inherited

__all__ = [
    "CONTEXTS_KEPT",
    "OURS",
    "Ours",
    "all_in",
    "current",
    "current_stream",
    "elsewhere",
    "finish",
    "is_ours",
    "known",
    "new",
    "normalize_stream",
    "order",
    "resolve",
    "service",
    "synchronize",
    "users",
    "wait",
]

USERS_KEPT = 64
"""How many of the users' queues are kept alive, so that their handles stay valid."""

CONTEXTS_KEPT = 8
"""So many contexts of users get a queue that is made here, and with it live longer than their
users need them. Each takes some of a GPU's memory: with 64 of them, and more in other processes,
NVIDIA's driver gave CL_OUT_OF_HOST_MEMORY for the next (measured on an H100)."""


class Ours(NamedTuple):
    """A queue of a thread, and what the driver would say of it, which takes longer."""

    queue: cl.CommandQueue
    handle: int
    device_id: int
    context: cl.Context
    device: devices.Device


OURS: dict[int, Ours] = inherited({})
"""Handle -> a queue that was made here for a thread. It lives as long as the process: a tensor
may hold its handle when its thread has ended. The next new thread uses the queue then."""

_spare: dict[tuple[int, cl.Context], list[Ours]] = inherited({})
_users: dict[int, cl.CommandQueue] = inherited({})
_elsewhere: dict[tuple[int, cl.Context], cl.CommandQueue] = inherited({})  # users' contexts
_service: dict[tuple[int, cl.Context], cl.CommandQueue] = inherited({})


class _QueuesOfThread(dict[int, Ours]):
    """device_id -> its queue; returns the queues to `_spare` when its thread ends."""

    def __del__(self, spare: dict[Any, list[Ours]] = _spare) -> None:
        # The default outlives the module: its names are cleared when the process ends.
        for device_id, ours in self.items():
            spare.setdefault((device_id, ours.context), []).append(ours)


_thread = threading.local()


def _ours(device_id: int) -> Ours:
    """The thread's queue on the device, in the context of `devices.context`."""
    if forking.forked:  # read here, and in the table: calls would cost more than the rest
        forking.refuse()
    context = devices.CONTEXTS.get(device_id) or devices.context(device_id)
    own: dict[str, _QueuesOfThread] = _thread.__dict__
    # One step makes the dictionary: a finalizer that runs meanwhile may make it first.
    queues = own.get("queues") or own.setdefault("queues", _QueuesOfThread())
    found = queues.get(device_id)
    if found is None or found.context is not context:
        found = queues[device_id] = _take(device_id, context)
    return found


def current(device_id: int) -> cl.CommandQueue:
    """The thread's in-order queue on the device, in the context of `devices.context`."""
    return _ours(device_id).queue


def _take(device_id: int, context: cl.Context) -> Ours:
    try:
        found = _spare[device_id, context].pop()  # atomic, as other threads may do the same
    except LookupError:
        queue = new(device_id, context)
        found = Ours(queue, queue.int_ptr, device_id, context, devices.device(device_id))
    # The context by the same name that it has now: an equal one may have another.
    ours = OURS[found.handle] = found._replace(context=context)
    return ours


def new(device_id: int, context: cl.Context) -> cl.CommandQueue:
    """A new in-order queue in *context*, which only the caller knows."""
    chosen = devices.device(device_id)
    try:
        with chosen.lock, Call():
            return cl.CommandQueue(context, chosen.handle)
    except cl.Error as exc:
        raise translated(exc, f"making a queue on {chosen.name}") from exc


def elsewhere(device_id: int, context: cl.Context) -> cl.CommandQueue:
    """The in-order queue in a user's *context* for all arrays that are handed out there."""
    queue = _elsewhere.get((device_id, context))
    if queue is None:
        # One step: another thread may have made one meanwhile, and then both use that.
        queue = _elsewhere.setdefault((device_id, context), new(device_id, context))
        _forget_oldest(_elsewhere, CONTEXTS_KEPT)
    return queue


def service(device_id: int, context: cl.Context) -> cl.CommandQueue:
    """The queue for commands that depend on no others, so that none of them waits long.

    No stream is this queue, and no command on it waits for an event.
    """
    queue = _service.get((device_id, context))
    if queue is None:
        queue = _service.setdefault((device_id, context), new(device_id, context))
        _forget_oldest(_service, CONTEXTS_KEPT)
    return queue


def current_stream(device_id: int) -> int:
    """The handle of this thread's queue."""
    return _ours(device_id).handle


def is_ours(stream: int, context: cl.Context) -> bool:
    """Whether *stream* is a queue in *context* that was made here, and so is never released."""
    ours = OURS.get(stream)
    # Most are the same object: to compare two asks the driver.
    return ours is not None and (ours.context is context or ours.context == context)


def resolve(device_id: int, stream: int) -> cl.CommandQueue:
    """The queue *stream* of the device; 0 is `current`."""
    if forking.forked:  # read here: a call at each step would cost more than the step
        forking.refuse()
    if stream == 0:
        return current(device_id)
    ours = OURS.get(stream)
    if ours is not None:
        return ours.queue
    return _users.get(stream) or _adopt(device_id, stream)


def normalize_stream(device_id: int, stream: object) -> int:
    """The handle for ``stream=``: None or 0 the thread's queue, -1 none, or a queue.

    A queue is a `pyopencl.CommandQueue` or a ``cl_command_queue`` as an
    integer, in order and on this device. It must live as long as work goes to
    it, as every stream must; the last few are also kept alive here. An integer
    that is not an OpenCL object is refused. An object of another kind is refused
    only if the driver notices it.

    Exports ask this for the queue of their consumer, so everything that is
    allocated now may be about to get a consumer (`sharing.may_be_exported`).
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
            f"opencl: {stream!r} is not a stream; pass None, -1, a pyopencl.CommandQueue, "
            "or a cl_command_queue as an integer"
        )
    if handle == -1:
        return -1
    if handle == 0:
        return current_stream(device_id)
    if handle not in OURS:
        _adopt(device_id, handle)
    return handle


def _adopt(device_id: int, handle: int) -> cl.CommandQueue:
    if not handles.is_object(handle):
        raise ValueError(
            f"opencl: stream {handle:#x} is not a cl_command_queue of the drivers in use; "
            "pass None, -1, a pyopencl.CommandQueue or its int_ptr"
        )
    try:
        queue = cl.CommandQueue.from_int_ptr(handle, True)
        _keep(device_id, queue)
    except cl.Error as exc:  # an object of another kind
        raise ValueError(f"opencl: stream {handle:#x} is not a cl_command_queue ({exc})") from exc
    return queue


def _keep(device_id: int, queue: cl.CommandQueue) -> int:
    chosen = devices.device(device_id)
    if queue.device is None:  # the answer of an object of another kind
        raise ValueError(f"opencl: stream {queue.int_ptr:#x} is not a cl_command_queue")
    if queue.device != chosen.handle:
        raise ValueError(f"opencl: stream {queue!r} is on {queue.device.name}, not {chosen.name}")
    if queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE:
        raise ValueError(
            f"opencl: {queue!r} runs its commands out of order, and a stream must run them in "
            "order; make a queue without OUT_OF_ORDER_EXEC_MODE_ENABLE"
        )
    handle: int = queue.int_ptr
    if handle not in OURS:
        _users[handle] = queue
    _forget_oldest(_users, USERS_KEPT)
    return handle


def _forget_oldest(kept: dict[Any, cl.CommandQueue], limit: int) -> None:
    # list() is one step, so that no other thread can change the dict meanwhile.
    for oldest in list(kept)[:-limit]:
        kept.pop(oldest, None)


def synchronize(device_id: int, stream: int) -> None:
    """Block until the work on *stream* is done."""
    finish(device_id, resolve(device_id, stream))


def finish(device_id: int, queue: cl.CommandQueue) -> None:
    """Block until the work on *queue* is done."""
    try:
        with devices.device(device_id).lock, Call():
            queue.finish()
    except cl.Error as exc:
        raise translated(exc, "waiting for a queue") from exc


def wait(device_id: int, stream: int, on: int) -> None:
    """Make later work on *stream* wait for the work now on *on*.

    A user's queue may get memory next that other users have, too, and nothing
    says which memory: it waits for all queues of users in its context.
    """
    later = resolve(device_id, stream)
    order(device_id, later, resolve(device_id, on))
    if stream in _users:
        for queue in sharing.all_queues():
            if queue.context == later.context:
                order(device_id, later, queue)


def order(device_id: int, later: cl.CommandQueue, earlier: cl.CommandQueue) -> None:
    """Make later work on one queue wait for the work now on another.

    By an event. The host waits only if the two belong to different contexts, as
    an event is valid in one context only.
    """
    if later == earlier:
        return
    if later.context != earlier.context:
        finish(device_id, earlier)
        return
    try:
        with devices.device(device_id).lock, Call():
            event = cl.enqueue_marker(earlier)
            # OpenCL 3.0, 5.15: the queue of an event that another queue waits for must be flushed.
            earlier.flush()
            cl.enqueue_barrier(later, wait_for=[event])
    except cl.Error as exc:
        raise translated(exc, "ordering two queues") from exc


def users(context: cl.Context) -> list[cl.CommandQueue]:
    """The known queues of users in *context*."""
    return [queue for queue in list(_users.values()) if queue.context == context]


def known() -> list[cl.CommandQueue]:
    """All known queues, of all devices and contexts."""
    ours = [each.queue for each in list(OURS.values())]
    tables = (_users, _elsewhere, _service)
    return ours + [queue for table in tables for queue in list(table.values())]


def all_in(context: cl.Context) -> list[cl.CommandQueue]:
    """All known queues in *context* that may have work on memory."""
    ours = [each.queue for each in list(OURS.values()) if each.context == context]
    return [*ours, *users(context)]
