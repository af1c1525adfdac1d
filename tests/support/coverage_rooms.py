"""What the tests run of each room, as a table, and by name what they do not: for `make coverage`.

``coverage_rooms.py FILE`` reads the report that ``coverage json`` has written; with ``--write`` it
replaces the last part of tests/COVERAGE.md, which says how to read them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from collections import Counter, defaultdict
from pathlib import Path, PurePosixPath
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "COVERAGE.md"
MARK = "<!-- written by tests/support/coverage_rooms.py -->"

# The rooms of which each is a folder in another one.
WIDE = {"dlbridge", "dlbridge/core", "backends"}


def room_of(file: str) -> str:
    """The room of a *file*: a folder of dlbridge or of its core, a backend, or dlbridge itself."""
    folder = PurePosixPath(file).parent
    while str(folder.parent) not in {*WIDE, "."}:
        folder = folder.parent
    return str(folder)


def share(part: int, whole: int) -> str:
    """*part* of *whole* in per cent, with one digit: 99.96 is not 100."""
    return f"{int(1000 * part / whole) / 10:.1f}" if whole else ""


def table(report: dict[str, Any]) -> str:
    """Each room: its statements and branches, and how many of them were run."""
    rooms: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for file, found in report["files"].items():
        for room in (room_of(file), "all"):
            rooms[room].update({key: int(value) for key, value in found["summary"].items()})
    lines = [
        "| room | statements | run, % | branches | run, % |",
        "|---|--:|--:|--:|--:|",
    ]
    for room in [*sorted(set(rooms) - {"all"}), "all"]:
        of = rooms[room]
        lines.append(
            f"| `{room}` | {of['num_statements']:,} "
            f"| {share(of['covered_lines'], of['num_statements'])} | {of['num_branches']:,} "
            f"| {share(of['covered_branches'], of['num_branches'])} |"
        )
    return "\n".join(lines)


def not_entered(report: dict[str, Any]) -> str:
    """The functions of which no line was run, by file."""
    lines = []
    for file, found in sorted(report["files"].items()):
        names = [
            name
            for name, of in found["functions"].items()
            if name and of["summary"]["num_statements"] and not of["summary"]["covered_lines"]
        ]
        if names:
            lines.append(f"- `{file}`: " + ", ".join(f"`{name}`" for name in names))
    return "\n".join(lines)


def main() -> None:
    """Print both for a report, and write them where that is asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--write", action="store_true", help="also into tests/COVERAGE.md")
    arguments = parser.parse_args()
    report = json.loads(arguments.report.read_text())
    when = datetime.datetime.fromisoformat(report["meta"]["timestamp"]).date()
    text = (
        f"{when}, CPython {platform.python_version()}, coverage {report['meta']['version']}.\n\n"
        f"{table(report)}\n\n## Functions of which no line was run\n\n{not_entered(report)}\n"
    )
    print(text, end="")
    if arguments.write:
        before, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
        PAGE.write_text(f"{before}{mark}\n\n{text}", encoding="utf-8")


if __name__ == "__main__":
    main()
