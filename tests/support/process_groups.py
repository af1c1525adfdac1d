"""Programs that start processes of their own: all of them end with the test."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.scripts import environment

MARK = "DLBRIDGE_TEST_GROUP"


def run_group(
    program: Path,
    *arguments: object,
    timeout: float = 900,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    patience: float = 100,
) -> str:
    """What *program* prints; AssertionError if it ends with an error, or leaves a process behind.

    Its other processes may end up to *patience* seconds after it. At the end all of them are
    killed, also if the test is interrupted.
    """
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", str(program), *map(str, arguments)],
        env=environment({MARK: mark, **(env or {})}),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
        assert process.returncode == 0, f"{process.returncode}\n{out[-2000:]}\n{err[-6000:]}"
        deadline = time.monotonic() + patience
        while (left := _living(process.pid, mark)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left, f"processes are left: {left}"
        return out
    finally:
        for pid in _living(process.pid, mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if process.poll() is None:
            process.kill()
            process.communicate()


def scene_names(program: Path) -> list[str]:
    """The functions of *program* that have the decorator ``scene``."""
    return re.findall(r"^@scene\ndef (\w+)", program.read_text(), re.MULTILINE)


def run_scenes(program: Path, *arguments: object, **how: Any) -> dict[str, str]:
    """What each scene of *program* failed of: its traceback, or nothing.

    The program prints a line of JSON for each: its name, the traceback, the seconds.
    """
    lines = run_group(program, *arguments, **how).splitlines()
    return {line[0]: line[1] for line in map(json.loads, filter(_IS_SCENE, lines))}


_IS_SCENE = re.compile(r'\["').match


def _living(first: int, mark: str) -> dict[int, str]:
    """The processes of the program by their numbers, with their names (Linux).

    Those of its session, those that have its environment, and the children of both: some
    programs start sessions, and some write over their environment.
    """
    table = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            state, parent, group = rest.split()[:3]
            ours = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes()
            if state != "Z":
                table[int(folder.name)] = name, int(parent), ours or int(group) == first
    found = {pid for pid, (_, _, ours) in table.items() if ours}
    while more := {pid for pid, (_, parent, _) in table.items() if parent in found} - found:
        found |= more
    return {pid: table[pid][0] for pid in found}
