"""`measure.py --against-tree`: the rows of two trees in turns."""

from __future__ import annotations

import os

import pytest

from tests.benchmarks.trees import ROOT, Compared, compared, table

ROWS = """
from dlbridge.cli.bench import Row
import dlbridge

def rows(wanted, repeats):
    with open({log!r}, "a") as log:
        log.write(getattr(dlbridge, "tree", "ours") + "\\n")
    only = ["other"] if hasattr(dlbridge, "tree") else ["ours"]
    names = filter(wanted, ["same", "slower", *only])
    return [Row(name, (100 if only == ["other"] else 200) if name == "slower" else 50) for name in names]
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A benchmark that takes no time."""
    (tmp_path / "toy_rows.py").write_text(ROWS.format(log=str(tmp_path / "log")))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return "toy_rows"


@pytest.fixture
def other(tmp_path):
    """A tree whose package is this one's and says that it is another."""
    package = tmp_path / "other" / "dlbridge"
    package.mkdir(parents=True)
    for path in (ROOT / "dlbridge").iterdir():
        if path.name != "__init__.py":
            (package / path.name).symlink_to(path)
    first = (ROOT / "dlbridge" / "__init__.py").read_text(encoding="utf-8")
    (package / "__init__.py").write_text(f"{first}\ntree = 'other'\n")
    return package.parent


def test_two_rounds_of_two_trees(toy, other, tmp_path):
    rows = compared(toy, other, 2, 1)
    assert rows == [Compared("same", 50, 50), Compared("slower", 200, 100)]
    assert [row.is_slower for row in rows] == [False, True]
    said = table(rows)
    assert "| slower | 200 | 100 | 2.00 |" in said
    assert said.endswith("slower by more than 15%: slower")
    turns = ["ours", "other", *["other", "ours"] * 2, *["ours", "other"] * 2, "other", "ours"]
    assert (tmp_path / "log").read_text().split() == turns


def test_a_tree_without_the_package(toy, tmp_path, capfd):
    with pytest.raises(SystemExit, match="the process of a tree has ended"):
        compared(toy, tmp_path, 1, 0)
    assert f"and not of {tmp_path}" in capfd.readouterr().err
