"""The end of the process: no other thread in the driver, and the queues empty.

PoCL 3.1 compiles a kernel in a thread of its own when it first runs. If the
process ends meanwhile, LLVM's data are gone under it, and that is a crash
(measured: 1 to 3 of 100 exits right after a first launch, with nothing in
PoCL's cache).
"""

from __future__ import annotations

import time

import pyopencl as cl

from . import devices, queues, sharing
from .driver import keep_to_this_thread

__all__ = ["end"]

PATIENCE = 10.0
"""Seconds to wait for the calls of other threads and for the work on the queues, in all."""


def end() -> None:
    """Keep other threads out of the driver, and wait for the work on all known queues."""
    deadline = time.monotonic() + PATIENCE
    keep_to_this_thread(deadline)
    for queue in {*queues.known(), *sharing.all_queues()}:
        _empty(queue, deadline)


def _empty(queue: cl.CommandQueue, deadline: float) -> None:
    """Wait for *queue*; not by ``finish()``, which may wait for ever (a kernel that hangs)."""
    device_id = devices.find(queue.device)
    if device_id is None or not devices.device(device_id).thread_safe:
        return  # Oclgrind works in the callers' threads alone
    try:
        event = cl.enqueue_marker(queue)
        queue.flush()
        while event.command_execution_status > cl.command_execution_status.COMPLETE:
            if time.monotonic() > deadline:
                return
            time.sleep(0.0001)
    except cl.Error:  # a lost device has no work left
        return
