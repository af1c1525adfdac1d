"""Programs in processes of their own: what may crash or hang must not take the tests with it.

A program of some lines is a function of a file in ``tests/scenes``; a short one stands in its test.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]
SCENES = SUPPORT.parent / "scenes"


def run_script(source: str, *, timeout: float = 600, env: dict[str, str] | None = None) -> str:
    """What the script prints; AssertionError if it ends by a signal, an error, or not in time."""
    # A process in the background may be started with SIGINT ignored, and hands that on.
    prelude = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    return _run(["-c", prelude + textwrap.dedent(source)], timeout, env or {})


def run_scene(
    name: str, *arguments: object, timeout: float = 600, env: dict[str, str] | None = None
) -> str:
    """What the scene ``"file.function"`` prints, with the texts of *arguments*; else as above."""
    command = [SCENES / "run.py", *name.split("."), *arguments]
    return _run(command, timeout, env or {})


def run_program(
    path: Path | str,
    *arguments: object,
    timeout: float = 600,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """What the program in the file *path* prints; else as above."""
    return _run([path, *arguments], timeout, env or {}, cwd)


def environment(changes: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of a process that imports dlbridge and these helpers, with *changes*."""
    paths = [str(ROOT), str(SUPPORT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(changes or {})}


def _run(
    command: list[object], timeout: float, env: dict[str, str], cwd: Path | None = None
) -> str:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", *map(str, command)],
        env=environment(env),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    code = done.returncode
    ended = signal.Signals(-code).name if code < 0 else code
    assert ended == 0, f"{ended}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout
