"""Time copies between host and Vulkan memory, beside the host's own memcpy.

    python backends/vulkan/bench_copy.py [--device 0] [--write docs/benchmarks/vulkan-copy.md]

Prints a table; --write puts it into a file, with the machine it was taken on.
The host's own copy is np.copyto between two arrays that are in use already, as
the device's memory is. Each figure is the best of several runs.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
from dlbridge_vulkan import Vulkan

KIB, MIB = 1 << 10, 1 << 20
SIZES = [4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB]
ROUNDS = 25

Row = dict[str, float]


def race(ways: dict[str, Callable[[], object]], seconds: float = 0.005) -> Row:
    """Seconds of one call of each way, best of `ROUNDS`.

    The ways take turns, so that a busy moment of the machine hits all of them.
    """
    calls = {}
    for name, function in ways.items():
        function()
        start = time.perf_counter()
        function()
        calls[name] = max(1, int(seconds / (time.perf_counter() - start)))
    found = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, function in ways.items():
            start = time.perf_counter()
            for _ in range(calls[name]):
                function()
            found[name] = min(found[name], (time.perf_counter() - start) / calls[name])
    return found


def measure(backend: Vulkan, device_id: int, nbytes: int) -> Row:
    """Seconds for each way of moving *nbytes* bytes."""
    source = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
    target = np.zeros_like(source)
    outward, inward = memoryview(source), memoryview(target)
    data = backend.allocate(device_id, nbytes, 256, 0)
    other = backend.allocate(device_id, nbytes, 256, 0)

    def write() -> None:
        backend.copy_from_host(device_id, data, 0, outward, 0)
        backend.synchronize(device_id, 0)

    def read() -> None:
        backend.copy_to_host(device_id, data, 0, inward, 0)
        backend.synchronize(device_id, 0)

    def inside() -> None:
        backend.copy(device_id, other, 0, device_id, data, 0, nbytes, 0)
        backend.synchronize(device_id, 0)

    row = race(
        {
            "np.copyto": lambda: np.copyto(target, source),
            "to the device": write,
            "to the host": read,
            "inside the device": inside,
        }
    )
    assert (target == source).all(), "the copy is wrong; no figure counts"
    backend.free(device_id, data, 0)
    backend.free(device_id, other, 0)
    return row


def cell(seconds: float, nbytes: int, host: float) -> str:
    """Time below 64 KiB, speed above, and how it compares with the host's own copy."""
    if nbytes < 64 * KIB:
        return f"{seconds * 1e6:.2f} us ({seconds / host:.1f}x the time)"
    return f"{nbytes / seconds / 1e9:.1f} GB/s ({host / seconds:.2f}x the speed)"


def table(rows: dict[int, Row]) -> str:
    """The rows in Markdown."""
    names = list(next(iter(rows.values())))
    lines = [
        "| | " + " | ".join(names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for nbytes, row in rows.items():
        size = f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB"
        host = row["np.copyto"]
        cells = [cell(seconds, nbytes, host) for seconds in row.values()]
        lines.append(f"| {size} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def report(device_id: int) -> str:
    """Both ways of copying on one device, as a page of Markdown."""
    mapped = Vulkan()
    info = mapped.device_info(device_id)
    shared = ": mapped memory" if info["host_memory_shared"] else ""
    machine = (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, numpy {np.__version__}"
    )
    parts = [
        "# Copies between host and Vulkan memory\n",
        f"By `python backends/vulkan/bench_copy.py`, {date.today()}, {machine}.",
        f"Device: {info['name']} ({info['driver']}), {info['kind']}.",
        "Each copy includes the wait for it. In brackets: compared with np.copyto.\n",
    ]
    for title, backend in (
        (f"As the device offers it{shared}", mapped),
        ("Through the staging ring (DLBRIDGE_VULKAN_STAGED=1)", Vulkan(staged=True)),
    ):
        rows = {nbytes: measure(backend, device_id, nbytes) for nbytes in SIZES}
        parts += [f"## {title}\n", table(rows), ""]
    return "\n".join(parts)


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    text = report(options.device)
    print(text)
    if options.write:
        options.write.write_text(text)


if __name__ == "__main__":
    main()
