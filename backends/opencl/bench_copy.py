"""Times copies between host and an OpenCL device: dlbridge, the best of pyopencl, memcpy.

``python backends/opencl/bench_copy.py [device_id]`` prints the table and writes
it to docs/benchmarks/opencl-copy.md. Run it with nothing else on the machine.
"""

from __future__ import annotations

import datetime
import os
import platform
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

import dlbridge as bridge

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = [64, 4 << 10, 1 << 20, 64 << 20, 1 << 30]
SECONDS = 3.0
"""For each size and direction: rounds are repeated so long, but `LEAST` times."""
LEAST = 7
CALLS = 200
"""In one round, for what is small: some milliseconds."""
OUT = Path(__file__).parents[2] / "docs" / "benchmarks" / "opencl-copy.md"

HEAD = """# Copies between host and OpenCL device

Made by `python backends/opencl/bench_copy.py` on {date}; do not edit.

- {machine}, load average {load:.1f} at the start
- device: {device}
- Python {python}, numpy {numpy}, pyopencl {pyopencl}, dlbridge {dlbridge}

All memory is allocated and touched before, and all ways copy between the same
buffer and the same host memory: which pages a buffer has makes more difference
than what is measured. Every way takes its turn in every round, in an order that
changes; the figure is the time of one call, the mean over its best round.
*pyopencl* is the fastest of a blocking `enqueue_copy`, one that is waited for with
`finish`, and map, memcpy and unmap.
*dlbridge* is `dlbridge.copy_` between existing tensors, with all that it checks;
*backend* is the backend's own call under it. *memcpy* is `numpy.copyto` on the
host.

| bytes | direction | dlbridge | backend | pyopencl | memcpy | speed / pyopencl | / memcpy |
|---|---|---|---|---|---|---|---|
"""


def best(ways: dict[str, Callable[[], object]], calls: int) -> dict[str, float]:
    """Seconds of one call of each way, in its best round of *calls*, in alternation."""
    times = dict.fromkeys(ways, float("inf"))
    order = list(ways)
    end, rounds = time.perf_counter() + SECONDS, 0
    while rounds < LEAST or time.perf_counter() < end:
        random.shuffle(order)  # what comes next finds memory in the cache
        for name in order:
            way = ways[name]
            start = time.perf_counter()
            for _ in range(calls):
                way()
            times[name] = min(times[name], (time.perf_counter() - start) / calls)
        rounds += 1
    return times


def ways_of_pyopencl(
    queue: cl.CommandQueue, buffer: cl.Buffer, host: Any, to_device: bool
) -> dict[str, Callable[[], object]]:
    """What one can write with pyopencl alone."""
    ends = (buffer, host) if to_device else (host, buffer)
    access = cl.map_flags.WRITE_INVALIDATE_REGION if to_device else cl.map_flags.READ

    def later() -> None:
        event = cl.enqueue_copy(queue, *ends, is_blocking=False)
        queue.finish()
        del event

    def mapped() -> None:
        view, _ = cl.enqueue_map_buffer(queue, buffer, access, 0, host.shape, host.dtype)
        np.copyto(*((view, host) if to_device else (host, view)))
        view.base.release(queue)
        queue.finish()

    return {
        "enqueue_copy": lambda: cl.enqueue_copy(queue, *ends),
        "enqueue_copy and finish": later,
        "map": mapped,
    }


def measure(device_id: int, nbytes: int, to_device: bool) -> dict[str, float]:
    """Seconds for one size in one direction, by each way."""
    plugin: Any = bridge.backend("opencl")
    stream = plugin.current_stream(device_id)
    queue = cl.CommandQueue.from_int_ptr(stream, True)
    host, other = (bridge.empty(nbytes, "uint8") for _ in range(2))
    there = bridge.zeros(nbytes, "uint8", f"opencl:{device_id}")
    array, data = host.numpy(), there.data_ptr()
    array[:] = 1
    other.numpy()[:] = 2
    buffer = cl.Buffer.from_int_ptr(data, True)
    call = plugin.copy_from_host if to_device else plugin.copy_to_host

    def backend() -> None:
        call(device_id, data, 0, array.data, stream)
        plugin.synchronize(device_id, stream)

    ends = (there, host) if to_device else (host, there)
    ways = ways_of_pyopencl(queue, buffer, array, to_device)
    times = best(
        {
            "dlbridge": lambda: bridge.copy_(*ends),
            "backend": backend,
            "memcpy": lambda: np.copyto(other.numpy(), array),
            **ways,
        },
        calls=max(1, CALLS * 4096 // max(nbytes, 4096)),
    )
    times["pyopencl"] = min(times[name] for name in ways)
    return times


def figure(nbytes: int, seconds: float) -> str:
    """Microseconds for what is small, GB/s for what is large."""
    if nbytes <= 1 << 20:
        return f"{seconds * 1e6:.1f} us"
    return f"{nbytes / seconds / 1e9:.1f} GB/s"


def main(device_id: int) -> None:
    """Measure, print, write."""
    plugin: Any = bridge.backend("opencl")
    info = plugin.device_info(device_id)
    table = HEAD.format(
        date=datetime.datetime.now(datetime.timezone.utc).date(),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan"),
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        device=f"{info['name']} ({info['platform']}, driver {info['driver']})",
        python=platform.python_version(),
        numpy=np.__version__,
        pyopencl=cl.VERSION_TEXT,
        dlbridge=bridge.__version__,
    )
    print(table, end="")
    for nbytes in SIZES:
        if nbytes * 2 > info["memory"] or nbytes > info["max_allocation"]:
            continue
        for to_device in (True, False):
            times = measure(device_id, nbytes, to_device)
            cells = [
                figure(nbytes, times[k]) for k in ("dlbridge", "backend", "pyopencl", "memcpy")
            ]
            ratios = [f"{times[k] / times['dlbridge']:.2f}" for k in ("pyopencl", "memcpy")]
            direction = "to the device" if to_device else "to the host"
            row = f"| {nbytes} | {direction} | {' | '.join(cells + ratios)} |\n"
            print(row, end="", flush=True)
            table += row
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(table)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
