"""docs/conformance.md says of every line which test shows it, and the tests agree.

The lines are named in comments (``# P42``, ``# C10, C12``) wherever a test shows them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES = {"P": 57, "C": 40, "X": 17, "I": 27, "S": 17}
ALL = [f"{letter}{number}" for letter, last in LINES.items() for number in range(1, last + 1)]

ROW = re.compile(r"^\| ([PCXIS]\d+) \| ([^|]+) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
COMMENT = re.compile(r"# ((?:[PCXIS]\d+(?:, ?| )?)+)(?=$|[:;.])", re.MULTILINE)
NAME = re.compile(r"[PCXIS]\d+")


def rows():
    text = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    return [match.groups() for match in ROW.finditer(text)]


def named():
    """Line -> the test files that name it."""
    found = {}
    folders = [ROOT / "tests", *ROOT.glob("backends/*/tests")]
    paths = {path for folder in folders for path in folder.rglob("*.py")} - {
        Path(__file__).resolve()
    }
    for path in sorted(paths):
        for comment in COMMENT.finditer(path.read_text(encoding="utf-8")):
            for line in NAME.findall(comment[1]):
                found.setdefault(line, set()).add(path.relative_to(ROOT).as_posix())
    return found


ROWS = {row[0]: row for row in rows()}
NAMED = named()


def test_every_line_has_one_row():
    assert [row[0] for row in rows()] == ALL


@pytest.mark.parametrize("line", ALL)
def test_a_line_is_shown_or_says_why_not(line):
    _, rule, shown_by, note = ROWS[line]
    assert rule.strip()
    files = set(re.findall(r"`([^`]+)`", shown_by))
    if not files:
        assert note.startswith("Not tested: "), f"{line} is neither shown nor explained"
    assert files <= NAMED.get(line, set()), f"{line}: no comment '# {line}' in these"


def test_no_test_names_a_line_that_there_is_not():
    assert NAMED.keys() <= set(ALL)


def test_the_comments_are_found():
    """The reader of comments reads what tests have, and no prose."""
    found = COMMENT.findall("def test():  # P1, C2\n# S3 S4\nx = 1  # P5 among others\n# I6: why\n")
    assert [NAME.findall(one) for one in found] == [["P1", "C2"], ["S3", "S4"], ["I6"]]
