"""Programs on several MPI ranks of this machine: their processes end with the test."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.expected_parts import expected
from tests.support.scripts import environment


@cache
def _why_no_mpi() -> str:
    try:
        done = _run(1, ["-c", "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"], 300, {})
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if (done.returncode, done.stdout) == (0, "1\n") else done.stderr or done.stdout


def need_mpi() -> None:
    """Skip the test without mpiexec and mpi4py; fail it if ``DLBRIDGE_EXPECT`` names mpi."""
    reason = _why_no_mpi()
    if reason and expected("mpi"):
        pytest.fail(f"DLBRIDGE_EXPECT=mpi, but no program runs under mpiexec: {reason}")
    if reason:
        pytest.skip(f"no program runs under mpiexec here: {reason[-300:]}")


def run_ranks(
    ranks: int,
    program: Path,
    *arguments: str,
    timeout: float = 600,
    env: dict[str, str] | None = None,
) -> str:
    """What *program* prints on *ranks* ranks; AssertionError if one ends with an error."""
    need_mpi()
    command = ["-X", "faulthandler", "-m", "mpi4py", str(program), *arguments]
    done = _run(ranks, command, timeout, env or {})
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def _run(
    ranks: int, command: list[str], timeout: float, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    beside = Path(sys.executable).parent / "mpiexec"  # mpich's wheel: mpi4py loads its library
    launcher = str(beside) if beside.exists() else shutil.which("mpiexec")
    if launcher is None:
        raise FileNotFoundError("no mpiexec")
    # Messages go through shared memory: no socket of the ranks is open to the network. A line
    # that a rank prints is one write, so that two ranks' lines do not mix.
    own = {"UCX_TLS": "self,sm", "PYTHONUNBUFFERED": ""}
    process = subprocess.Popen(
        [launcher, "-iface", "lo", "-n", str(ranks), sys.executable, *command],
        env=environment({**own, **env}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)  # mpiexec ends its ranks
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)
