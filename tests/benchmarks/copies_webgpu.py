"""Times copies between host and a WebGPU device: dlbridge, plain wgpu, memcpy.

``python tests/benchmarks/copies_webgpu.py [device_id]`` prints the table and writes
it to docs/benchmarks/webgpu-copy.md. Run it with nothing else on the machine.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from copy_table import CopyTable, Ways

import dlbridge as bridge

ROOT = Path(__file__).parents[2]
OUT = ROOT / "docs" / "benchmarks" / "webgpu-copy.md"
SIZES = [64, 4 << 10, 1 << 20, 64 << 20, 256 << 20]

TEXT = """*dlbridge* is `dlbridge.copy_` between existing tensors, with all that
it checks, and `dlbridge.synchronize` after an upload. *wgpu* is `queue.write_buffer`,
submitted and waited for, and `queue.read_buffer`, whose result is copied to the same
place. *memcpy* is `numpy.copyto` on the host."""


def main(device_id: int) -> None:
    """Measure, print, write."""
    plugin: Any = bridge.backend("webgpu")
    info, where = plugin.device_info(device_id), f"webgpu:{device_id}"

    def ways(nbytes: int, direction: str) -> Ways:
        host, other = (bridge.empty(nbytes, "uint8") for _ in range(2))
        there = bridge.zeros(nbytes, "uint8", where)
        array = host.numpy()
        array[:] = 1
        other.numpy()[:] = 2
        native = there.to_native()
        queue, buffer = native.device.queue, native.buffer
        fence = native.device.create_buffer(size=4, usage="COPY_SRC")

        def upload() -> None:
            bridge.copy_(there, host)
            bridge.synchronize(where)

        def write() -> None:
            queue.write_buffer(buffer, 0, array)
            queue.read_buffer(fence)  # submits, and waits

        def read() -> None:
            array[:] = np.frombuffer(queue.read_buffer(buffer), "u1")

        to_device = direction == "to the device"
        return {
            "dlbridge": upload if to_device else lambda: bridge.copy_(host, there),
            "wgpu": write if to_device else read,
            "memcpy": lambda: np.copyto(other.numpy(), array),
        }

    CopyTable(
        "webgpu",
        "Copies between host and WebGPU device",
        f"{info['name']} ({info['backend_type']}, {info['description']})",
        TEXT,
        ("dlbridge", "wgpu", "memcpy"),
        ("wgpu", "memcpy"),
        ("wgpu",),
    ).write(OUT, [nbytes for nbytes in SIZES if nbytes <= info["max_buffer_size"]], ways)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
