"""Times copies between host and Vulkan memory, as it is mapped and staged: beside memcpy.

``python tests/benchmarks/copies_vulkan.py [device_id]`` prints the table and writes
it to docs/benchmarks/vulkan-copy.md. Run it with nothing else on the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from copy_table import CopyTable, Ways
from dlbridge_vulkan import Vulkan

import dlbridge as bridge
from dlbridge.protocol import Span

ROOT = Path(__file__).parents[2]
OUT = ROOT / "docs" / "benchmarks" / "vulkan-copy.md"
SIZES = [64, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20]

TEXT = """*dlbridge* is `dlbridge.copy_` between existing tensors, with all that
it checks; *backend* is the backend's own call under it, with the wait; *staged* is the
same through the ring for memory that is not mapped (`DLBRIDGE_VULKAN_STAGED=1`).
*memcpy* is `numpy.copyto` on the host."""


def main(device_id: int) -> None:
    """Measure, print, write."""
    mapped, staged = Vulkan(), Vulkan(staged=True)
    info, where = mapped.device_info(device_id), f"vulkan:{device_id}"

    def ways(nbytes: int, direction: str) -> Ways:
        host, other = (bridge.empty(nbytes, "uint8") for _ in range(2))
        here, there = (bridge.zeros(nbytes, "uint8", where) for _ in range(2))
        array = host.numpy()
        array[:] = 1
        other.numpy()[:] = 2

        def ours() -> None:
            if direction == "to the host":
                bridge.copy_(host, there)
            else:
                bridge.copy_(there, host if direction == "to the device" else here)
                bridge.synchronize(where)

        return {
            "dlbridge": ours,
            "backend": way_of(mapped, nbytes, direction),
            "staged": way_of(staged, nbytes, direction),
            "memcpy": lambda: np.copyto(other.numpy(), array),
        }

    def way_of(backend: Vulkan, nbytes: int, direction: str) -> Callable[[], None]:
        source, target = (backend.allocate(device_id, nbytes, 256, 0) for _ in range(2))
        array = np.ones(nbytes, "u1")
        span = Span(device_id, source.data, source.offset, nbytes)

        def copy(_held: object = (source, target)) -> None:
            if direction == "to the device":
                backend.copy_from_host(span, array.data, 0)
            elif direction == "to the host":
                backend.copy_to_host(span, array.data, 0)
            else:
                backend.copy(Span(device_id, target.data, target.offset, nbytes), span, 0)
            backend.synchronize(device_id, 0)

        return copy

    shared = "mapped memory" if info["host_memory_shared"] else "memory that is not mapped"
    CopyTable(
        "vulkan",
        "Copies between host and Vulkan memory",
        f"{info['name']} ({info['driver']}), {info['kind']}, {shared}",
        TEXT,
        ("dlbridge", "backend", "staged", "memcpy"),
        ("memcpy",),
    ).write(OUT, SIZES, ways, ("to the device", "to the host", "inside the device"))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
