"""Times copies between host and a SYCL device: dlbridge, the best of dpctl, memcpy.

``python tests/benchmarks/copies_oneapi.py [device_id]`` prints the table and writes
it to docs/benchmarks/oneapi-copy.md. Run it with nothing else on the machine.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import dpctl
import dpctl.memory
import numpy as np
from copy_table import CopyTable, Ways

import dlbridge as bridge

ROOT = Path(__file__).parents[2]
OUT = ROOT / "docs" / "benchmarks" / "oneapi-copy.md"
SIZES = [64, 4 << 10, 1 << 20, 64 << 20, 1 << 30]

TEXT = """*dlbridge* is `dlbridge.copy_` between existing tensors, on the
device's default queue, with all that it checks; *own queue* is the same on an in-order
queue. *dpctl* is the faster of `MemoryUSMDevice.copy_from_host` (`copy_to_host`) and
`SyclQueue.memcpy`. *memcpy* is `numpy.copyto` on the host."""


def main(device_id: int) -> None:
    """Measure, print, write."""
    plugin: Any = bridge.backend("oneapi")
    info, where = plugin.device_info(device_id), f"oneapi:{device_id}"
    queue = plugin.queue(device_id)
    own = dpctl.SyclQueue(queue.sycl_device, property="in_order")

    def ways(nbytes: int, direction: str) -> Ways:
        host, other = (bridge.empty(nbytes, "uint8") for _ in range(2))
        memory = dpctl.memory.MemoryUSMDevice(nbytes, queue=queue)
        there = bridge.asarray(memory)
        array = host.numpy()
        array[:] = 1
        other.numpy()[:] = 2
        memory.memset(3)
        to_device = direction == "to the device"
        ends = (there, host) if to_device else (host, there)
        given = (memory, array) if to_device else (array, memory)
        method = memory.copy_from_host if to_device else memory.copy_to_host

        def in_order() -> None:
            with bridge.use_stream(where, own):
                bridge.copy_(*ends)

        return {
            "dlbridge": lambda: bridge.copy_(*ends),
            "own queue": in_order,
            "dpctl: method": lambda: method(array),
            "dpctl: memcpy": lambda: queue.memcpy(*given, nbytes),
            "memcpy": lambda: np.copyto(other.numpy(), array),
        }

    CopyTable(
        "oneapi",
        "Copies between host and SYCL device",
        f"{info['name']} ({info['filter']}, driver {info['driver']})",
        TEXT,
        ("dlbridge", "own queue", "dpctl", "memcpy"),
        ("dpctl", "memcpy"),
        ("dpctl",),
    ).write(OUT, SIZES, ways)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
