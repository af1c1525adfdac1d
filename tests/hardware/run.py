"""What must be run on a machine with an NVIDIA GPU, step by step, each within its own time.

    python tests/hardware/run.py OUTPUT STEP [STEP ...]

The steps are the functions below whose names begin with ``step_``; ``all`` means all of them. The
machine needs no network: what ``tests/hardware/pack.py`` fetched is installed from ``.wheels/``
into a folder of its own. OUTPUT/hardware.txt has what each step printed, with date and seconds; a
step that fails or takes too long does not keep the others from running.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
WHEELS = ROOT / ".wheels"
SITE = Path("/tmp/dlbridge-hardware")
OLDER = SITE / "older"
VENDORS = SITE / "vendors"
BACKENDS = sorted(path.parent for path in ROOT.glob("backends/*/pyproject.toml"))
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout=100"]
GPU_ONLY = ["-m", "gpu"]
ONE_BYTE_MORE = "test_one_byte_more_than_is_promised_for_one_buffer"
LARGE = ["-n", "8", "--durations=15", "--tb=short", "-v", "--timeout=40"]

Command = tuple[float, list[str], dict[str, str]]
"""Seconds, the command, and variables of its environment."""


def python(seconds: float, *arguments: str, **variables: str) -> Command:
    return seconds, [sys.executable, *arguments], variables


def cuda_tests(seconds: float, *files: str) -> Command:
    paths = [f"backends/cuda/tests/{file}" for file in files]
    expect = {"DLBRIDGE_EXPECT": "cuda,cuda_host,cuda_managed"}
    return seconds, [*PYTEST, *GPU_ONLY, "-n", "4", "--maxfail=60", *paths], expect


def step_machine() -> Iterator[Command]:
    """The driver, the versions, what the device says of itself."""
    yield 20, ["nvidia-smi"], {}
    yield python(60, str(HERE / "attributes.py"))
    yield python(60, "-m", "dlbridge", "info")


def step_copies() -> Iterator[Command]:
    """Round trips of 1 B to 200 MiB, on each kind of memory; what documents leave open."""
    yield python(60, str(HERE / "round_trips.py"))
    yield python(60, str(HERE / "questions.py"))
    yield python(120, str(HERE / "streams.py"))


def step_cuda() -> Iterator[Command]:
    """The tests of the CUDA backend on the real driver, but those beside peers."""
    names = {path.name for path in (ROOT / "backends/cuda/tests").glob("test_*.py")}
    yield cuda_tests(400, *sorted(names - {"test_gpu.py"}))


def step_peers() -> Iterator[Command]:
    """torch, cupy, jax and numba with CUDA, each with slow work on its own streams."""
    seconds, words, expect = cuda_tests(240, "test_gpu.py")
    yield seconds, [*words, "-k", "not numba"], expect
    older = {"PYTHONPATH": os.pathsep.join([str(OLDER), environment()["PYTHONPATH"]])}
    yield seconds, [*words, "-k", "numba"], {**expect, **older}


def step_forks() -> Iterator[Command]:
    """Where a forked child waits that does not end: open for Vulkan (docs/vulkan.md)."""
    yield python(60, str(HERE / "forks.py"))


def step_opencl() -> Iterator[Command]:
    """NVIDIA's OpenCL."""
    yield python(30, str(HERE / "rectangles.py"))
    yield from large_tests("opencl", f"test_memory.py::{ONE_BYTE_MORE}")


def step_vulkan() -> Iterator[Command]:
    """NVIDIA's Vulkan."""
    yield from large_tests("vulkan", "test_fd_import.py::test_an_import_by_hand")


def large_tests(name: str, alone: str) -> Iterator[Command]:
    """One test by itself, as it wants much of the GPU's memory; then the others of the backend."""
    tests = f"backends/{name}/tests"
    expect = {"DLBRIDGE_EXPECT": name}
    yield 60, [*PYTEST, f"{tests}/{alone}"], expect
    yield 150, [*PYTEST, *LARGE, "--deselect", f"{tests}/{alone}", tests], expect


def step_demo() -> Iterator[Command]:
    """A photograph through every backend."""
    yield python(90, "-m", "dlbridge", "demo")


def step_identity() -> Iterator[Command]:
    """One device under three backends, and memory that two of them share."""
    yield python(60, str(HERE / "identity.py"))


def step_bench() -> Iterator[Command]:
    """The figures."""
    yield python(120, "backends/cuda/bench_calls.py", "--output", str(OUTPUT / "cuda-calls.md"))
    yield python(300, "backends/cuda/bench_gpu.py", "--output", str(OUTPUT / "cuda-gpu.md"))
    for name in ("opencl", "vulkan"):
        yield python(90, f"backends/{name}/bench_copy.py")
        yield 5, ["cp", f"docs/benchmarks/{name}-copy.md", str(OUTPUT)], {}


OUTPUT = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()


def environment() -> dict[str, str]:
    """The source tree before the wheels; the drivers that come without a file that names them."""
    paths = [ROOT, *BACKENDS, SITE]
    found = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    opencl = library("libnvidia-opencl.so.1")
    if opencl:
        VENDORS.mkdir(exist_ok=True)
        (VENDORS / "nvidia.icd").write_text(f"{opencl}\n")
        found["OCL_ICD_VENDORS"] = found["OPENCL_VENDOR_PATH"] = str(VENDORS)
    described = Path("/usr/local/nvidia/share/vulkan/icd.d/nvidia_icd.json")
    if described.exists() and not list(Path("/etc/vulkan/icd.d").glob("*nvidia*")):
        found["VK_DRIVER_FILES"] = str(described)
    return found


def library(name: str) -> str | None:
    """The path of a shared library that the loader's cache or NVIDIA's folder has."""
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    paths = [line.split("=>")[1].strip() for line in listed.splitlines() if f"{name} " in line]
    paths += map(str, Path("/usr/local/nvidia").glob(f"lib*/{name}"))
    return next(iter(paths), None)


def install() -> None:
    """The wheels that are missing into SITE, and metadata that names the entry points."""
    if SITE.exists():
        return
    here = {found.name.lower().replace("-", "_") for found in distributions()}
    wheels = [wheel for wheel in WHEELS.glob("*.whl") if wheel.name.partition("-")[0] not in here]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-compile", "--target", SITE, *wheels], check=True)
    older = sorted(WHEELS.glob("older/*.whl"))
    subprocess.run([*pip, "--no-compile", "--target", OLDER, *older], check=True)
    for deb in WHEELS.glob("*.deb"):
        subprocess.run(["dpkg", "-x", deb, "/"], check=True)
    subprocess.run(["ldconfig"], check=False)
    for folder in [ROOT, *BACKENDS]:
        describe(folder)


def describe(folder: Path) -> None:
    """A .dist-info of what is in *folder*, as an installation from source would make it."""
    import tomllib

    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project.get("version", "0.1.0")
    info = SITE / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, entries in project.get("entry-points", {}).items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))


def run(command: Command, log: Path) -> None:
    """One command: what it prints goes to the screen and to the file."""
    seconds, words, variables = command
    head = f"\n$ {' '.join(words)}\n# {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC\n"
    start = time.monotonic()
    with log.open("a") as file:
        file.write(head)
        file.flush()
        print(head, end="", flush=True)
        process = subprocess.Popen(
            ["timeout", "-k", "5", str(seconds), *words],
            cwd=ROOT,
            env={**environment(), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            print(line, end="", flush=True)
        code = process.wait()
        end = f"# exit {code} after {time.monotonic() - start:.0f} s\n"
        file.write(end)
        print(end, end="", flush=True)


def main() -> int:
    """Run the steps that the command line names."""
    steps = {name[5:]: step for name, step in globals().items() if name.startswith("step_")}
    wanted = sys.argv[2:]
    if not wanted or set(wanted) - {*steps, "all"}:
        print(__doc__, "Steps: ", ", ".join(steps), file=sys.stderr)
        return 2
    OUTPUT.mkdir(parents=True, exist_ok=True)
    install()
    for name in list(steps) if "all" in wanted else wanted:
        for command in steps[name]():
            run(command, OUTPUT / "hardware.txt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
