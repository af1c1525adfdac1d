"""The file of failures that a library expects: the number of a line, and the reason."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .rules import RULES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .runner import Result

__all__ = ["read_expected", "unexpected"]


def read_expected(path: str | Path) -> dict[str, str]:
    """Line -> reason, of a file with ``P40 the reason`` in each line; ``#`` begins a comment.

    ValueError for a line that no rule has, that stands twice, or that has no reason.
    """
    found: dict[str, str] = {}
    for number, text in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        line, _, reason = text.strip().partition(" ")
        if not line or line.startswith("#"):
            continue
        if line not in RULES:
            raise ValueError(f"{path}:{number}: no rule has the number {line!r}")
        if line in found or not reason.strip():
            wrong = "it stands twice" if line in found else "a reason must follow"
            raise ValueError(f"{path}:{number}: {line}: {wrong}")
        found[line] = reason.strip()
    return found


def unexpected(results: Iterable[Result], expected: dict[str, str]) -> list[str]:
    """What differs from *expected*: failures that are not in it, and passes that are."""
    found = []
    for line, rule, result, evidence in results:
        if result in ("fail", "crash") and line not in expected:
            found.append(f"{line} {result}: {rule}: {evidence}")
        if result == "pass" and line in expected:
            found.append(f"{line} passes; it was expected to fail: {expected[line]}")
    return found
