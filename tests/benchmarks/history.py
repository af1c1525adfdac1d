"""The ratios of the tables over the commits: one file each in docs/benchmarks/history, and plots.

    python tests/benchmarks/history.py record             # a line more in each file: `make history`
    python tests/benchmarks/history.py record exchange --tree ../older --tree .
    python tests/benchmarks/history.py plot               # the pictures of the site

A line is one commit on one machine: its ratios to the best peer, as in docs/benchmarks, and no times.
Trees are measured in turns, in short and in CPU time, and of each contender the best time of all
turns counts.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import platform
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "benchmarks" / "history"
TABLES = "exchange", "ffi", "growth"
ABOUT = "commit", "day", "machine", "versions"

IN_CPU_TIME = """\
import runpy, sys, time
from dlbridge.cli import bench
for function in (bench.best_of, bench._time):
    function.__defaults__ = (*function.__defaults__[:-1], time.thread_time_ns)
sys.argv = ["measure.py", sys.argv[1], "--quick", "--json"]
sys.path.insert(0, "tests/benchmarks")
runpy.run_path("tests/benchmarks/measure.py", run_name="__main__")
"""
"""A table in CPU time of one thread, also of a tree whose benchmark takes the clock on the wall:
the nightly run's machine does other things."""

Line = dict[str, str]
"""By column: those of `ABOUT`, and the ratio of each operation."""


def measured(table: str, tree: Path) -> dict[str, Any]:
    """What one short run of *table* says, with the code of *tree*."""
    python = tree / ".venv" / "bin" / "python"
    program = str(python if python.exists() else sys.executable)
    command = [program, "-c", IN_CPU_TIME, table]
    done = subprocess.run(command, cwd=tree, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def ratios(runs: list[dict[str, Any]]) -> Line:
    """The ratio of each operation to its best peer, both by their best times in *runs*."""
    ours: dict[str, float] = {}
    peers: dict[str, dict[str, float]] = defaultdict(dict)
    for row in (row for run in runs for row in run["rows"] if row["peers"]):
        name = row["operation"]
        ours[name] = min(row["ns"], ours.get(name, row["ns"]))
        for peer, ns in row["peers"].items():
            peers[name][peer] = min(ns, peers[name].get(peer, ns))
    return {name: f"{ns / min(peers[name].values()):.3g}" for name, ns in ours.items()}


def read(path: Path) -> list[Line]:
    """The lines of a file; an operation that a line does not have is left out of it."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {name: value for name, value in line.items() if value} for line in csv.DictReader(file)
        ]


def append(path: Path, new: Line) -> bool:
    """Add *new* at the end, unless this commit with these versions is there; whether it was added.

    Columns keep their places, and those of new operations come last: a night is one changed line.
    """
    lines = read(path)
    if any(all(line[name] == new[name] for name in ABOUT if name != "day") for line in lines):
        return False
    columns = list(dict.fromkeys([*ABOUT, *(name for line in [*lines, new] for name in line)]))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows([*lines, new])
    return True


def record(tables: list[str], trees: list[Path], rounds: int) -> None:
    """Measure *tables* in each of *trees*, and append a line for each."""
    FOLDER.mkdir(exist_ok=True)
    for table in tables:
        runs: dict[Path, list[dict[str, Any]]] = defaultdict(list)
        for _ in range(rounds):
            for tree in trees:
                runs[tree].append(measured(table, tree))
        for tree in trees:
            line = {
                "commit": commit(tree),
                "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
                "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
                "versions": runs[tree][0]["versions"],
                **ratios(runs[tree]),
            }
            added = append(FOLDER / f"{table}.csv", line)
            print(f"{table}: {line['commit']}: {'added' if added else 'was there'}", flush=True)


def commit(tree: Path) -> str:
    """The last commit of *tree* that changed what is measured, in short."""
    command = ["git", "log", "-1", "--format=%h", "--abbrev=8", "--"]
    command += ["dlbridge", "backends", "pyproject.toml"]
    return subprocess.run(
        command, cwd=tree, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


def plot(path: Path, lines: list[Line]) -> None:
    """A small picture for each operation: its ratio over the lines, in their order."""
    import matplotlib

    matplotlib.use("agg")
    # The same data give the same file.
    matplotlib.rcParams.update({"svg.hashsalt": path.stem, "svg.fonttype": "none"})
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    operations = list(dict.fromkeys(name for line in lines for name in line if name not in ABOUT))
    across = 3
    down = -(-len(operations) // across)
    figure, places = pyplot.subplots(
        down, across, figsize=(11, 1.7 * down + 0.6), squeeze=False, layout="constrained"
    )
    machines = list(dict.fromkeys(line["machine"] for line in lines))
    for axes, operation in zip(places.flat, operations, strict=False):
        for number, machine in enumerate(machines):
            points = [
                (place, float(line[operation]))
                for place, line in enumerate(lines)
                if line["machine"] == machine and operation in line
            ]
            if points:
                axes.plot(*zip(*points, strict=True), "o-", color=f"C{number}", markersize=4)
        axes.set_title(operation.replace("`", ""), fontsize=8)
        axes.set_ylim(0, 1.2 * max(float(line[operation]) for line in lines if operation in line))
        axes.set_xlim(-0.3, len(lines) - 0.7)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.xaxis.set_major_formatter(lambda x, _: name_of(lines, x))
        axes.yaxis.set_major_formatter("{x:g}x")
        axes.tick_params(labelsize=7)
    for axes in list(places.flat)[len(operations) :]:
        axes.set_axis_off()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def name_of(lines: list[Line], place: float) -> str:
    """The commit at a place of the axis, if there is one."""
    return lines[int(place)]["commit"] if place in range(len(lines)) else ""


def main() -> int:
    """Record, or draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["record", "plot"])
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(TABLES)}; all if none")
    parser.add_argument("--tree", type=Path, action="append", help="with its .venv; default: this")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    arguments = parser.parse_args()
    tables = arguments.tables or list(TABLES)
    if arguments.what == "record":
        record(tables, [each.resolve() for each in arguments.tree or [ROOT]], arguments.rounds)
        return 0
    for table in tables:
        plot(FOLDER / f"{table}.svg", read(FOLDER / f"{table}.csv"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
