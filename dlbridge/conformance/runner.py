"""The check of one library: every case in a process of its own, so that a crash is a result."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import NamedTuple

from dlbridge.errors import ExchangeError

__all__ = ["Result", "check"]


class Result(NamedTuple):
    """The outcome of one line."""

    line: str
    """Of ``docs/conformance.md``."""
    rule: str
    result: str
    """``pass``, ``fail``, ``crash`` or ``not offered``."""
    evidence: str


def check(library: str, lines: list[str] | None = None) -> list[Result]:
    """The results of *lines*, by default of all, for the library of that module name.

    A crash or a hang is confirmed in a fresh process: it may be due to the fork.
    ExchangeError if the library cannot be imported.
    """
    from .worker import ALL

    if unknown := set(lines or ()) - ALL.keys():
        names = ", ".join(sorted(unknown))
        raise ValueError(f"no line {names} here; the lines are {', '.join(ALL)}")
    found = _run(library, lines or list(ALL))
    for line, (result, _) in found.items():
        if result == "crash":
            found[line] = _run(library, [line])[line]
    return [Result(line, ALL[line].rule, *found[line]) for line in found]


def _run(library: str, lines: list[str]) -> dict[str, tuple[str, str]]:
    """The result and evidence of each line, by one worker process."""
    command = [sys.executable, "-m", "dlbridge.conformance.worker", library, *lines]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = {}
    for text in done.stdout.splitlines():
        if text.startswith('["'):
            line, result, evidence = json.loads(text)
            found[line] = result, " ".join(evidence.split())
    if not found:
        last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise ExchangeError(f"{library} cannot be checked: {last[0]}")
    for line in lines:
        found.setdefault(line, ("crash", f"the worker ended with status {done.returncode}"))
    return found
