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

WITHOUT_TORCH = 'import sys; sys.modules["torch"] = None\n'
"""Begins a program with tvm_ffi and without torch, which tvm_ffi imports where it can: 1.5 s."""


def environment(
    changes: dict[str, str] | None = None, paths: tuple[Path | str, ...] = ()
) -> dict[str, str]:
    """The environment of a process that imports dlbridge, these helpers and *paths*, with *changes*."""
    folders = [*map(str, paths), str(ROOT), str(SUPPORT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), **(changes or {})}


def finished(
    source: str | Path,
    *arguments: object,
    timeout: float = 600,
    env: dict[str, str] | None = None,
    paths: tuple[Path | str, ...] = (),
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """The process that has run *source*, a text or a file.

    It imports from this folder and from *paths*.
    """
    # A process in the background may be started with SIGINT ignored, and hands that on.
    prelude = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program = [str(source)]
    if isinstance(source, str):
        program = ["-c", prelude + textwrap.dedent(source)]
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", *program, *map(str, arguments)],
        env=environment(env, paths),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def run_script(
    source: str | Path,
    *arguments: object,
    timeout: float = 600,
    env: dict[str, str] | None = None,
    paths: tuple[Path | str, ...] = (),
    cwd: Path | None = None,
    silent: bool = False,
) -> str:
    """What the script prints; AssertionError if it ends by a signal, an error, or not in time.

    A *silent* one writes nothing to stderr.
    """
    done = finished(source, *arguments, timeout=timeout, env=env, paths=paths, cwd=cwd)
    code = done.returncode
    ended = signal.Signals(-code).name if code < 0 else code
    assert ended == 0, f"{ended}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert not silent or done.stderr == "", done.stderr[-6000:]
    return done.stdout


def run_scene(
    name: str, *arguments: object, timeout: float = 600, env: dict[str, str] | None = None
) -> str:
    """What the scene ``"file.function"`` prints, with the texts of *arguments*; else as above."""
    return run_script(SCENES / "run.py", *name.split("."), *arguments, timeout=timeout, env=env)
