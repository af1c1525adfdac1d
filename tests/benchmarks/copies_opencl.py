"""Times copies between host and an OpenCL device: dlbridge, the best of pyopencl, memcpy.

``python tests/benchmarks/copies_opencl.py [device_id]`` prints the table and writes
it to docs/benchmarks/opencl-copy.md. Run it with nothing else on the machine.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
from copy_table import CopyTable, Ways

import dlbridge as bridge
from dlbridge.protocol import Span

ROOT = Path(__file__).parents[2]
OUT = ROOT / "docs" / "benchmarks" / "opencl-copy.md"
SIZES = [64, 4 << 10, 1 << 20, 64 << 20, 1 << 30]

TEXT = """*dlbridge* is `dlbridge.copy_` between existing tensors, with all that
it checks; *backend* is the backend's own call under it. *pyopencl* is the fastest of
a blocking `enqueue_copy`, one that is waited for with `finish`, and map, memcpy and
unmap. *memcpy* is `numpy.copyto` on the host."""


def ways_of_pyopencl(
    queue: cl.CommandQueue, buffer: cl.Buffer, host: Any, to_device: bool
) -> dict[str, Any]:
    """The ways that one can write with pyopencl alone."""
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
        "pyopencl: blocking": lambda: cl.enqueue_copy(queue, *ends),
        "pyopencl: finish": later,
        "pyopencl: map": mapped,
    }


def main(device_id: int) -> None:
    """Measure, print, write."""
    plugin: Any = bridge.backend("opencl")
    info = plugin.device_info(device_id)
    stream = plugin.current_stream(device_id)
    queue = cl.CommandQueue.from_int_ptr(stream, True)

    def ways(nbytes: int, direction: str) -> Ways:
        host, other = (bridge.empty(nbytes, "uint8") for _ in range(2))
        there = bridge.zeros(nbytes, "uint8", f"opencl:{device_id}")
        array, data = host.numpy(), there.data_ptr()
        array[:] = 1
        other.numpy()[:] = 2
        to_device = direction == "to the device"
        ends = (there, host) if to_device else (host, there)
        call = plugin.copy_from_host if to_device else plugin.copy_to_host

        def backend() -> None:
            call(Span(device_id, data, 0, nbytes), array.data, stream)
            plugin.synchronize(device_id, stream)

        return {
            "dlbridge": lambda: bridge.copy_(*ends),
            "backend": backend,
            "memcpy": lambda: np.copyto(other.numpy(), array),
            **ways_of_pyopencl(queue, cl.Buffer.from_int_ptr(data, True), array, to_device),
        }

    CopyTable(
        "opencl",
        "Copies between host and OpenCL device",
        f"{info['name']} ({info['platform']}, driver {info['driver']})",
        TEXT,
        ("dlbridge", "backend", "pyopencl", "memcpy"),
        ("pyopencl", "memcpy"),
        ("pyopencl",),
    ).write(
        OUT, [n for n in SIZES if n * 2 <= info["memory"] and n <= info["max_allocation"]], ways
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
