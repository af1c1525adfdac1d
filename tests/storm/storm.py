"""Storms, one after the other, each in a process of its own that is judged.

    python tests/storm/storm.py                          # a minute
    python tests/storm/storm.py --seconds 3600 --log hour.log
    python tests/storm/storm.py --seed 1234 --rounds 1   # one storm again

A storm does random operations (`operations.py`) on all devices of the machine, and
sometimes on simulated CUDA and ROCm devices, in 1 to 8 threads, with exceptions of signal handlers at random moments, collections, forks
and a small switch interval. It must end with status 0, print nothing to stderr, and
leave nothing alive; each result must be what numpy says.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Outcome", "main", "storm"]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class Outcome(NamedTuple):
    """The result of one storm."""

    command: str
    report: dict[str, Any]
    findings: list[str]


def environment(seed: int) -> dict[str, str]:
    """The environment of the storm *seed*: kinds of devices, and no file of anybody's."""
    pick = random.Random(f"environment {seed}")
    chosen = {
        "POCL_DEVICES": os.environ.get("POCL_DEVICES", "pthread pthread"),
        "JAX_PLATFORMS": "cpu",
        # Without one, Mesa writes to stderr when wgpu begins, and that would be a finding.
        "XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir(),
        "DLBRIDGE_FAKE_SHARED": pick.choice("01"),
        "DLBRIDGE_FAKE_DELAY_US": pick.choice(["0", "0", "200"]),
        "DLBRIDGE_VULKAN_STAGED": pick.choice("01"),
    }
    # Intel's runtime for CPUs comes with the test packages of the oneAPI backend.
    intel = Path(sys.prefix, "lib", "libintelocl.so")
    if intel.exists() and pick.choice([True, False]):
        chosen.setdefault("OCL_ICD_FILENAMES", str(intel))
    folders = [ROOT, *ROOT.glob("backends/*/")]
    paths = [*map(str, folders), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, **chosen, "PYTHONPATH": os.pathsep.join(paths)}


@cache
def simulated_drivers() -> bool:
    """Compile the simulated drivers of CUDA and ROCm; False where there is no compiler."""
    from tests.drivers import build

    if build.compiler() is None:
        return False
    for name in build.DRIVERS:
        build.library(name)  # its folder is named in the environment from now on
    return True


def storm(seed: int, seconds: float, *options: str, patience: float = 300) -> Outcome:
    """Run one storm; an empty list of findings if all was well."""
    worker = [str(HERE / "worker.py"), f"--seed={seed}", f"--seconds={seconds}"]
    command = [sys.executable, *worker, f"--patience={patience}", *options]
    if seed % 3 == 0 and not any(option.startswith("--devices=") for option in options):
        command += ["--simulated"] if simulated_drivers() else []
    findings: list[str] = []
    process = subprocess.Popen(
        command,
        env=environment(seed),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # to end it with its forked children
    )
    try:
        out, err = process.communicate(timeout=seconds + 2 * patience)
    except subprocess.TimeoutExpired:
        findings.append("the process does not end")
        out, err = _end(process)
    try:
        report = json.loads(out.strip().rpartition("\n")[2])
    except ValueError:
        report = {}
        findings.append("no report")
    findings += report.get("findings", [])
    code = process.returncode
    if code:
        ended = signal.Signals(-code).name if code < 0 else f"status {code}"
        findings.append(f"the process ended by {ended}")
    if err:
        findings.append(f"stderr: {err if len(err) < 6000 else err[:3000] + ' ... ' + err[-3000:]}")
    return Outcome(" ".join(command), report, findings)


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Abort *process* and its children: faulthandler writes where they are. Their output."""
    os.killpg(process.pid, signal.SIGABRT)
    try:
        return process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()


def main(arguments: list[str] | None = None) -> int:
    """Run storms for some time; the number of storms with findings."""
    parser = argparse.ArgumentParser(description="Storms, one after the other.")
    parser.add_argument("--seconds", type=float, default=60, help="for how long, in all")
    parser.add_argument("--each", type=float, default=12, help="seconds of each storm")
    parser.add_argument("--seed", type=int, help="of the first storm; by the time if not given")
    parser.add_argument("--rounds", type=int, help="the number of storms, instead of --seconds")
    parser.add_argument("--log", type=Path, help="a file to which each storm adds a line")
    given, options = parser.parse_known_args(arguments)
    seed = int(time.time()) if given.seed is None else given.seed
    lines = given.log.open("a") if given.log else sys.stdout
    began, number, operations, interrupted, bad = time.monotonic(), 0, 0, 0, 0
    while (
        number < given.rounds
        if given.rounds
        else not number or time.monotonic() - began < given.seconds
    ):
        outcome = storm(seed + number, given.each, *options)
        number += 1
        operations += outcome.report.get("operations", 0)
        interrupted += outcome.report.get("interrupted", 0)
        bad += bool(outcome.findings)
        said = {name: value for name, value in outcome.report.items() if name != "findings"}
        print(time.strftime("%H:%M:%S"), json.dumps(said), file=lines, flush=True)
        if outcome.findings:
            text = "\n".join(outcome.findings)
            print(f"FINDING, again by: {outcome.command}\n{text}", file=lines, flush=True)
    print(
        f"{number} storms from seed {seed} on, {time.monotonic() - began:.0f} s, {operations} "
        f"operations, {interrupted} interrupted, {bad} with findings",
        file=lines,
        flush=True,
    )
    return bad


if __name__ == "__main__":
    sys.exit(min(main(), 1))
