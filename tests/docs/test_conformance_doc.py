"""tests/conformance/LINES.md, which docs/conformance.md shows, says of every line which test
shows it, and the tests agree.

The suite shows the lines that it has (``tests/conformance/test_ours.py`` runs all of them on
dlbridge, and each must be kept by a tensor of ours). Other tests name lines in comments
(``# P42``, ``# C10, C12``). ``python tests/docs/test_conformance_doc.py --write`` writes the
columns of the file that follow from both: the rule, and its source in the suite or else the tests.
``--list`` prints every line with all that shows it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from dlbridge.conformance.runner import rules

RULES = rules()
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "tests" / "conformance" / "LINES.md"
LINES = {"P": 58, "C": 40, "X": 21, "I": 27, "S": 17}
ALL = [f"{letter}{number}" for letter, last in LINES.items() for number in range(1, last + 1)]

ROW = re.compile(r"^\| ([PCXIS]\d+) \| ([^|]+) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
COMMENT = re.compile(r"# ((?:[PCXIS]\d+(?:, ?| )?)+)(?=$|[:;.])", re.MULTILINE)
NAME = re.compile(r"[PCXIS]\d+")


def rows():
    return [match.groups() for match in ROW.finditer(PAGE.read_text(encoding="utf-8"))]


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


NAMED = named()


def row_of(line, rule, note):
    """The row of *line* as the suite and the comments have it today."""
    if line in RULES:
        rule, shown = RULES[line].text, RULES[line].source
    else:
        shown = ", ".join(f"`{path}`" for path in sorted(NAMED.get(line, ())))
    return f"| {line} | {rule} | {shown} | {note} |"


def test_every_line_has_one_row():
    assert [row[0] for row in rows()] == ALL


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_line_is_shown_or_says_why_not(row):
    line, rule, shown, note = row
    assert f"| {line} | {rule} | {shown} | {note} |" == row_of(line, rule, note), (
        "run python tests/docs/test_conformance_doc.py --write"
    )
    assert shown or note.startswith("Not tested: "), f"{line} is neither shown nor explained"


def test_no_test_names_a_line_that_there_is_not():
    assert NAMED.keys() <= set(ALL)


def test_the_comments_are_found():
    """The reader of comments reads what tests have, and no prose."""
    found = COMMENT.findall("def test():  # P1, C2\n# S3 S4\nx = 1  # P5 among others\n# I6: why\n")
    assert [NAME.findall(one) for one in found] == [["P1", "C2"], ["S3", "S4"], ["I6"]]


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        for line in ALL:
            print(f"{line}:", *["the suite"] * (line in RULES), *sorted(NAMED.get(line, ())))
        sys.exit()
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    text = PAGE.read_text(encoding="utf-8")
    new = ROW.sub(lambda row: row_of(row[1], row[2], row[4]), text)
    PAGE.write_text(new, encoding="utf-8")
