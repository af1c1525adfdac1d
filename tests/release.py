"""A release, rehearsed whole but for the upload: `make release-rehearsal`.

    python tests/release.py            # all steps, minutes
    python tests/release.py build same # only these

Each step prints one line; what its commands print is in build/release/log.txt, and is shown if one
fails. The distributions are in build/release/dist, and an inventory of what each environment got
(CycloneDX) in build/release/sbom. The index that pip knows serves what is not ours.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from wheels import EXAMPLE, ROOT, check, folders

PLACE = ROOT / "build" / "release"
DIST, CLEAN, SBOM, LOG = (PLACE / name for name in ("dist", "clean", "sbom", "log.txt"))
RECIPE = Path(__file__).parent / "conda" / "recipe.yaml"

WITHOUT_NEEDS = {"dlbridge-oneapi"}
"""Installed without what it needs: dpctl brings Intel's runtimes, more than a gigabyte."""

FROM_SDIST = ["tests/core/values", "tests/core/dlpack", "tests/kit"]
"""The tests that run from the source distribution: elements, the C structures, the kit."""

AND_BACK = """\
import numpy as np, dlbridge as bridge
there = bridge.to_device(np.arange(6.0), {device!r}, copy=True)
assert bridge.to_device(there, "cpu", like="numpy").tolist() == [0, 1, 2, 3, 4, 5]
"""

COMMANDS = """\
import json
import dlbridge as bridge
from dlbridge.extending import installation
said = installation()
try:
    bridge.empty(3, device="vulkan:0")
except bridge.BackendUnavailable as error:
    assert str(error).endswith("; try: " + said["vulkan"]), error
else:
    raise SystemExit("there is a Vulkan backend in an environment that has none")
print(json.dumps(said))
"""


class Failed(Exception):
    """A step does not hold; the message says why."""


def run(*command: object, cwd: Path = PLACE, umask: int = -1, **variables: str) -> str:
    """What *command* prints, also written to the log; variables that are ours are not passed on."""
    environment = {name: value for name, value in os.environ.items() if not is_ours(name)}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**environment, **variables},
        umask=umask,
        text=True,
        capture_output=True,
        check=False,
    )
    with LOG.open("a", encoding="utf-8") as log:
        print("$", *command, file=log)
        log.write(done.stdout + done.stderr)
    if done.returncode:
        words = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise Failed(f"{' '.join(map(str, command))}\n{words}\n(exit code {done.returncode})")
    return done.stdout


def is_ours(name: str) -> bool:
    """Whether the variable would change what a new environment shows."""
    return name.startswith(("DLBRIDGE_", "PYTHON", "PYTEST_", "VIRTUAL_ENV"))


def environment(name: str) -> Path:
    """The interpreter of a new and empty environment."""
    folder = PLACE / "environments" / name
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "venv", folder)
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def installed(name: str, *packages: object) -> Path:
    """The interpreter of a new environment with *packages*."""
    python = environment(name)
    run(python, "-m", "pip", "install", *packages)
    return python


@cache
def versions() -> dict[str, str]:
    """Each distribution and its version in pyproject.toml."""
    projects = {
        name: tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for name, folder in folders().items()
    }
    return {name: project["version"] for name, project in projects.items()}


def wheel_of(name: str) -> Path:
    """The wheel of a distribution."""
    return DIST / f"{name.replace('-', '_')}-{versions()[name]}-py3-none-any.whl"


# The steps -----------------------------------------------------------------------------------------


def build() -> str:
    """Wheels and source distributions, each built in an environment of its own."""
    shutil.rmtree(DIST, ignore_errors=True)
    for folder in folders().values():
        run(sys.executable, "-m", "build", "--outdir", DIST, folder)
    found = sorted(DIST.iterdir())
    if len(found) != 2 * len(folders()):
        raise Failed(f"a wheel and a source distribution of each were expected: {found}")
    return f"{len(folders())} wheels, {len(folders())} source distributions"


def same() -> str:
    """The same bytes from a clean clone, at another path, with another umask and time zone."""
    shutil.rmtree(CLEAN, ignore_errors=True)
    run("git", "clone", "-q", ROOT, CLEAN, umask=0o077)
    for folder in folders().values():
        other = CLEAN / folder.relative_to(ROOT)
        command = [sys.executable, "-m", "build", "--outdir", CLEAN / "dist", other]
        run(*command, umask=0o077, TZ="Pacific/Kiritimati")
    for path in sorted(DIST.iterdir()):
        twin = CLEAN / "dist" / path.name
        if path.read_bytes() != twin.read_bytes():
            words = ", ".join(different(path, twin)) or "their order or their headers"
            raise Failed(f"{path.name} is not what a clone of the last commit gives: {words}")
    sums = [
        f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}" for p in sorted(DIST.iterdir())
    ]
    (PLACE / "SHA256SUMS").write_text("\n".join([*sums, ""]), encoding="utf-8")
    return f"{len(sums)} files are equal byte by byte; SHA256SUMS"


def different(one: Path, two: Path) -> list[str]:
    """The names of the members in which two archives differ."""
    a, b = members(one), members(two)
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


def members(path: Path) -> dict[str, bytes]:
    """The files in a wheel or a source distribution."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    with tarfile.open(path) as archive:
        files = [member for member in archive if member.isfile()]
        return {each.name: archive.extractfile(each).read() for each in files}


def metadata() -> str:
    """What an index checks, and what is in each wheel."""
    files = sorted(DIST.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    faults = [fault for wheel in DIST.glob("*.whl") for fault in check(wheel)]
    said = re.search(r'__version__ = "(.+)"', (ROOT / "dlbridge/__init__.py").read_text("utf-8"))
    if said is None or said[1] != versions()["dlbridge"]:
        faults.append("dlbridge.__version__ is not the version in pyproject.toml")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    if f"\nversion: {versions()['dlbridge']}\n" not in citation:
        faults.append("CITATION.cff is of another version")
    if faults:
        raise Failed("; ".join(faults))
    return f"twine check --strict: {len(files)} files; pure Python, licence, py.typed"


def alone() -> str:
    """The wheel of dlbridge in an empty environment: the README's second example, and doctor."""
    python = installed("alone", wheel_of("dlbridge"))
    run(python, "-I", "-c", readme_example(1))
    said = run(python, "-I", "-m", "dlbridge", "doctor")
    inventory("dlbridge", python)
    return f"the README's second example; doctor: {said.strip().splitlines()[-1]}"


def readme_example(number: int) -> str:
    """The first example of the README needs torch and OpenCL, the second one needs neither."""
    found = EXAMPLE.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    return str(found[number])


def inventory(name: str, python: Path) -> None:
    """What is installed beside *name*, in CycloneDX's form, if its program is here."""
    program = Path(sys.executable).parent / "cyclonedx-py"
    SBOM.mkdir(parents=True, exist_ok=True)
    out = SBOM / f"{name}.cdx.json"
    run(program, "environment", "--output-reproducible", "-o", out, python)


def plugins() -> str:
    """Each backend's wheel in an empty environment: usable, or unavailable with a reason."""
    states: dict[str, list[str]] = {}
    for name in folders():
        if name == "dlbridge":
            continue
        if name in WITHOUT_NEEDS:
            python = installed(name, wheel_of("dlbridge"))
            run(python, "-m", "pip", "install", "--no-deps", wheel_of(name))
        else:
            python = installed(name, wheel_of("dlbridge"), wheel_of(name))
            inventory(name, python)
        told = json.loads(run(python, "-I", "-m", "dlbridge", "info", "--json"))["backends"]
        for backend, about in told.items():
            if backend == "cpu":
                continue
            if about["state"] not in ("usable", "unavailable"):
                raise Failed(f"{name}: {backend} is {about['state']}: {about.get('reason')}")
            states.setdefault(about["state"], []).append(backend)
            if about["state"] == "usable" and about["devices"]:
                run(python, "-I", "-c", AND_BACK.format(device=backend))
        if told.keys() <= {"cpu"}:
            raise Failed(f"{name}: its entry point is not found")
    return "; ".join(f"{state}: {', '.join(sorted(names))}" for state, names in states.items())


def by_name() -> str:
    """`pip install dlbridge dlbridge-opencl`, as users type it, where a folder serves ours.

    With torch, which is installed as the tutorial says, the README's first example.
    """
    names = ["dlbridge", "dlbridge-opencl"]
    python = installed("by-name", "--find-links", DIST, *names, "pyopencl[pocl]")
    here = {each["name"]: each["version"] for each in listed(python)}
    if other := [name for name in names if here.get(name) != versions()[name]]:
        raise Failed(f"another version than the one built came from the index: {other}")
    run(python, "-I", "-c", AND_BACK.format(device="opencl:0"))
    for name, command in json.loads(run(python, "-I", "-c", COMMANDS)).items():
        package = command.removeprefix("pip install ").partition(",")[0]
        if package not in versions() and not (ROOT / package / "pyproject.toml").is_file():
            raise Failed(f"the message for {name} names {package}, which is not built")
    run(python, "-m", "pip", "install", "torch")
    said = run(python, "-I", "-c", readme_example(0)).strip().splitlines()[-1]
    if said != "2 moves, 0 bytes copied":
        raise Failed(f"the README's first example ends otherwise than it says: {said}")
    return f"the README's first example: {said}; messages name packages that are built"


def listed(python: Path) -> list[dict[str, str]]:
    """The packages in an environment."""
    found = json.loads(run(python, "-m", "pip", "list", "--format", "json"))
    return list(found)


def backend_project() -> str:
    """The project of new-backend, its kit and its workflow, beside the wheel."""
    said = run(sys.executable, ROOT / "tests" / "new_backend.py", wheel_of("dlbridge"), cwd=ROOT)
    return said.strip().splitlines()[-1].strip("= ")


def from_sdist() -> str:
    """The tests in the source distribution, beside the dlbridge that was built of it."""
    name = f"dlbridge-{versions()['dlbridge']}"
    folder = PLACE / "sdist"
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(DIST / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    source = folder / name
    python = installed("sdist", f"{source}[testing]", wheel_of("dlbridge-fake"), "ml_dtypes")
    # Of the source, only the tests: dlbridge is the installed one.
    shutil.rmtree(source / "dlbridge")
    variables = {"DLBRIDGE_EXPECT": "cpu,ext_dev"}
    said = run(
        python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FROM_SDIST, cwd=source, **variables
    )
    return said.strip().splitlines()[-1].strip("= ")


def conda() -> str:
    """The recipe for conda: as pyproject.toml has it, and built where conda-forge can be reached."""
    from rattler_build import RattlerBuildError, Stage0Recipe

    (variant,) = Stage0Recipe.from_file(RECIPE).render()
    told = variant.recipe.to_dict()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [f"python {project['requires-python']}", *project["dependencies"]]
    recipe = [str(told["package"]["version"]), *sorted(told["requirements"]["run"])]
    if recipe != [
        project["version"],
        *sorted(re.sub(r"(?<=\w)(?=>=)", " ", each) for each in wanted),
    ]:
        raise Failed(f"{RECIPE.name} and pyproject.toml have other versions or needs: {recipe}")
    try:
        variant.run_build(output_dir=PLACE / "conda")
    except RattlerBuildError as error:
        return f"rendered, and as pyproject.toml has it; not built: {error}"
    return "built and tested"


STEPS: dict[str, Callable[[], str]] = {
    "build": build,
    "same": same,
    "metadata": metadata,
    "alone": alone,
    "plugins": plugins,
    "by-name": by_name,
    "new-backend": backend_project,
    "sdist": from_sdist,
    "conda": conda,
}
"""In this order; each needs what `build` made."""


def rehearsed(names: list[str]) -> Iterator[tuple[str, str, float]]:
    """Each step's name, what it says, and its seconds."""
    for name in names:
        start = time.monotonic()
        yield name, STEPS[name](), time.monotonic() - start


def main() -> int:
    """0 if every step holds; the first one that does not ends the rehearsal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("steps", nargs="*", help=f"of {', '.join(STEPS)}; all of them if none")
    names = parser.parse_args().steps or list(STEPS)
    if unknown := set(names) - STEPS.keys():
        parser.error(f"no step {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    PLACE.mkdir(parents=True, exist_ok=True)
    LOG.write_text("", encoding="utf-8")
    try:
        for name, said, seconds in rehearsed(names):
            print(f"{name:<12} {seconds:6.1f} s  {said}", flush=True)
    except Failed as error:
        print(f"failed: {error}\nall that was printed: {LOG}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
