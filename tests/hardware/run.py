"""What must be run on a machine with an NVIDIA GPU, step by step, each within its own time.

    python tests/hardware/run.py OUTPUT STEP [STEP ...]

The steps are the functions below whose names begin with ``step_``; ``all`` means all of them. Those
joined by a plus (``copies+cuda+peers``) run at the same time, the others one after the other. The
machine needs no network: what ``tests/hardware/pack.py`` fetched is installed from ``.wheels/``
into a folder of its own. OUTPUT/hardware.txt has what each step printed, with date and seconds, each
line behind the step's name; a step that fails or takes too long does not keep the others from
running.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout=100", "-ra"]
GPU_ONLY = ["-m", "gpu"]
LARGE = ["-n", "8", "--durations=5", "--tb=short", "-q", "-p", "failures_at_once"]
# Not the errors of calls: cuda.bindings asks for functions that the driver does not have.
SANITIZER = ["compute-sanitizer", "--report-api-errors", "no", "--error-exitcode", "9", "--tool"]

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
    yield python(60, str(HERE / "vulkan_memory.py"))
    yield python(60, "-m", "dlbridge", "info")


def step_copies() -> Iterator[Command]:
    """Round trips of 1 B to 200 MiB, on each kind of memory; what documents leave open."""
    yield python(60, str(HERE / "round_trips.py"))
    yield python(60, str(HERE / "questions.py"))
    yield python(120, str(HERE / "streams.py"))


def step_cuda() -> Iterator[Command]:
    """The tests of the CUDA backend on the real driver, but those beside peers."""
    names = {path.name for path in (ROOT / "backends/cuda/tests").glob("test_*.py")}
    yield cuda_tests(240, *sorted(names - {"test_gpu.py"}))


def step_peers() -> Iterator[Command]:
    """torch, cupy and jax with CUDA, each with slow work on its own streams."""
    seconds, words, expect = cuda_tests(240, "test_gpu.py")
    yield seconds, [*words, "-k", "not numba"], expect


def step_numba() -> Iterator[Command]:
    """The same for numba, with a numpy that it knows."""
    seconds, words, expect = cuda_tests(240, "test_gpu.py")
    yield seconds, [*words, "-k", "numba"], {**expect, "PYTHONPATH": older_first()}


def step_capture_mode() -> Iterator[Command]:
    """What ends another thread's capture in the default mode."""
    yield python(60, str(HERE / "streams.py"), "default")


def step_forks() -> Iterator[Command]:
    """Where a forked child waits that does not end: open for Vulkan (docs/vulkan.md)."""
    yield python(60, str(HERE / "forks.py"))


def step_opencl() -> Iterator[Command]:
    """NVIDIA's OpenCL."""
    yield python(30, str(HERE / "rectangles.py"))
    expect = {"DLBRIDGE_EXPECT": "opencl"}
    yield 200, [*PYTEST, *LARGE, "backends/opencl/tests"], expect


def step_large_buffer() -> Iterator[Command]:
    """A quarter of the GPU's memory in one buffer of OpenCL's; alone, as others need memory."""
    yield python(60, str(HERE / "large_buffer.py"))


def step_vulkan() -> Iterator[Command]:
    """NVIDIA's Vulkan."""
    yield 200, [*PYTEST, *LARGE, "backends/vulkan/tests"], {"DLBRIDGE_EXPECT": "vulkan"}


def step_frameworks() -> Iterator[Command]:
    """torch, cupy, jax, numba, cuda.core, warp, triton: their kernels and streams, our memory."""
    script = str(HERE / "frameworks.py")
    yield python(120, script, "torch", "cupy", "jax", "cuda_core", "triton", "warp")
    yield python(60, script, "numba", PYTHONPATH=older_first())


def step_conformance() -> Iterator[Command]:
    """The rules of DLPack for arrays of ours on the GPU."""
    yield python(200, "-m", "dlbridge", "conformance", "dlbridge@cuda:0")


def step_conformance_torch() -> Iterator[Command]:
    """The same for torch."""
    yield python(200, "-m", "dlbridge", "conformance", "torch@cuda:0")


def step_conformance_jax() -> Iterator[Command]:
    """The same for jax, which puts its arrays there, and for cupy."""
    yield python(120, "-m", "dlbridge", "conformance", "cupy")
    yield python(120, "-m", "dlbridge", "conformance", "jax")


def step_long_work() -> Iterator[Command]:
    """Slow kernels beside frees, exports, captures and processes that are killed."""
    names = ["frees_copies_and_exports", "streams_destroyed_early", "graphs_beside_everything"]
    yield python(200, str(HERE / "long_work.py"), "--rounds", "10000", names[0])
    yield python(90, str(HERE / "long_work.py"), "--rounds", "1000", *names[1:])
    yield python(90, str(HERE / "long_work.py"), "--rounds", "2000", "killed_at_every_moment")


def step_full() -> Iterator[Command]:
    """The GPU's memory, to the last MiB; nothing else can run."""
    yield python(60, str(HERE / "long_work.py"), "full_to_the_last_mebibyte")


def step_sanitizer() -> Iterator[Command]:
    """compute-sanitizer beside copies, kernels, and streams that end early."""
    inside = [sys.executable, str(HERE / "long_work.py"), "--inside", "--rounds", "100"]
    for tool in ("memcheck", "racecheck"):
        yield 100, [*SANITIZER, tool, *inside, "streams_destroyed_early"], {}
        yield 60, [*SANITIZER, tool, sys.executable, str(HERE / "round_trips.py")], {}


def step_pipeline() -> Iterator[Command]:
    """Frames from torch through Vulkan to torch, in place and by copies."""
    yield python(60, str(HERE / "pipeline.py"))


def step_demo() -> Iterator[Command]:
    """A photograph through every backend."""
    yield python(90, "-m", "dlbridge", "demo")


def step_identity() -> Iterator[Command]:
    """One device under three backends, and memory that two of them share."""
    yield python(60, str(HERE / "identity.py"))


def step_bench_calls() -> Iterator[Command]:
    """Calls on tensors of the GPU, beside the peers."""
    yield python(120, "backends/cuda/bench_calls.py", "--output", str(OUTPUT / "cuda-calls.md"))


def step_bench_gpu() -> Iterator[Command]:
    """Copies between host and GPU; LARGEST is the largest, by default 4G."""
    most = ["--most", os.environ.get("LARGEST", "4G")]
    output = ["--output", str(OUTPUT / "cuda-gpu.md")]
    yield python(200, "backends/cuda/bench_gpu.py", *most, *output)


def step_first_touch() -> Iterator[Command]:
    """Copies into new host memory, by who touches it first."""
    yield python(60, str(HERE / "first_touch.py"))


def step_bench_copy() -> Iterator[Command]:
    """Copies by OpenCL and Vulkan."""
    for name in ("opencl", "vulkan"):
        yield python(90, "tests/benchmarks/copies.py", name)
        yield 5, ["cp", f"docs/benchmarks/{name}-copy.md", str(OUTPUT)], {}


def older_first() -> str:
    """PYTHONPATH for libraries that the machine's own numpy is too new for."""
    return os.pathsep.join([str(OLDER), environment()["PYTHONPATH"]])


OUTPUT = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()


def environment() -> dict[str, str]:
    """The source tree before the wheels; the drivers that come without a file that names them."""
    paths = [ROOT, *BACKENDS, SITE, HERE]
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
    for archive in WHEELS.glob("*.tar.xz"):  # too large as a wheel
        subprocess.run(["tar", "-xf", archive, "-C", SITE], check=True)
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


_log = threading.Lock()


def run(name: str, command: Command) -> None:
    """One command of the step *name*: what it prints goes to the screen and to the file."""
    seconds, words, variables = command
    start = time.monotonic()

    def say(line: str) -> None:
        with _log, (OUTPUT / "hardware.txt").open("a") as file:
            file.write(f"{name}: {line}\n")
        print(f"{name}: {line}", flush=True)

    say(f"$ {' '.join(words)}")
    say(f"# {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC")
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
        say(line.rstrip("\n"))
    say(f"# exit {process.wait()} after {time.monotonic() - start:.0f} s")


def main() -> int:
    """Run the steps that the command line names."""
    steps = {name[5:]: step for name, step in globals().items() if name.startswith("step_")}
    wanted = list(steps) if "all" in sys.argv[2:] else sys.argv[2:]
    groups = [group.split("+") for group in wanted]
    if not groups or {name for group in groups for name in group} - {*steps}:
        print(__doc__, "Steps: ", ", ".join(steps), file=sys.stderr)
        return 2
    OUTPUT.mkdir(parents=True, exist_ok=True)
    install()

    def take(name: str) -> None:
        for command in steps[name]():
            run(name, command)

    for group in groups:
        with ThreadPoolExecutor(len(group)) as threads:
            list(threads.map(take, group))
    return 0


if __name__ == "__main__":
    sys.exit(main())
