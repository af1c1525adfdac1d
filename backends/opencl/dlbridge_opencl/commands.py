"""The queue to give commands on a buffer to, and their errors translated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyopencl as cl

from dlbridge.errors import ExchangeError

from . import devices, ending, memory, queues, sharing
from .errors import translated

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Commands"]


class Commands:
    """Commands on *buffers* of one context: ``with`` gives the queue for them.

    That is the queue *stream* if it is of their context. Buffers of another
    context get a queue made for the occasion, after the work on *stream*, and
    the commands are done on return.

    On a buffer that users have, too, they begin after the work that is now on
    the users' queues (`sharing`). If it was not made here they are also done on
    return: its owner knows nothing of our queues.
    """

    __slots__ = ("_doing", "_done_on_return", "_queue")

    def __init__(self, device_id: int, stream: int, doing: str, *buffers: cl.MemoryObject) -> None:
        context = buffers[0].context
        queue = queues.resolve(device_id, stream)
        self._doing = doing
        self._done_on_return = queue.context != context
        if self._done_on_return:
            queues.finish(queue)
            queue = queues.new(context, _device_in(context, device_id))
        for buffer in buffers:
            self._done_on_return |= not memory.is_ours(buffer)
            for other in sharing.queues_of(buffer.int_ptr):
                queues.order(queue, other)
        self._queue = queue

    def __enter__(self) -> cl.CommandQueue:
        ending.enter(self)
        return self._queue

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        ending.leave(self)
        if isinstance(exc, cl.Error):
            raise translated(exc, self._doing) from exc
        if self._done_on_return:
            queues.finish(self._queue)


def _device_in(context: cl.Context, device_id: int) -> cl.Device:
    chosen = devices.device(device_id)
    if chosen.handle not in context.devices:
        names = ", ".join(handle.name for handle in context.devices)
        raise ExchangeError(f"the memory is on {names}, not on opencl:{device_id}, {chosen.name}")
    return chosen.handle
