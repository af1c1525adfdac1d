"""The end of the process: no other thread calls the driver, and the queues are empty.

PoCL 3.1 compiles a kernel in a thread of its own at its first launch. If the
process ends meanwhile, LLVM's data are destroyed while that thread uses them,
and that is a crash (measured: 1 to 3 of 100 exits right after a first launch,
with nothing in PoCL's cache).
"""

from __future__ import annotations

import time

import pyopencl as cl

from . import devices, queues, sharing
from .driver import keep_to_this_thread
from .forking import in_child, keep

__all__ = ["end"]

PATIENCE = 10.0
"""Seconds to wait for the calls of other threads and for the work on the queues, in all."""


def end() -> None:
    """Refuse calls of other threads, and wait for the work on all known queues.

    Some work may never end. Then nothing here is released: a driver may wait for
    the work on a queue, or on a buffer, when it goes.

    Not in a forked child: the queues belong to its parent.
    """
    if in_child():
        return
    deadline = time.monotonic() + PATIENCE
    keep_to_this_thread(deadline)
    empty = [_empty(queue, deadline) for queue in {*queues.known(), *sharing.all_queues()}]
    if not all(empty):
        keep()


def _empty(queue: cl.CommandQueue, deadline: float) -> bool:
    """Wait for *queue*; whether its work has ended.

    Not by ``finish()``: that may wait for ever (a kernel that hangs).
    """
    device_id = devices.find(queue.device)
    if device_id is None or not devices.device(device_id).thread_safe:
        return True  # Oclgrind works in the threads of its callers only
    try:
        event = cl.enqueue_marker(queue)
        queue.flush()
        while event.command_execution_status > cl.command_execution_status.COMPLETE:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.0001)
    except cl.Error:  # a device that was lost has no work left
        pass
    return True
