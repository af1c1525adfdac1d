"""Programs in processes of their own: what may crash or hang must not take the tests with it.

A program of some lines is a function of a file in ``tests/scenes``; a short one stands in its test.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
from functools import cache
from pathlib import Path

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]
SCENES = SUPPORT.parent / "scenes"


def environment(
    changes: dict[str, str] | None = None, paths: tuple[Path | str, ...] = ()
) -> dict[str, str]:
    """The environment of a process that imports dlbridge, the tests' modules and *paths*, with *changes*."""
    folders = [*map(str, paths), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), **(changes or {})}


class ForkServer:
    """A process that has imported *modules* and used nothing: programs run in forks of it."""

    def __init__(self, *modules: str) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", SUPPORT / "fork_server.py", *modules],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,  # what `select` waits for is in no buffer
        )
        atexit.register(self.close)

    def run(
        self, source: str, arguments: list[str], timeout: float, env: dict[str, str], cwd: Path
    ) -> subprocess.CompletedProcess[str]:
        """The process that has run *source*, or the file that the first argument names."""
        with tempfile.TemporaryDirectory() as folder:
            outputs = [Path(folder, name) for name in ("out", "err")]
            for path in outputs:
                path.touch()
            asked = {"source": source, "arguments": arguments, "env": env, "cwd": str(cwd)}
            assert self._process.stdin
            assert self._process.stdout
            line = json.dumps({**asked, "outputs": list(map(str, outputs))})
            self._process.stdin.write(f"{line}\n".encode())
            child = self._line()
            if not select.select([self._process.stdout], [], [], timeout)[0]:
                os.kill(child, signal.SIGKILL)
                self._line()
                raise subprocess.TimeoutExpired(arguments or source, timeout)
            code = self._line()
            return subprocess.CompletedProcess(
                arguments, code, *(path.read_text(errors="replace") for path in outputs)
            )

    def _line(self) -> int:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise AssertionError(f"the server of forks has ended: {self._errors.read()}")
        return int(line)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


fork_server = cache(ForkServer)
"""The process that has imported these modules, one for all tests of this process."""


def finished(
    source: str | Path,
    *arguments: object,
    timeout: float = 600,
    env: dict[str, str] | None = None,
    paths: tuple[Path | str, ...] = (),
    cwd: Path | None = None,
    imported: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """The process that has run *source*, a text or a file.

    It imports the tests' modules by their whole names, and from *paths*. With *imported* it is a fork of a process that has
    imported these modules and used nothing, which saves a second; not for a program that is about
    imports. "-torch" says that there is none: tvm_ffi imports it where it can, in 1.5 s.
    """
    if imported and hasattr(os, "fork"):
        text = textwrap.dedent(source) if isinstance(source, str) else ""
        words = [*([] if text else [str(source)]), *map(str, arguments)]
        where = cwd or Path.cwd()
        return fork_server(*imported).run(text, words, timeout, environment(env, paths), where)
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
    imported: tuple[str, ...] = (),
    silent: bool = False,
) -> str:
    """What the script prints; AssertionError if it ends by a signal, an error, or not in time.

    A *silent* one writes nothing to stderr.
    """
    done = finished(
        source, *arguments, timeout=timeout, env=env, paths=paths, cwd=cwd, imported=imported
    )
    code = done.returncode
    ended = signal.Signals(-code).name if code < 0 else code
    assert ended == 0, f"{ended}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert not silent or done.stderr == "", done.stderr[-6000:]
    return done.stdout


def run_scene(
    name: str, *arguments: object, timeout: float = 600, env: dict[str, str] | None = None
) -> str:
    """What the scene ``"file.function"`` prints, with the texts of *arguments*; else as above.

    Those of ``fresh.py`` are about a first import; the others have the core imported.
    """
    file, function = name.split(".")
    imported = () if file == "fresh" else ("numpy", "tests.support.whole_core")
    words = file, function, *arguments
    return run_script(SCENES / "run.py", *words, timeout=timeout, env=env, imported=imported)


def run_pytest(
    *arguments: object,
    env: dict[str, str] | None = None,
    paths: tuple[Path | str, ...] = (),
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """The process that has run ``python -m pytest``, a fork of one that has imported it."""
    program = "import sys, pytest; sys.exit(pytest.main())"
    imported = ("numpy", "pytest", "tests.support.whole_core")
    return finished(program, *arguments, env=env, paths=paths, cwd=cwd, imported=imported)


def run_command(
    *arguments: object,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    torch: bool = False,
) -> subprocess.CompletedProcess[str]:
    """The process that has run ``python -m dlbridge``, a fork of one that has imported it.

    The demo filters with torch, too, where it is: two seconds.
    """
    program = "import sys; from dlbridge.cli import main; sys.exit(main())"
    imported = (
        *(() if torch else ("-torch",)),
        "numpy",
        "tests.support.whole_core",
        "dlbridge.cli",
    )
    return finished(program, *arguments, env=env, cwd=cwd, imported=imported)
