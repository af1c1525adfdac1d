"""Random overlaps on every device that runs here: `python -m tests.storm.overlaps 5000 --seed 7`.

They are those of the kit (`dlbridge/testing/backend_overlaps.py`): `copy_` between two tensors over
one memory, by every way that leads to it. Each backend has a process of its own, with its drivers.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = {
    "fake": ["backends/fake/tests/test_conformance.py"],
    "fake, shared": ["backends/fake/tests/test_conformance.py"],
    "opencl": ["backends/opencl/tests/test_conformance.py"],
    "vulkan": ["backends/vulkan/tests/test_conformance.py"],
    "webgpu": ["backends/webgpu/tests/test_conformance.py"],
    "oneapi": ["backends/oneapi/tests/test_conformance.py"],
    "torch": ["backends/torch/tests/test_conformance.py"],
    "cuda": ["backends/cuda/tests/test_kit.py"],
    "rocm": ["backends/rocm/tests/test_kit.py"],
}


def main() -> int:
    """Print what each backend did; 1 if one of them copied a wrong byte, or none ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, help="how many pairs in each memory")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", choices=FILES, action="append")
    chosen = parser.parse_args()
    failed = total = 0
    for name in chosen.only or FILES:
        asked = {"DLBRIDGE_OPERATIONS": str(chosen.count), "DLBRIDGE_KIT_SEED": str(chosen.seed)}
        if name == "fake, shared":
            asked["DLBRIDGE_FAKE_SHARED"] = "1"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-rPs", "-k", "overlap", *FILES[name]],
            env={**os.environ, **asked},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        found = re.findall(r"^(\d+) overlaps on (\S+), by (.*)$", done.stdout, re.MULTILINE)
        pairs = sum(int(count) for count, _, _ in found)
        devices = ", ".join(sorted({device for _, device, _ in found})) or "nothing ran"
        print(f"{name:13} {pairs:7} pairs, {devices}", flush=True)
        for way in sorted({way for _, _, ways in found for way in ways.split(", ")}):
            print(f"    {way}")
        total += pairs
        if done.returncode:
            failed += 1
            print(done.stdout[-8000:], done.stderr[-2000:])
    print(f"{total} pairs, {failed} backends failed")
    return int(failed > 0 or not total)


if __name__ == "__main__":
    sys.exit(main())
