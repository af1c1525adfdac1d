"""Benchmarks as a maintainer runs them; beside a committed table: the comparison itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dlbridge.cli.bench import Row, table
from tests.benchmarks import bench_growth
from tests.benchmarks.compare import read_ratios, read_rows, remeasured, stamp, summary, worse
from tests.benchmarks.measuring import side
from tests.support.peers import peer


def run(*arguments, cwd, backends="cpu,ext_dev"):
    """A measurement in a process of its own."""
    return subprocess.run(
        [sys.executable, str(Path(__file__).with_name("measure.py")), *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "DLBRIDGE_BACKENDS": backends},
        check=False,
    )


def row(operation, ns, peer=100.0, note=""):
    return Row(operation, ns, {"numpy": peer} if peer else {}, floor=10.0, note=note)


TABLES = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
KNOWN = {"a": 2.0, "b (x, y)": 0.03}


def test_the_ratios_of_a_table_that_was_written():
    rows = [row("a", 200), row("b", 3, note="x, y"), row("no peer", 50, peer=0)]
    assert read_ratios(table(rows, "bench x: y")) == KNOWN
    assert read_ratios("") == {}


def test_the_rows_of_a_table_that_was_written():
    several = Row("f(torch), so many: 1,000", 3.0, {"numpy": 2.0, "cuda.core": 1.0}, note="x, y")
    rows = [row("from_dlpack(x)", 200), several, row("no peer", 50, peer=0)]
    for each in rows:
        each.floor = 0.0
    assert read_rows(table(rows, "bench x: y")) == rows


@pytest.mark.parametrize("name", ["exchange", "growth"])
def test_a_picture_is_of_its_table(name):
    """`make bench-write` draws it; by hand: measure.py NAME --draw docs/benchmarks/NAME.md."""
    images = peer("PIL.Image")
    text = (TABLES / f"{name}.md").read_text(encoding="utf-8")
    with images.open(TABLES / f"{name}.png") as picture:
        assert picture.info.get("Description") == stamp(read_rows(text))


@pytest.mark.parametrize(
    ("page", "words", "table_of", "operation"),
    [
        ("performance", "`from_dlpack` of a numpy array", "exchange", "from_dlpack(numpy)"),
        ("performance", 'torch_tensor, "cpu"', "exchange", "to_device(torch, 'cpu', like='numpy')"),
        ("performance", 'numpy_array, "cpu"', "exchange", "to_device(numpy, 'cpu', like='torch')"),
        ("performance", "array of jax |", "exchange", "from_dlpack(jax bfloat16)"),
        ("performance", "`empty(3)`", "exchange", "empty(3)"),
        ("performance", "same call, bound |", "ffi", "nop(1, 2, 3)"),
        ("performance", "same call, bound | 1.0 us;", "ffi", "bound nop(1, 2, 3)"),
        ("howto/bring-your-pointer", "`from_blob` as well:", "exchange", "from_blob(address, shape, dtype)"),
        ("howto/bring-your-pointer", "where that of a Tensor takes", "exchange", "`__dlpack__(max_version=(1, 3))`"),
    ],
)  # fmt: skip
def test_figures_of_pages_are_those_of_the_tables(page, words, table_of, operation):
    text = (TABLES.parent / f"{page}.md").read_text(encoding="utf-8")
    figure = re.match(r"[^.\d]*(\d+(?:\.(\d+))?)", text[text.index(words) + len(words) :])
    rows = read_rows((TABLES / f"{table_of}.md").read_text(encoding="utf-8"))
    (ns,) = [row.ns for row in rows if row.operation == operation]
    assert figure
    assert f"{ns / 1000:.{len(figure[2] or '')}f}" == figure[1], f"{ns} ns"


def test_committed_tables_can_be_read():
    for name in ("exchange", "ffi", "pack"):
        ratios = read_ratios((TABLES / f"{name}.md").read_text(encoding="utf-8"))
        assert len(ratios) > 10
        assert all(ratio > 0 for ratio in ratios.values())


@pytest.mark.parametrize(
    ("measured", "is_worse"),
    [
        *((row("a", ns), False) for ns in (100, 200, 230)),
        *((row("a", ns), True) for ns in (232, 500)),
        (row("a", 2000, peer=1000.0), False),  # a slower machine
        (row("b", 3.9, note="x, y"), False),  # the table has two decimals
        (row("b", 4.2, note="x, y"), True),
        (row("new", 999), False),
        (row("a", 999, peer=0), False),
    ],
)
def test_worse_by_more_than_fifteen_percent(measured, is_worse):
    assert bool(worse([measured], KNOWN)) is is_worse


def test_only_what_looks_worse_is_measured_again_until_it_is_not():
    asked = []

    def measure(wanted):
        names = [name for name in ("a", "c") if wanted(name)]
        asked.append(names)
        return [row(name, {"a": [900, 800, 210][len(asked) - 1], "c": 100}[name]) for name in names]

    rows, bad = remeasured(measure, KNOWN, 5)
    assert asked == [["a", "c"], ["a"], ["a"]]
    assert [each.ns for each in rows] == [210, 100]
    assert not bad


def test_what_stays_worse_fails_with_its_best_ratio():
    times = iter([900, 700, 800])
    rows, bad = remeasured(lambda _wanted: [row("a", next(times))], KNOWN, 2)
    assert [each.ns for each in rows] == [700]
    assert bad == rows
    assert summary(bad, KNOWN).splitlines()[1] == "a: 7.00x, was 2.00x"


def test_growth_has_a_row_and_a_point_for_each_number(tmp_path):
    peer("matplotlib")
    name = "import and export, so many dimensions"
    rows = bench_growth.rows(lambda operation: operation == f"{name}: 16", 1)
    assert [each.operation for each in rows] == [f"{name}: {count}" for count in (1, 4, 16, 64)]
    assert rows[0].ratio == 1
    others = [row("export, so many before: 1,000,000", 5)]
    bench_growth.plot(rows + others, "title", str(tmp_path / "growth.png"))
    assert (tmp_path / "growth.png").stat().st_size > 1000


def test_a_bar_begins_at_1_and_is_coloured_by_its_side():
    slower = Row("a", 200.0, {"numpy": 100.0})
    faster = Row("b", 1.5e6, {"torch": 3e6, "numpy": 4e6})
    assert side(slower) == (2.0, "#c8743c", "200 ns, numpy 100 ns")
    assert side(faster) == (0.5, "#3f7f5f", "1.5 ms, torch 3 ms")


def test_bench_reports_json_table_and_plot(tmp_path):
    peer("matplotlib")
    peer("torch")
    files = ("--json", "--plot", "plot.png", "--write", "table.md")
    done = run("exchange", "--quick", *files, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = {row["operation"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["from_dlpack(numpy)"]["peers"]["numpy"] > 0
    assert "| from_dlpack(torch) |" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_bench_files_has_a_row_for_each_way(tmp_path):
    peer("safetensors")
    done = run(
        "files",
        "--json",
        "--rounds",
        "1",
        "--mib",
        "1",
        "--write",
        "files.md",
        cwd=tmp_path,
        backends="cpu",
    )
    assert done.returncode == 0, done.stderr
    rows = {row["way"]: row for row in json.loads(done.stdout)}
    assert {name: row["copied"] for name, row in rows.items()} == {
        "readinto by hand": 0,
        "load": 0,
        "load, file of safetensors": 0,
        "load(copy=True)": 1 << 20,
        "load_file and copies": 0,
    }
    assert "| cpu | load |" in (tmp_path / "files.md").read_text()
    assert "no rows for opencl:0" in done.stderr
