"""The Python of every page of the documents, read by mypy in one run: `make lint` calls it.

    python tests/support/check_pages.py

The blocks of a page are one program, as for the tests that run them; an error names the page and
its line.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.pages import PYTHON

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".mypy_cache" / "pages"

NOT_READ = {
    "docs/writing-a-backend.md": "its blocks are modules of several packages; a test builds them",
}

SECTIONS = {"docs/howto/bring-your-pointer.md"}
"""Pages of which each section is a program of its own."""

UNTYPED = ("av",)
"""Libraries of the examples that are not installed where the lint runs."""


def programs() -> dict[tuple[str, int], list[str]]:
    """Page and section -> a program, each line of which has the number that it has in the page."""
    found: dict[tuple[str, int], list[str]] = {}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        page = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        if page in NOT_READ:
            continue
        for block in PYTHON.finditer(text):
            section = text.count("\n## ", 0, block.start()) if page in SECTIONS else 0
            lines = found.setdefault((page, section), [""] * (text.count("\n") + 1))
            first = text[: block.start(1)].count("\n")
            for number, line in enumerate(block[1].splitlines(), first):
                lines[number] = line
            if page.startswith("docs/reference/"):  # its examples go on with those of the page
                lines[0] = f"from {module(page.replace('reference/', ''), 0)} import *"
    return found


def module(page: str, section: int) -> str:
    """A name that an import can have."""
    return re.sub(r"\W", "_", f"{page.removesuffix('.md').lower()}_{section}")


def write(folder: Path) -> dict[str, str]:
    """Put each program into *folder*; the name of its file -> the page."""
    names = {}
    for (page, section), lines in programs().items():
        name = f"{module(page, section)}.py"  # each is a module by itself
        (folder / name).write_text("\n".join([*lines, ""]), encoding="utf-8")
        names[name] = page
    return names


def main() -> int:
    """Print each error as the page's; 1 if there is one."""
    with tempfile.TemporaryDirectory() as folder:
        names = write(Path(folder))
        for library in UNTYPED:
            stub = "from typing import Any\ndef __getattr__(name: str) -> Any: ...\n"
            (Path(folder) / f"{library}.pyi").write_text(stub, encoding="utf-8")
        command = [sys.executable, "-m", "mypy", "--config-file=", "--check-untyped-defs"]
        # Scripts, not packages: what they call is checked, not how they annotate. Not every
        # library has types.
        command += ["--allow-untyped-globals", "--disable-error-code=import-untyped"]
        command += ["--follow-imports=silent", f"--cache-dir={CACHE}"]
        done = subprocess.run(
            [*command, *names], cwd=folder, capture_output=True, text=True, check=False
        )
    for line in done.stdout.splitlines():
        name, colon, rest = line.partition(":")
        print(f"{names.get(name, name)}{colon}{rest}")
    print(done.stderr, file=sys.stderr, end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
