"""The check of one library: every case in a process of its own, so that a crash is a result.

From Python by `check`, and by the command ``conformance``.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from dlbridge.errors import ExchangeError

if TYPE_CHECKING:
    import argparse

    from .cases import Rule


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


@cache
def rules() -> dict[str, Rule]:
    """The rules by line, in the order of ``docs/conformance.md``.

    Their modules import numpy and cffi. They are imported here, because pytest loads the plug-in
    in runs that check no library, and X20 imports `Subject` in a sub-interpreter.
    """
    from .consumer_cases import CONSUMER
    from .producer_cases import PRODUCER
    from .stream_cases import STREAMS
    from .table_cases import TABLES

    return {**PRODUCER, **CONSUMER, **TABLES, **STREAMS}


# The command ------------------------------------------------------------------------

NOTHING = 3
"""The exit code where nothing was tested."""

COLUMNS = ("line", "rule", "result", "evidence")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``conformance``."""
    what = (
        "a module: numpy, torch@cuda:0; or a function that makes arrays: mylib.testing:make_array"
    )
    parser.add_argument("library", help=what)
    parser.add_argument("--lines", help="only the rules of these numbers, as P3,C22 (default: all)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print JSON")
    how.add_argument("--markdown", action="store_true", help="print a Markdown table")


def run(arguments: argparse.Namespace) -> int:
    """Print the results; the exit code says whether the library could be checked.

    `NOTHING`, if it offers nothing that the lines are about.
    """
    lines = arguments.lines.split(",") if arguments.lines else None
    results = check(arguments.library, lines)
    if arguments.json:
        report = {
            "library": arguments.library,
            "version": version_of(arguments.library),
            "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d"),
            "results": [dict(zip(COLUMNS, result, strict=True)) for result in results],
        }
        json.dump(report, sys.stdout, indent=2)
        print()
    elif arguments.markdown:
        print(markdown(arguments.library, results))
    else:
        for line, rule, result, evidence in results:
            print(f"{line:4} {result:12} {rule}\n{'':17} {evidence}")
        print(_summary(results))
    if all(result.result == "not offered" for result in results):
        print(f"{arguments.library}: nothing was tested; no line is offered", file=sys.stderr)
        return NOTHING
    return 0


def markdown(library: str, results: list[Result]) -> str:
    """A section with the lines that are not passed, and the numbers of all.

    What a library does not offer is told once for all lines with the same evidence.
    """
    version = f"{library} {version_of(library)}".strip()
    rows = [
        f"| {result.line} | {_cell(result.rule)} | {result.result} | {_cell(result.evidence)} |"
        for result in results
        if result.result in ("fail", "crash")
    ]
    missing: dict[str, list[str]] = {}
    for result in results:
        if result.result == "not offered":
            missing.setdefault(_cell(result.evidence), []).append(result.line)
    where = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    head = [
        f"### {version}",
        "",
        f"{time.strftime('%Y-%m-%d')}, {where}: {_summary(results)}.",
        "",
    ]
    table = ["| Line | Rule | Result | Evidence |", "|---|---|---|---|", *rows, ""]
    notes = [f"- {', '.join(lines)}: {why}" for why, lines in missing.items()]
    if notes:
        notes = ["Not offered:", "", *notes, ""]
    return "\n".join([*head, *(table if rows else []), *notes]).rstrip()


def _summary(results: list[Result]) -> str:
    counts = Counter(result.result for result in results)
    kinds = ("pass", "fail", "crash", "not offered")
    return ", ".join(f"{counts[kind]} {kind}" for kind in kinds)


def _cell(text: str) -> str:
    short = text if len(text) <= 160 else f"{text[:157]}..."
    short = short.replace("|", "\\|").replace("<", "&lt;")
    # As code: Markdown shows the name between the underscores of __dlpack__ bold.
    return re.sub(r"`[^`]*`|\b__\w+__\b", lambda match: f"`{match[0].strip('`')}`", short)


def version_of(library: str) -> str:
    """The version of the distribution that has the module; empty if there is none."""
    from importlib.metadata import PackageNotFoundError, packages_distributions, version

    library = library.partition("@")[0].partition(":")[0]
    package = library.partition(".")[0]
    # Most have the module's name (cuda-core, mlx), and this is the quick way.
    for name in (library.replace(".", "-"), package):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    names = packages_distributions().get(package, [])
    # nvidia-dali-cuda120 has nvidia.dali, and is one of many with a part of "nvidia".
    own = [name for name in names if name.replace("_", "-").startswith(library.replace(".", "-"))]
    return version((own or names)[0]) if names else ""
