"""How to stage pageable copies on this machine: measured once, when it first matters."""

from __future__ import annotations

import mmap
import os
import threading
import time
from contextlib import ExitStack

from cffi import FFI

from dlbridge.errors import Error

from .capture import relaxed
from .contexts import current, primary
from .driver import call, cu
from .staging import DIRECT, Plan, Stager

__all__ = ["CANDIDATES", "DEFAULT", "SAMPLE", "measure", "plan_for"]

SAMPLE = 32 << 20
"""Bytes copied for a measurement, and the smallest copy that asks for one: all
candidates together take about as long as a dozen such copies."""

DEFAULT = Plan(2 << 20, 2)
CANDIDATES = (
    DIRECT,  # the driver's own staging may be the fastest
    Plan(1 << 20, 1),
    DEFAULT,
    Plan(4 << 20, 2),
    Plan(2 << 20, 4),
    Plan(4 << 20, 4),
)

_measured: dict[tuple[int, str], Plan] = {}
_measuring = threading.Lock()
_ffi = FFI()


def plan_for(device_id: int, nbytes: int, direct: str) -> Plan:
    """The plan for pageable copies of *nbytes*; *direct* is the driver's function for them.

    The first large copy in each direction measures; others meanwhile, and
    small ones before, use `DEFAULT`.
    """
    found = _measured.get((device_id, direct))
    if found is not None:
        return found
    if nbytes < SAMPLE or not _measuring.acquire(blocking=False):
        return DEFAULT
    try:
        if (device_id, direct) not in _measured:
            _measured[device_id, direct] = measure(device_id, direct)
        return _measured[device_id, direct]
    except (Error, OSError):  # no room to measure in, on the device or the host
        return DEFAULT
    finally:
        _measuring.release()


def measure(device_id: int, direct: str) -> Plan:
    """The fastest of `CANDIDATES` with no more threads than this process has cores.

    On a stream and memory of its own, so that nobody's work is waited for, and
    relaxed, so that no capture of another thread is ended.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    plans = [plan for plan in CANDIDATES if plan.threads <= max(cores or 1, 1)]
    with ExitStack() as cleanup:
        host = cleanup.enter_context(mmap.mmap(-1, SAMPLE))
        host[::] = bytes(SAMPLE)  # pages exist before the clock runs
        view = cleanup.enter_context(_ffi.from_buffer(host))
        address = int(_ffi.cast("uintptr_t", view))
        cleanup.enter_context(current(primary(device_id)))
        cleanup.enter_context(relaxed())
        stream = int(call("cuStreamCreate", cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
        cleanup.callback(call, "cuStreamDestroy", stream)
        data = int(call("cuMemAlloc", SAMPLE))
        cleanup.callback(call, "cuMemFree", data)
        stager = Stager(device_id)
        cleanup.callback(stager.close)
        times = {
            plan: min(_seconds(stager, plan, direct, data, address, stream) for _ in range(2))
            for plan in plans
        }
    return min(times, key=lambda plan: times[plan])


def _seconds(
    stager: Stager, plan: Plan, direct: str, data: int, address: int, stream: int
) -> float:
    """How long one copy of `SAMPLE` bytes takes, to its end on the device."""
    start = time.perf_counter()
    try:
        if direct == "cuMemcpyHtoDAsync":
            if plan == DIRECT:
                call(direct, data, address, SAMPLE, stream)
            else:
                stager.to_device(data, address, SAMPLE, stream, plan)
        elif plan == DIRECT:
            call(direct, address, data, SAMPLE, stream)
        else:
            stager.to_host(address, data, SAMPLE, stream, plan)
    finally:
        call("cuStreamSynchronize", stream)  # also after a failure: its memory is freed next
    return time.perf_counter() - start
