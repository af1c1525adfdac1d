"""Command queues as dlbridge's streams: one in-order queue per thread, and the users' queues.

A stream is a ``cl_command_queue`` as an integer; 0 is the thread's own queue.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import pyopencl as cl

from dlbridge.errors import ExchangeError
from dlbridge.kit.resources import recall, remember, shared_lock
from dlbridge.kit.streams import NO_ORDER, StreamRules

from . import devices, foreign
from .driver import context_of, lasting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_CONTEXT = cl.command_queue_info.CONTEXT

USERS_KEPT = 64
"""How many of the users' queues are kept alive, so that their handles stay valid."""

CONTEXTS_KEPT = 8
"""So many contexts of users get a queue that is made here, and with it live longer than their
users need them. Each takes some of a GPU's memory: with 64 of them, and more in other processes,
NVIDIA's driver gave CL_OUT_OF_HOST_MEMORY for the next (measured on an H100)."""


class Stream(NamedTuple):
    """A queue, and what the driver would say of it, which takes longer."""

    queue: cl.CommandQueue
    handle: int
    context: cl.Context
    device: devices.Device


OURS: dict[int, Stream] = lasting({})
"""Handle -> a queue that was made here for a thread. It lives as long as the process: a tensor
may hold its handle when its thread has ended. The next new thread uses the queue then."""

_spare: dict[tuple[int, cl.Context], list[Stream]] = lasting({})
_users: dict[int, Stream] = lasting({})
_elsewhere: dict[tuple[int, cl.Context], cl.CommandQueue] = lasting({})  # users' contexts
_service: dict[tuple[int, cl.Context], cl.CommandQueue] = lasting({})


class _QueuesOfThread(dict[int, Stream]):
    """device_id -> its queue; returns the queues to `_spare` when its thread ends."""

    def __del__(self, spare: dict[Any, list[Stream]] = _spare) -> None:
        # The default outlives the module: its names are cleared when the process ends.
        for device_id, ours in self.items():
            spare.setdefault((device_id, ours.context), []).append(ours)


_thread = threading.local()


def _current(device_id: int) -> Stream:
    """The thread's queue on the device, in the context of `devices.context`."""
    context = devices.context(device_id)
    own: dict[str, _QueuesOfThread] = _thread.__dict__
    # One step makes the dictionary: a finalizer that runs meanwhile may make it first.
    queues = own.get("queues") or own.setdefault("queues", _QueuesOfThread())
    queue = queues.get(device_id)
    if queue is None or queue.context is not context:
        queue = queues[device_id] = _take(device_id, context)
    return queue


def _take(device_id: int, context: cl.Context) -> Stream:
    try:
        queue = _spare[device_id, context].pop()  # atomic, as other threads may do the same
    except LookupError:
        queue = _described(device_id, new(device_id, context))
    # The context by the same name that it has now: an equal one may have another.
    ours = OURS[queue.handle] = queue._replace(context=context)
    return ours


def _described(device_id: int, queue: cl.CommandQueue) -> Stream:
    context = context_of(queue, _CONTEXT)
    return Stream(queue, queue.int_ptr, context, devices.device(device_id))


def new(device_id: int, context: cl.Context) -> cl.CommandQueue:
    """A new in-order queue in *context*, which only the caller knows.

    ExchangeError if the device is none of the context's. A context of another driver must not be
    given to this one: PoCL 3.1 reads it as its own, and that is a crash (measured).
    """
    chosen = devices.device(device_id)
    if chosen.handle not in context.devices:
        names = ", ".join(handle.name for handle in context.devices)
        raise ExchangeError(
            f"opencl: the memory is on {names}, not on opencl:{device_id}, {chosen.name}; use it "
            "by the number of its own device"
        )
    doing = f"making a queue on {chosen.name}"
    queue: cl.CommandQueue = chosen.driver.run(doing, cl.CommandQueue, context, chosen.handle)
    return queue


def elsewhere(device_id: int, context: cl.Context) -> cl.CommandQueue:
    """The in-order queue in a user's *context* for all arrays that are handed out there."""
    return _one_for_each(_elsewhere, device_id, context)


def service(device_id: int, context: cl.Context) -> cl.CommandQueue:
    """The queue for commands that depend on no others, so that none of them waits long.

    No stream is this queue, and no command on it waits for an event.
    """
    try:
        return _service[device_id, context]
    except KeyError:
        return _one_for_each(_service, device_id, context)


def _one_for_each(
    queues: dict[tuple[int, cl.Context], cl.CommandQueue], device_id: int, context: cl.Context
) -> cl.CommandQueue:
    queue = queues.get((device_id, context))
    if queue is None:
        # One step: another thread may have made one meanwhile, and then both use that.
        queue = queues.setdefault((device_id, context), new(device_id, context))
        _forget_oldest(queues, CONTEXTS_KEPT)
    return queue


def _forget_oldest(kept: dict[Any, Any], limit: int) -> None:
    # list() is one step, so that no other thread can change the dict meanwhile.
    for oldest in list(kept)[:-limit]:
        kept.pop(oldest, None)


def current_stream(device_id: int) -> int:
    """The handle of this thread's queue."""
    try:  # mostly it is there; each call less counts here
        queue: Stream = _thread.queues[device_id]
        if queue.context is devices.CONTEXTS[device_id]:
            return queue.handle
    except (AttributeError, KeyError):
        pass
    return _current(device_id).handle


def resolve(device_id: int, stream: int) -> Stream:
    """The queue *stream* of the device; 0 is this thread's own."""
    if stream == 0:
        return _current(device_id)
    return OURS.get(stream) or _users.get(stream) or _adopt(device_id, stream)


def normalize_stream(device_id: int, stream: object) -> int:
    """The handle for ``stream=``: None or 0 the thread's queue, -1 none, or a queue.

    A queue is a `pyopencl.CommandQueue` or a ``cl_command_queue`` as an
    integer, in order and on this device. It must live as long as work goes to
    it, as every stream must; the last few are also kept alive here. An integer
    that is not an OpenCL object is refused. An object of another kind is refused
    only if the driver notices it.
    """
    if isinstance(stream, cl.CommandQueue):
        return _keep(device_id, stream).handle
    handle = _RULES.normalize(stream)
    if handle == 0:
        return current_stream(device_id)
    ours = OURS.get(handle)
    if ours is not None and ours.device.number != device_id:
        raise ValueError(
            f"opencl: stream {handle:#x} is on opencl:{ours.device.number}, not on "
            f"opencl:{device_id}"
        )
    if handle != NO_ORDER and ours is None:
        _adopt(device_id, handle)
    return handle


_RULES = StreamRules(
    "OpenCL",
    default=0,
    advice="-1, a pyopencl.CommandQueue, or a cl_command_queue as an integer",
)


def _adopt(device_id: int, handle: int) -> Stream:
    if not foreign.is_object(handle):
        raise _no_queue(device_id, handle, " of the drivers in use")
    try:
        return _keep(device_id, cl.CommandQueue.from_int_ptr(handle, True))
    except cl.Error as exc:  # an object of another kind
        raise _no_queue(device_id, handle, f" ({exc})") from exc


def _no_queue(device_id: int, handle: int, why: str = "") -> ValueError:
    """The error for a number that is no queue."""
    return ValueError(
        f"opencl:{device_id}: stream {handle:#x} is not a cl_command_queue{why}; "
        "pass None, -1, a pyopencl.CommandQueue or its int_ptr"
    )


def _keep(device_id: int, queue: cl.CommandQueue) -> Stream:
    chosen = devices.device(device_id)
    if queue.device is None:  # the answer of an object of another kind
        raise _no_queue(device_id, queue.int_ptr)
    if queue.device != chosen.handle:
        number = devices.find(queue.device)
        way = "" if number is None else f"; name its device: 'opencl:{number}'"
        raise ValueError(
            f"opencl:{device_id}: stream {queue!r} is on {queue.device.name}, not "
            f"{chosen.name}{way}"
        )
    if queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE:
        raise ValueError(
            f"opencl:{device_id}: {queue!r} runs its commands out of order, and a stream must run "
            "them in order; make a queue without OUT_OF_ORDER_EXEC_MODE_ENABLE"
        )
    stream = _described(device_id, queue)
    if stream.handle not in OURS:
        _users[stream.handle] = stream
        _forget_oldest(_users, USERS_KEPT)
    return stream


# Order ----------------------------------------------------------------------------


def synchronize(device_id: int, stream: int) -> None:
    """Block until the work on *stream* is done."""
    at = OURS[stream] if stream in OURS else resolve(device_id, stream)
    at.device.driver.run("waiting for a queue", at.queue.finish)


def finish(device_id: int, queue: cl.CommandQueue) -> None:
    """Block until the work on *queue* is done."""
    devices.device(device_id).driver.run("waiting for a queue", queue.finish)


def wait(device_id: int, stream: int, on: int) -> None:
    """Make later work on *stream* wait for the work now on *on*.

    A user's queue may get memory next that other users have, too, and nothing
    says which memory: it waits for all queues of users in its context.
    """
    later = resolve(device_id, stream)
    order(device_id, later.queue, resolve(device_id, on).queue)
    if stream in _users:
        for queue in _all_noted():
            if context_of(queue, _CONTEXT) == later.context:
                order(device_id, later.queue, queue)


def order(device_id: int, later: cl.CommandQueue, earlier: cl.CommandQueue) -> None:
    """Make later work on one queue wait for the work now on another.

    By an event. The host waits only if the two belong to different contexts, as
    an event is valid in one context only.
    """
    if later == earlier:
        return
    if context_of(later, _CONTEXT) != context_of(earlier, _CONTEXT):
        finish(device_id, earlier)
        return

    def by_event() -> None:
        event = cl.enqueue_marker(earlier)
        # OpenCL 3.0, 5.15: the queue of an event that another queue waits for must be flushed.
        earlier.flush()
        cl.enqueue_barrier(later, wait_for=[event])

    devices.device(device_id).driver.run("ordering two queues", by_event)


def users(context: cl.Context) -> list[cl.CommandQueue]:
    """The known queues of users in *context*."""
    return _queues_in(context, _users)


def all_in(context: cl.Context) -> list[cl.CommandQueue]:
    """All known queues in *context* that may have work on memory."""
    return _queues_in(context, OURS) + users(context)


def _queues_in(context: cl.Context, streams: dict[int, Stream]) -> list[cl.CommandQueue]:
    return [each.queue for each in list(streams.values()) if each.context == context]


# Users of one memory --------------------------------------------------------------


class Users:
    """The users' queues that may have work on one memory: ours on it comes after theirs."""

    __slots__ = ("__weakref__", "queues")

    def __init__(self) -> None:
        self.queues: list[cl.CommandQueue] = []


users_of: dict[int, ref[Users]] = {}
"""data -> its users, as long as somebody keeps them: memory that was given out, or the owner of
a user's array."""
_users_lock = shared_lock()


def note_user(data: int, queue: cl.CommandQueue) -> Users:
    """Note that a user may have work on *data* on *queue*, as long as the result lives.

    A `pyopencl.array.Array` has a queue of its own, whether it came from the user
    or was given to the user here.
    """
    with _users_lock:
        users = recall(users_of, data)
        if users is None:
            remember(users_of, data, users := Users())
        if queue not in users.queues:
            users.queues.append(queue)
        return users


def _all_noted() -> set[cl.CommandQueue]:
    users = [known() for known in users_of.copy().values()]
    return {queue for each in users if each is not None for queue in list(each.queues)}


# The end of the process -----------------------------------------------------------


def _known() -> Iterable[cl.CommandQueue]:
    streams = [*OURS.values(), *_users.values()]
    made = [*_elsewhere.values(), *_service.values()]
    return {*made, *(each.queue for each in streams), *_all_noted()}


def pending() -> Iterator[Callable[[], bool]]:
    """Of each known queue: whether the work that is on it now is done, to be waited for at exit.

    PoCL 3.1 compiles a kernel in a thread of its own at its first launch. If the
    process ends meanwhile, LLVM's data are destroyed while that thread uses them,
    and that is a crash (measured: 1 to 3 of 100 exits right after a first launch,
    with nothing in PoCL's cache). Not by ``finish()``, which may wait for ever: some work
    never ends, and a driver may wait for it when a queue or a buffer goes.
    """
    for queue in _known():
        device_id = devices.find(queue.device)
        if device_id is None or not devices.device(device_id).thread_safe:
            continue  # Oclgrind works in the threads of its callers only
        try:
            event = cl.enqueue_marker(queue)
            queue.flush()
        except cl.Error:  # a device that was lost has no work left
            continue
        yield partial(_is_complete, event)


def _is_complete(event: cl.Event) -> bool:
    return bool(event.command_execution_status <= cl.command_execution_status.COMPLETE)
