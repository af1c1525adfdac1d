"""conformance: what a library does with each rule of DLPack, as a producer and as a consumer."""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from dlbridge.conformance import check

if TYPE_CHECKING:
    from dlbridge.conformance import Result


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
    """Print the results; the exit code says whether the library could be checked."""
    lines = arguments.lines.split(",") if arguments.lines else None
    results = check(arguments.library, lines)
    if arguments.json:
        found = {
            "library": arguments.library,
            "version": version_of(arguments.library),
            "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d"),
            "results": [dict(zip(COLUMNS, result, strict=True)) for result in results],
        }
        json.dump(found, sys.stdout, indent=2)
        print()
    elif arguments.markdown:
        print(markdown(arguments.library, results))
    else:
        for line, rule, result, evidence in results:
            print(f"{line:4} {result:12} {rule}\n{'':17} {evidence}")
        print(_summary(results))
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
    return re.sub(r"`[^`]*`|\b__\w+__\b", lambda found: f"`{found[0].strip('`')}`", short)


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
