"""Run commands on buffers: on which queue, after which work, and their errors translated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyopencl as cl

from dlbridge.errors import ExchangeError

from . import devices, forking, memory, queues, sharing
from .driver import Call
from .errors import translated

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.protocol import Span

    from .memory import Owned
    from .queues import Ours

__all__ = ["plain", "run"]


def plain(span: Span, stream: int) -> tuple[Ours, Owned] | None:
    """The queue and the buffer for a command on *span* that needs nothing beside itself.

    So it is where both were made here, for one context, no user has the buffer, and the
    driver takes calls of several threads. None otherwise, and for bytes that are not there:
    `run` and `memory.buffer_of` then do what is needed, or say what is wrong.
    """
    device_id, data, offset, nbytes = span
    owned, ours = memory.OWNED.get(data), queues.OURS.get(stream)
    if (
        owned is None
        or ours is None
        or owned.context is not ours.context
        or ours.device_id != device_id
        or not 0 <= offset <= owned.nbytes - nbytes
        or data in sharing.QUEUES
        or not ours.device.thread_safe
        or forking.forked
    ):
        return None
    return ours, owned


def run(
    device_id: int,
    stream: int,
    doing: str,
    buffers: tuple[cl.MemoryObject, ...],
    enqueue: Callable[[cl.CommandQueue], object],
    *,
    blocks: bool = False,
) -> None:
    """Call *enqueue* with the queue for commands on *buffers*, which are of one context.

    That is the queue *stream* if it is of their context. For buffers of another
    context it is a new queue, the commands come after the work on *stream*, and
    they are done on return.

    If users have one of the buffers, too, the commands come after the work that is
    now on the users' queues (`sharing`). If one was not made here, they are also
    done on return: its owner knows nothing of our queues.

    *doing* names the commands in errors. *blocks* says that the last command waits
    for all of them; otherwise the queue is flushed, as drivers may keep commands
    back until then (OpenCL 3.0, 5.15).
    """
    context = buffers[0].context
    queue = queues.resolve(device_id, stream)
    done_on_return = queue.context != context
    if done_on_return:
        _require_device(context, device_id)
        queues.finish(device_id, queue)
        queue = queues.new(device_id, context)
    for buffer in buffers:
        done_on_return |= not memory.is_ours(buffer)
        for other in sharing.queues_of(buffer.int_ptr):
            queues.order(device_id, queue, other)
    try:
        with devices.device(device_id).lock, Call():
            enqueue(queue)
            if not blocks and not done_on_return:
                queue.flush()
    except cl.Error as exc:
        raise translated(exc, doing) from exc
    finally:
        if done_on_return:
            queues.finish(device_id, queue)


def _require_device(context: cl.Context, device_id: int) -> None:
    chosen = devices.device(device_id)
    if chosen.handle not in context.devices:
        names = ", ".join(handle.name for handle in context.devices)
        raise ExchangeError(f"the memory is on {names}, not on opencl:{device_id}, {chosen.name}")
