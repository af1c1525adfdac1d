"""Writes what the checks found into docs/compatibility.md: the table of cells, and the sections.

A row or a section takes the place of the library's own one; the others stay.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["write_rows", "write_section"]

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
HEAD = "| Library | Date |"
CELLS = [
    "in",
    "out",
    "name",
    "module",
    "example",
    "OpenCL",
    "Vulkan",
    "life in",
    "life out",
    "exit",
]
LAST = "## What each library does"
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
    start = text.index(HEAD)
    end = text.index("\n\n", start)
    rows = {_name(row): row for row in text[start:end].splitlines()[2:]}
    for (library, version), found in results.items():
        name = f"{library} {version}".strip()
        words = [_words(found.get(cell, "?")) for cell in CELLS]
        rows[library] = f"| {name} | {time.strftime('%Y-%m-%d')} | {' | '.join(words)} |"
    head = text[start:end].splitlines()[:2]
    table = [*head, *(rows[name] for name in sorted(rows, key=str.lower))]
    DOCUMENT.write_text(text[:start] + "\n".join(table) + text[end:], encoding="utf-8")


def _name(row: str) -> str:
    return row.split("|", 2)[1].split(maxsplit=1)[0]


def _words(result: str) -> str:
    return WORDS.get(result, result)


def write_section(library: str, section: str) -> None:
    """The results of the conformance command, as `--markdown` prints them.

    Without the lines that are not offered, which the command shows: the counts are enough here.
    """
    text = DOCUMENT.read_text(encoding="utf-8")
    start = text.index(LAST)
    before, *sections = re.split(r"^(?=### )", text[start:], flags=re.MULTILINE)
    by_name = {each.split(maxsplit=2)[1]: each.strip() for each in sections}
    by_name[library] = section.partition("\nNot offered:\n")[0].strip()
    DOCUMENT.write_text(
        text[:start] + before + "\n\n".join(by_name.values()) + "\n", encoding="utf-8"
    )
