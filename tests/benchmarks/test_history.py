"""The ratios of the tables over the commits: what a night adds to a file, and the pictures."""

from __future__ import annotations

import pytest

from tests.benchmarks.history import ABOUT, FOLDER, append, plot, ratios, read

A, B = (dict(zip(ABOUT, (c, "2026-11-28", "Linux", "Python 3"), strict=True)) for c in "ab")


def test_the_best_time_of_all_turns_counts_on_both_sides():
    def run(ours, peer):
        rows = [{"operation": "x", "ns": ours, "peers": {"numpy": peer, "torch": 900}}]
        return {"rows": [*rows, {"operation": "floor", "ns": 1, "peers": {}}]}

    assert ratios([run(300, 100), run(200, 150)]) == {"x": "2"}


def test_a_night_adds_one_line_and_changes_no_other(tmp_path):
    path = tmp_path / "exchange.csv"
    assert append(path, {**A, "f(x, y)": "1.00"})
    before = path.read_text()
    assert append(path, {**B, "f(x, y)": "1.10"})
    assert path.read_text().startswith(before)
    assert not append(path, {**B, "day": "2026-11-29", "f(x, y)": "1.20"})  # measured already
    assert append(path, {**B, "versions": "Python 4", "f(x, y)": "1.30"})
    assert [line["f(x, y)"] for line in read(path)] == ["1.00", "1.10", "1.30"]


def test_an_operation_may_come_and_go(tmp_path):
    path = tmp_path / "exchange.csv"
    append(path, {**A, "old": "1.00"})
    append(path, {**B, "new": "2.00"})
    assert read(path) == [{**A, "old": "1.00"}, {**B, "new": "2.00"}]


def test_the_same_data_give_the_same_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed here")
    lines = [
        {**A, "old": "1.00", "`x`": "3.00"},
        {**B, "new": "2.00", "`x`": "2.50", "machine": "M"},
    ]
    texts = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        plot(tmp_path / folder / "exchange.svg", lines)
        texts.append((tmp_path / folder / "exchange.svg").read_text())
    assert texts[0] == texts[1]
    assert all(f">{word}<" in texts[0] for word in ("old", "new", "x", "a", "b"))


def test_committed_files_begin_with_the_same_commit():
    files = sorted(FOLDER.glob("*.csv"))
    assert files
    for path in files:
        lines = read(path)
        assert lines[0]["commit"] == "10c70c3b"
        assert len(lines) >= 2
        assert all(float(line[name]) > 0 for line in lines for name in line if name not in ABOUT)
