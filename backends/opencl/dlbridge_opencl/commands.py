"""The queue to give commands on a buffer to, and their errors translated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyopencl as cl

from dlbridge.errors import ExchangeError

from . import devices, memory, queues, sharing
from .driver import InDriver
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

    __slots__ = ("_device_id", "_doing", "_done_on_return", "_driver", "_queue")

    def __init__(self, device_id: int, stream: int, doing: str, *buffers: cl.MemoryObject) -> None:
        context = buffers[0].context
        queue = queues.resolve(device_id, stream)
        self._device_id = device_id
        self._doing = doing
        self._driver = InDriver(device_id)
        self._done_on_return = queue.context != context
        if self._done_on_return:
            _require_device(context, device_id)
            queues.finish(device_id, queue)
            queue = queues.new(device_id, context)
        for buffer in buffers:
            self._done_on_return |= not memory.is_ours(buffer)
            for other in sharing.queues_of(buffer.int_ptr):
                queues.order(device_id, queue, other)
        self._queue = queue

    def __enter__(self) -> cl.CommandQueue:
        self._driver.__enter__()
        return self._queue

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._driver.__exit__()
        if isinstance(exc, cl.Error):
            raise translated(exc, self._doing) from exc
        if self._done_on_return:
            queues.finish(self._device_id, self._queue)


def _require_device(context: cl.Context, device_id: int) -> None:
    chosen = devices.device(device_id)
    if chosen.handle not in context.devices:
        names = ", ".join(handle.name for handle in context.devices)
        raise ExchangeError(f"the memory is on {names}, not on opencl:{device_id}, {chosen.name}")
