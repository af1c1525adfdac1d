"""Counts the calls of functions for everyday operations, Python's and C's, once all is warm.

    python tests/benchmarks/calls.py            one table for each device that is here
    python tests/benchmarks/calls.py cuda:0     of these devices; `cuda:0` and `rocm:0` simulated
    python tests/benchmarks/calls.py --check    fails if a count is above that of docs/benchmarks/calls.md
    python tests/benchmarks/calls.py --write    writes that table

A count does not depend on the machine or on its load. What it cannot see are calls of ctypes and
the time inside a function; docs/benchmarks has those tables.

"`from_dlpack`" is the import alone: the producer's capsules are made before, around memory that
dlbridge has not allocated where the device has such (OpenCL: a buffer in a context of its own). "of
ours, as another's" is a producer that exports a tensor of dlbridge, and so half of it is the export.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import dlbridge as bridge
from dlbridge.conformance.producer import Described

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "benchmarks" / "calls.md"
DEVICES = ("ext_dev:0", "cuda:0", "rocm:0", "opencl:0", "vulkan:0")
SIMULATED = {"cuda": ["cuda"], "rocm": ["cuda", "hip"]}
WARM, TIMES = 20, 20

HEAD = """# Calls of functions for one operation

Python's and C's, counted by `sys.setprofile`, warm, as `python tests/benchmarks/calls.py --write` has
written them: CUDA and ROCm on the simulated drivers, the others on those of the machine. A count
that grows fails `make bench`.

`from_dlpack` is the import alone, of capsules that were made before: on OpenCL around a buffer in
another library's context, on the others around memory that the backend knows. In the row below it
the producer exports a tensor of dlbridge in the same call, which is counted, too.

"""


class Ready:
    """A tensor of another library, whose capsules are made before: `__dlpack__` gives the next."""

    def __init__(self, device: str) -> None:
        where = bridge.device(device)
        owner, data = memory_of_another(device)
        described = Described((1024,), device=(int(where.type), where.index), data=data)
        described.version, described.owner = (1, 3), owner
        self._device = described.device
        self._capsules = [described.capsule() for _ in range(WARM + TIMES)]

    def __dlpack__(self, **_keywords: Any) -> Any:
        return self._capsules.pop()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def memory_of_another(device: str) -> tuple[object, int]:
    """4 KiB on *device*, as DLPack's ``data``, and what keeps them."""
    if not device.startswith("opencl"):
        tensor = bridge.empty(1024, "f4", device)
        return tensor, tensor.operand().data
    import pyopencl as cl

    known = bridge.empty(1, "u1", device).to_native()
    context = cl.Context([known.queue.device])
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4096)
    return (context, buffer), buffer.int_ptr


class Exporting:
    """A tensor of dlbridge as if it were somebody else's: by the methods of DLPack alone."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._tensor.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


def operations(device: str) -> dict[str, Callable[[], object]]:
    """Name -> what is counted."""
    # Not aligned, so that each device copies it: OpenCL may use aligned memory in place.
    host = np.arange(1024 + 8, dtype="f4")[3 : 1024 + 3]
    ours, other = (bridge.empty(1024, "f4", device) for _ in range(2))
    theirs, as_theirs = Ready(device), Exporting(ours)
    return {
        "`empty`, 1 MiB": lambda: bridge.empty(1 << 20, "u1", device),
        "`zeros`, 1 MiB": lambda: bridge.zeros(1 << 20, "u1", device),
        "`copy_`, 4 KiB": lambda: bridge.copy_(ours, other),
        "numpy there, 4 KiB": lambda: bridge.to_device(host, device),
        "and back": lambda: bridge.to_device(ours, "cpu"),
        "`from_dlpack`": lambda: bridge.from_dlpack(theirs),
        "of ours, as another's": lambda: bridge.from_dlpack(as_theirs),
        "a view": lambda: ours[10:20],
    }


def count(work: Callable[[], object]) -> int:
    """The calls of one *work*: the least of several, as a finalizer may run in the others."""
    for _ in range(WARM):
        work()
    counts = []
    for _ in range(TIMES):
        calls = 0

        def note(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(note)
        work()
        sys.setprofile(None)
        counts.append(calls - 2)  # of *work* itself, and of the end
    return min(counts)


def simulate(names: list[str]) -> None:
    """Load the simulated drivers, before anybody looks for real ones."""
    from tests.drivers import build

    for name in names:
        build.load(name)


def measured(devices: list[str]) -> dict[str, dict[str, int]]:
    """Operation -> device -> calls; devices that are not here are left out."""
    found: dict[str, dict[str, int]] = {}
    for device in devices:
        try:
            works = operations(device)
        except (bridge.Error, ValueError) as exc:
            print(f"{device}: {exc}", file=sys.stderr)
            continue
        for name, work in works.items():
            found.setdefault(name, {})[device] = count(work)
    return found


def table(found: dict[str, dict[str, int]]) -> str:
    """*found* in Markdown."""
    devices = list(next(iter(found.values()), {}))
    lines = [f"| | {' | '.join(devices)} |", f"|---|{'--:|' * len(devices)}"]
    lines += [
        f"| {name} | {' | '.join(str(calls.get(each, '')) for each in devices)} |"
        for name, calls in found.items()
    ]
    return "\n".join(lines) + "\n"


def written() -> dict[str, dict[str, int]]:
    """What `TABLE` has."""
    rows = [
        [cell.strip() for cell in line.strip("|\n ").split("|")]
        for line in TABLE.read_text().splitlines()
        if line.startswith("|") and not re.match(r"\|-", line)
    ]
    devices = rows[0][-(len(rows[1]) - 1) :]
    return {
        row[0]: {each: int(cell) for each, cell in zip(devices, row[1:], strict=True) if cell}
        for row in rows[1:]
    }


def main() -> int:
    """The exit status: 1 if a count has grown."""
    named = [each for each in sys.argv[1:] if not each.startswith("-")]
    devices = named or list(DEVICES)
    simulate(sorted({each for name in devices for each in SIMULATED.get(name.split(":")[0], [])}))
    found = measured(devices)
    print(table(found))
    if "--write" in sys.argv:
        TABLE.write_text(HEAD + table(found))
    if "--check" not in sys.argv:
        return 0
    before = written()
    grown = [
        f"{name} on {device}: {calls} calls, and {before[name][device]} in {TABLE.name}"
        for name, row in found.items()
        for device, calls in row.items()
        if calls > before.get(name, {}).get(device, calls)
    ]
    print("\n".join(grown))
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
