"""Writes what the checks found into RESULTS.md: the cells, and the rules of DLPack.

What is written of a library takes the place of what stood there; that of the others stays.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlbridge.conformance.runner import rules

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["write_conformance", "write_rows"]

DOCUMENT = Path(__file__).with_name("RESULTS.md")
HEAD = "| Library | Date |"
COLUMNS = [
    ["in"],
    ["out"],
    ["name", "module", "example"],
    ["OpenCL"],
    ["Vulkan"],
    ["life in", "life out", "exit"],
]
"""The cells of each column."""
COUNTS = "| Library | Date | pass |"
BROKEN = "| Line | Rule | Not kept by |"
WORDS = {"": "✓", "copy": "✓ copy", "refused": "✓ refused", "-": "-"}


def write_rows(lines: Iterable[str]) -> None:
    """The rows of the libraries in *lines*, which `cells.record` wrote.

    A cell that has no line failed, or could not be run: it is a question mark.
    """
    results: dict[tuple[str, str], dict[str, str]] = {}
    for line in lines:
        library, version, cell, result = json.loads(line)
        results.setdefault((library, version), {})[cell] = result
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = {_name(row[0]): row for row in _rows_of(text, HEAD)}
    for (library, version), found in results.items():
        words = [_words([found.get(cell, "?") for cell in cells]) for cells in COLUMNS]
        rows[library] = [f"{library} {version}".strip(), time.strftime("%Y-%m-%d"), *words]
    ordered = [rows[name] for name in sorted(rows, key=str.lower)]
    DOCUMENT.write_text(_with_rows(text, HEAD, ordered), encoding="utf-8")


def write_conformance(report: dict[str, Any]) -> None:
    """The results of one library, as the conformance command prints them by ``--json``."""
    library, results = report["library"], report["results"]
    text = DOCUMENT.read_text(encoding="utf-8")
    counts = {_name(row[0]): row for row in _rows_of(text, COUNTS)}
    found = Counter(result["result"] for result in results)
    numbers = [str(found[kind]) for kind in ("pass", "fail", "crash", "not offered")]
    counts[library] = [f"{library} {report['version']}".strip(), report["date"], *numbers]
    ordered = [counts[name] for name in sorted(counts, key=str.lower)]
    text = _with_rows(text, COUNTS, ordered)

    broken = {line: set(names.split(", ")) for line, _, names in _rows_of(text, BROKEN)}
    for names in broken.values():
        names -= {library, f"{library} (crash)"}
    for result in results:
        if result["result"] in ("fail", "crash"):
            name = library if result["result"] == "fail" else f"{library} (crash)"
            broken.setdefault(result["line"], set()).add(name)
    ordered = [
        [line, rule.text, ", ".join(sorted(broken[line], key=str.lower))]
        for line, rule in rules().items()
        if broken.get(line)
    ]
    DOCUMENT.write_text(_with_rows(text, BROKEN, ordered), encoding="utf-8")


def _rows_of(text: str, head: str) -> list[list[str]]:
    """The cells of the table that begins with *head*."""
    table = text[text.index(head) :].partition("\n\n")[0]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]


def _with_rows(text: str, head: str, rows: list[list[str]]) -> str:
    """*text* with other rows in the table that begins with *head*."""
    before, found, after = text.partition(head)
    table, end, rest = after.partition("\n\n")
    heads = table.splitlines()[:2]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return before + found + "\n".join([*heads, *lines]) + (end or "\n") + rest


def _name(cell: str) -> str:
    return cell.split(maxsplit=1)[0]


def _words(results: list[str]) -> str:
    """Those of a column: of cells with one result, one."""
    return ", ".join(dict.fromkeys(WORDS.get(result, result) for result in results))
