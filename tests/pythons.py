"""Run the core's tests on the oldest and the newest CPython from 3.11 up that this machine has.

Those on the path count, those of pyenv, and those that `make pythons` brought. Each gets
a virtual environment of its own (.venv-3.12 and so on) with what the core's tests need; the peers
are tested where their wheels install, by `make test-core`. On the oldest those of the core, of
calls and of safety run, on the newest those that depend on the interpreter: signals, threads,
exits, leaks and its implementation details. `--all` takes each CPython, and all these tests,
those of the kit and of each dtype; versions (`3.14 3.15`) take only these, with the same tests.
`--peers` installs the newest peers beside the newest one that has wheels of them all (several GB
with torch), and runs the tests that meet them. `--lowest` takes only this Python, with the lowest
versions that pyproject.toml allows, and all tests of the core and of the FFI.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11, "")
FFI = "bad_arguments callbacks functions interrupts moved_and_bound scenes streams"
FFI_WITH_PEERS = "any errors like_tvm_ffi readonly_torch ready_tensors tensors"


def of_ffi(names: str) -> list[str]:
    """The files of tests/ffi with these *names*."""
    return [f"tests/ffi/test_{name}.py" for name in names.split()]


ROOMS = [
    "tests/safety",
    "tests/core/test_implementation_details.py",
    "tests/core/interfaces",
    "tests/watching/test_watch.py",
    *of_ffi(FFI),
]
MORE = ["tests/core", *of_ffi(FFI), "tests/safety"]
# numpy's registry of types is in 2.5, which CPython 3.11 cannot have.
EVERY = [*MORE, "tests/kit", "tests/interop/test_every_dtype.py"]
WITH_PEERS = [
    "tests/interop",
    "tests/watching/test_verdicts.py",
    "tests/core/interfaces",
    *of_ffi(FFI_WITH_PEERS),
]
UPSTREAM = ["-m", "exhaustive", "tests/conformance/test_upstream.py"]
PEERS = ["-e", ".[peers]", "-e", "backends/opencl"]
PARALLEL = ["-n", "3", "--dist", "loadfile", "--max-worker-restart=0"]
# The third is "t" for a build without a GIL, as in the names of wheels.
ASK = """\
import sys, sysconfig
name = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
print(sys.implementation.name, *sys.version_info[:2], name)"""
Version = tuple[int, int, str]


def main() -> int:
    """Test each, also after one that failed; the exit code of the first that failed."""
    if "--lowest" in sys.argv:
        # pytest 8.0 sets its own hook for exceptions in destructors over that of a test's fixture.
        rooms = ["-p", "no:unraisableexception", "tests/core", "tests/ffi"]
        return run(lowest(), rooms, "ext_dev,mpi", library())
    found = interpreters()
    named = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    if missing := set(named) - set(map(of, found)):
        print(f"not here: CPython {', '.join(sorted(missing))}; `make pythons` brings some")
        return 1
    with_gil = sorted(version for version in found if not version[2])
    mine = (*sys.version_info[:2], "")
    beside = None
    if "--peers" in sys.argv:
        # The newest CPython is often there before the wheels of all peers are.
        newest_first = (each for each in reversed(with_gil) if each != mine)
        beside = next(
            filter(lambda each: has_peers(environment(each, found[each])), newest_first), None
        )
        if beside is None:
            print("the newest peers do not install here: their tests do not run", flush=True)
            if "peers" in os.environ.get("DLBRIDGE_EXPECT", "").split(","):
                return 1
    every = bool(named) or "--all" in sys.argv
    failed = 0
    for version in sorted(found):
        wanted = of(version) in named if named else version != mine
        if not wanted or not (every or version in (with_gil[0], with_gil[-1], beside)):
            continue
        print(f"CPython {of(version)}", flush=True)
        rooms = EVERY if every else MORE if version == OLDEST else ROOMS
        expect, variables = "ext_dev,mpi", library()
        inside = environment(version, found[version])
        if version == beside:
            rooms, expect = [*rooms, *WITH_PEERS], f"{expect},peers,newest"
        if peers_in(inside).exists():
            variables = {}  # its own libtvm_ffi: a second one in a process ends that
        code = run(inside, rooms, expect, variables)
        if not code and version == beside:
            code = run(inside, UPSTREAM, expect, variables)
        failed = failed or code
    return failed


def run(python: str, rooms: list[str], expect: str, variables: dict[str, str]) -> int:
    """The exit code of pytest with *rooms*, where *expect* must be there."""
    variables = {**variables, "DLBRIDGE_EXPECT": expect, "DLBRIDGE_FUZZ_SECONDS": "5"}
    command = [python, "-m", "pytest", "-q", *PARALLEL, *rooms]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, check=False
    ).returncode


def library() -> dict[str, str]:
    """Where libtvm_ffi is: one build serves every Python, its package does not."""
    try:
        wheel = distribution("apache-tvm-ffi")
    except PackageNotFoundError:
        return {}
    return {"DLBRIDGE_TVM_FFI_LIB": str(wheel.locate_file("tvm_ffi/lib/libtvm_ffi.so"))}


def interpreters() -> dict[Version, str]:
    """CPythons by version: on the path, those that pyenv has, and those of `make pythons`."""
    candidates = [shutil.which(f"python3.{minor}") for minor in range(11, 20)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates += [str(path) for path in sorted(pyenv.glob("3.*/bin/python"))]
    for path in sorted((ROOT / ".pythons").glob("3.*=*")):
        name = f"python{path.name.partition('=')[0]}"
        candidates += [str(path / inside / name) for inside in ("usr/bin", "bin")]
    found = {}
    for python in candidates:
        if not python or not Path(python).exists():
            continue
        answer = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=False)
        parts = [*answer.stdout.split(), ""]
        if answer.returncode == 0 and parts[0] == "cpython":
            version = int(parts[1]), int(parts[2]), parts[3]
            # cffi has no 3.13 without a GIL, and refuses to be built there.
            if version >= OLDEST and version != (3, 13, "t"):
                found[version] = python
    return found


def of(version: Version) -> str:
    return f"{version[0]}.{version[1]}{version[2]}"


def environment(version: Version, python: str) -> str:
    """The interpreter of the environment for *version*, made if it is not there."""
    return made(ROOT / f".venv-{of(version)}", python, [])


def lowest() -> str:
    """The interpreter of the environment with the lowest versions that are allowed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    bounds = (re.match(r"([\w.-]+)>=([\w.]+)", each) for each in wanted)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.writelines(f"{bound[1]}=={bound[2]}\n" for bound in bounds if bound)
        constraints.flush()
        return made(ROOT / ".venv-lowest", sys.executable, ["-c", constraints.name])


def peers_in(inside: str) -> Path:
    """The file that says that the newest peers are in the environment of *inside*."""
    return Path(inside).parent.parent / ".peers"


def has_peers(inside: str) -> bool:
    """Whether the newest peers are in the environment of *inside*, or install there."""
    done = peers_in(inside)
    if not done.exists() or done.stat().st_mtime < (ROOT / "pyproject.toml").stat().st_mtime:
        install = [inside, "-m", "pip", "install", "-q", "-U", *PEERS]
        if subprocess.run(install, cwd=ROOT, check=False).returncode:
            return False
        done.touch()
    return True


def made(folder: Path, python: str, constraints: list[str]) -> str:
    """The interpreter of the environment in *folder*, of *python* where it must be made."""
    inside = folder / "bin" / "python"
    done = folder / ".test"
    if not done.exists() or done.stat().st_mtime < (ROOT / "pyproject.toml").stat().st_mtime:
        # Without pip: an unpacked CPython looks for its own in a folder of the system.
        subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
        pip = [sys.executable, "-m", "pip", "--python", inside, "install", "-q", "-U", "pip"]
        subprocess.run(pip, check=True)
        install = [inside, "-m", "pip", "install", "-q", *constraints, "-e", ".[test]"]
        install += ["-e", "backends/fake"]
        subprocess.run(install, cwd=ROOT, check=True)
        done.touch()
    return str(inside)


if __name__ == "__main__":
    sys.exit(main())
