"""The check of one library: every case in a process of its own, so that a crash is a result."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from typing import NamedTuple

from dlbridge.errors import ExchangeError

from .rules import rules


class Result(NamedTuple):
    """The outcome of one line."""

    line: str
    """Of ``docs/conformance.md``."""
    rule: str
    result: str
    """``pass``, ``fail``, ``crash`` or ``not offered``."""
    evidence: str


def check(library: str, lines: list[str] | None = None) -> list[Result]:
    """The results of *lines*, by default of all, for one library.

    *library* is the name of its module, as ``torch`` or ``torch@cuda:0``, or a function of
    yours that makes an array of it from one of numpy, as ``mylib.testing:make_array``.
    A crash or a hang is confirmed in a fresh process: it may be due to the fork.
    ExchangeError if the library cannot be imported.

    Examples
    --------
    >>> from dlbridge.conformance import check
    >>> [result.result for result in check("numpy", ["P1", "P29"])]
    ['pass', 'fail']
    """
    if unknown := set(lines or ()) - rules().keys():
        names = ", ".join(sorted(unknown))
        raise ValueError(f"no line {names} here; the lines are {', '.join(rules())}")
    with contextlib.closing(Check(library)) as checking:
        return [checking.run(line) for line in lines or rules()]


class Check:
    """A worker process that has imported the library, and runs one rule after another."""

    def __init__(self, library: str) -> None:
        self.library = library
        self._worker: subprocess.Popen[str] | None = None

    def run(self, line: str) -> Result:
        """The result of one line; a crash is tried again in a new worker."""
        fresh = self._worker is None
        result, evidence = self._ask(line)
        if result == "crash" and not fresh:
            self.close()
            result, evidence = self._ask(line)
        if not hasattr(os, "fork"):
            self.close()
        return Result(line, rules()[line].text, result, evidence)

    def _ask(self, line: str) -> tuple[str, str]:
        if self._worker is None:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the worker
            # It imports what this process would: pytest adds folders, and does not add the one
            # where it runs, which may have the library's sources, unbuilt.
            command = [sys.executable, "-P", "-m", "dlbridge.conformance.worker", self.library]
            path = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])
            pipe = subprocess.PIPE
            self._worker = subprocess.Popen(
                command,
                stdin=pipe,
                stdout=pipe,
                stderr=self._errors,
                text=True,
                env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)},
            )
        worker = self._worker
        assert worker.stdin is not None
        assert worker.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it is told by the end of its output
            worker.stdin.write(f"{line}\n")
            worker.stdin.flush()
        for text in worker.stdout:
            if text.startswith('["'):
                result, evidence = json.loads(text)
                return result, " ".join(evidence.split())
        status = worker.wait()
        self._errors.seek(0)
        told = self._errors.read().decode(errors="replace").strip().splitlines()
        self.close()
        if status == 1:
            last = (told or [f"status {status}"])[-1]
            raise ExchangeError(f"{self.library} cannot be checked: {last}")
        return "crash", f"the worker ended with status {status}"

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            with contextlib.suppress(BrokenPipeError):  # it has crashed
                self._worker.communicate()
            self._worker = None
            self._errors.close()
