"""doctor: tries what could be wrong on this machine, one after the other, and says what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dlbridge import backends
from dlbridge.extending import all_backends, did_you_mean, installation

from .files import Finding, check_device_files, check_opencl_drivers, check_vulkan_drivers
from .report import colored, settings, shows_color, version_of, wrapped
from .trials import PEERS, try_backend, try_peer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Sequence

VARIABLES = {
    "DLBRIDGE_BACKENDS",
    "DLBRIDGE_TVM_FFI_LIB",
    "DLBRIDGE_CUDA_ARRAY_INTERFACE_SYNC",
    "DLBRIDGE_CUDA_ARRAY_INTERFACE_EXPORT_STREAM",
    "DLBRIDGE_CUDA_EXPORT",
    "DLBRIDGE_POOL_LIMIT",
    "DLBRIDGE_VULKAN_EXPORT",
    "DLBRIDGE_VULKAN_STAGED",
}
"""Those for users: CONTRIBUTING.md, "The environment"."""

FOR_TESTS = {
    "DLBRIDGE_EXPECT",
    "DLBRIDGE_KIT_SEED",
    "DLBRIDGE_FUZZ_SECONDS",
    "DLBRIDGE_OPENCL_PLATFORMS",
    "DLBRIDGE_OPERATIONS",
    "DLBRIDGE_STORM_SECONDS",
    "DLBRIDGE_FAKE_DELAY_US",
    "DLBRIDGE_FAKE_SHARED",
    "DLBRIDGE_SWIFTSHADER",
}


def check_all(*, quick: bool = False, only: Sequence[str] = ()) -> Iterator[Finding]:
    """All findings, in the order in which problems should be solved.

    *quick* leaves out the trials of other libraries. *only*: the backends that are tried, and
    nothing else is.
    """
    if only:
        for finding in check_backends(only):
            # What the user has named is to work.
            needed = finding.state == "note"
            remedy = finding.said.removeprefix("not usable here: ")
            yield finding._replace(state="problem", remedy=remedy) if needed else finding
        return
    yield Finding("ok", "Python", sys.version.split()[0])
    yield from check_packages()
    yield from check_settings(settings())
    yield from check_device_files()
    here = backends()
    if "opencl" in here:
        yield from check_opencl_drivers()
    if "vulkan" in here:
        yield from check_vulkan_drivers()
    yield from check_backends(all_backends())
    if here == ["cpu"] and "DLBRIDGE_BACKENDS" not in os.environ:
        command, comma, where = installation()["opencl"].partition(",")
        yield Finding(
            "note",
            "backends",
            f"only the backend cpu is installed; for other devices: {command}, or "
            f"vulkan, cuda and so on{comma}{where}",
        )
    if not quick:
        for name in PEERS:
            if version_of(name):
                yield try_peer(name)


def check_backends(names: Iterable[str]) -> Iterator[Finding]:
    """What trials of the backends find; neighbours with the same reason are one finding."""
    together: list[str] = []
    last: Finding | None = None
    for name in names:
        finding = try_backend(name)
        if last is not None and (finding.state == "ok" or finding[2:] != last[2:]):
            yield _of_backends(together, last)
            together = []
        together.append(name)
        last = finding
    if last is not None:
        yield _of_backends(together, last)


def _of_backends(names: list[str], finding: Finding) -> Finding:
    return finding._replace(what=f"backend{'s' * (len(names) > 1)} {', '.join(names)}")


def check_packages() -> Iterator[Finding]:
    """Whether the versions of the installed packages agree with what dlbridge's packages need."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "check", "--disable-pip-version-check"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except subprocess.TimeoutExpired:
        yield Finding("note", "packages", "pip check did not end in 120 s")
        return
    if "No module named pip" in done.stderr:
        yield Finding("note", "packages", "their versions are not compared: there is no pip here")
        return
    ours = [line for line in done.stdout.splitlines() if line.startswith("dlbridge")]
    for line in ours:
        package = line.split()[0]
        remedy = f"{sys.executable} -m pip install --upgrade {package}"
        yield Finding("problem", "packages", line, remedy)
    if not ours:
        yield Finding("ok", "packages", "their versions are those that dlbridge asks for")


def check_settings(chosen: Mapping[str, str]) -> Iterator[Finding]:
    """Whether the variables ``DLBRIDGE_...`` mean something here."""
    for name, value in chosen.items():
        what = f"{name}={value}"
        if name in FOR_TESTS:
            yield Finding("note", what, "is for tests of dlbridge, and for nothing else")
        elif name not in VARIABLES and any(
            name.startswith(f"DLBRIDGE_{each.upper()}_")
            for each in set(backends()) - installation().keys()
        ):
            yield Finding("ok", what, "is a setting of that backend")
        elif name not in VARIABLES:
            hint = did_you_mean(name, VARIABLES)
            yield Finding("problem", what, f"is not known to dlbridge{hint}", f"unset {name}")
        elif name == "DLBRIDGE_BACKENDS":
            yield from _check_chosen(what, value)
        elif name == "DLBRIDGE_TVM_FFI_LIB" and not Path(value).exists():
            remedy = f"unset {name}, or give the path of libtvm_ffi"
            yield Finding("problem", what, "names a file that does not exist", remedy)
        else:
            yield Finding("ok", what, "is set")


def _check_chosen(what: str, value: str) -> Iterator[Finding]:
    wanted = {part.strip() for part in value.split(",")}
    if value.strip().startswith("-"):
        yield Finding("ok", what, "these backends are left out")
        return
    absent = sorted(wanted - set(backends()))
    for name in absent:
        remedy = installation().get(name, "take it out of DLBRIDGE_BACKENDS")
        hint = did_you_mean(name, installation())
        yield Finding("problem", what, f"names {name!r}, which is not installed{hint}", remedy)
    if "cpu" not in wanted:
        remedy = "add cpu to DLBRIDGE_BACKENDS"
        yield Finding("problem", what, "leaves out cpu, which most moves need", remedy)
    elif not absent:
        yield Finding("ok", what, "only these backends are used")


# The command ------------------------------------------------------------------------

COLORS = {"ok": "green", "note": "yellow", "problem": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``doctor``."""
    parser.add_argument(
        "backend", nargs="*", help="try only these backends, such as opencl or torch-npu"
    )
    parser.add_argument("--quick", action="store_true", help="do not try other libraries")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print each finding as it comes, and then what to do; 1 if there is a problem."""
    if arguments.json:
        findings = list(check_all(quick=arguments.quick, only=arguments.backend))
        json.dump([each._asdict() for each in findings], sys.stdout, indent=2)
        print()
        return int(any(each.state == "problem" for each in findings))
    color = shows_color(sys.stdout)
    to_do = []
    for finding in check_all(quick=arguments.quick, only=arguments.backend):
        first, *rest = wrapped(finding.state, f"{finding.what}: {finding.said}")
        print(colored(first[:9], COLORS[finding.state], color) + first[9:])
        print("\n".join(rest), end="\n" * bool(rest), flush=True)
        if finding.state == "problem":
            to_do.append(f"{finding.what}: {finding.remedy}")
    if not to_do:
        print("\nno problem was found")
        return 0
    print("\nDo this, in order, and run doctor again after each:")
    for number, remedy in enumerate(to_do, 1):
        print("\n".join(wrapped(f"{number}.", remedy)))
    return 1
