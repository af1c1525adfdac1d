"""bench growth: the cost of an operation when there are many of something. A flat curve is good.

The "peer" of a row is the same operation with the smallest number, so that the
ratio says how much the cost has grown. Times are CPU times: the points of a curve
are measured one after the other, and other work on the machine comes in between.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dlbridge
from dlbridge.cli.bench import Row
from tests.benchmarks.compare import stamp

START = "at the start"


def rows(wanted: Callable[[str], bool], repeats: int) -> list[Row]:
    """One row for each point of each curve of which a point is wanted."""
    found = []
    for name, (counts, measure) in CURVES.items():
        labels = [f"{name}: {count:,}" for count in counts]
        if any(map(wanted, labels)):
            times = list(measure(counts, repeats))
            found += [
                Row(label, ns, {START: times[0]}, note=NOTES.get(name, ""))
                for label, ns in zip(labels, times, strict=True)
            ]
    return found


def plot(rows: list[Row], title: str, path: str) -> None:
    """Draw a curve for each name, over the number."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    curves: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        name, _, count = row.operation.rpartition(": ")
        curves.setdefault(name, []).append((int(count.replace(",", "")), row.ns))
    figure, axes = pyplot.subplots(1, len(curves), figsize=(4 * len(curves), 3.2))
    for axis, (name, points) in zip(axes, curves.items(), strict=True):
        axis.plot(*zip(*points, strict=True), marker="o", color="#4878a8")
        axis.set_title(name, fontsize=9)
        axis.set_ylim(0, 1.3 * max(ns for _, ns in points))
        axis.set_ylabel("ns")
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=120, metadata={"Description": stamp(rows)})


def _ns(function: Callable[[], object], repeats: int, calls: int = 1) -> float:
    """The CPU time for one of the *calls* that *function* stands for, the best of many turns."""
    loop = range(max(1, 500 // calls))
    best = float("inf")
    for _ in range(10 * repeats if calls == 1 else repeats):
        start = time.process_time_ns()
        for _ in loop:
            function()
        best = min(best, (time.process_time_ns() - start) / (len(loop) * calls))
    return best


def _through(array: Any) -> None:
    """An import and an export."""
    import numpy as np

    np.from_dlpack(dlbridge.from_dlpack(array))


def _exports(counts: tuple[int, ...], repeats: int) -> Iterator[float]:
    """An export of one tensor, after so many exports of it."""
    tensor, done = dlbridge.zeros(8), 0
    for count in counts:
        for _ in range(done, count):
            tensor.__dlpack__(max_version=(1, 3))
        done = count
        yield _ns(lambda: tensor.__dlpack__(max_version=(1, 3)), repeats)


def _live(counts: tuple[int, ...], repeats: int) -> Iterator[float]:
    """A tensor made and dropped beside so many."""
    alive: list[Any] = []
    for count in counts:
        alive += [dlbridge.empty(64) for _ in range(count - len(alive))]
        yield _ns(lambda: dlbridge.empty(64), repeats)


def _dimensions(counts: tuple[int, ...], repeats: int) -> Iterator[float]:
    """An import and an export of a tensor with so many dimensions."""
    import numpy as np

    for count in counts:
        array = np.zeros((1,) * count)
        yield _ns(partial(_through, array), repeats)


def _threads(counts: tuple[int, ...], repeats: int) -> Iterator[float]:
    """An import and an export while so many threads do the same: the time for one of all."""
    import numpy as np

    array, each = np.zeros(8), 20_000

    def work() -> None:
        for _ in range(each):
            _through(array)

    def together(count: int) -> None:
        threads = [threading.Thread(target=work) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    for count in counts:
        yield _ns(partial(together, count), repeats, count * each)


def _plugins(counts: tuple[int, ...], repeats: int) -> Iterator[float]:
    """The first move of a process in which so many more backends are installed."""
    script = (
        "import time, numpy as np, dlbridge; x = np.zeros(8); start = time.process_time_ns(); "
        "dlbridge.backends(); dlbridge.to_device(x, 'cpu', copy=True); "
        "print(time.process_time_ns() - start)"
    )
    for count in counts:
        with TemporaryDirectory() as folder:
            for number in range(count):
                info = Path(folder) / f"plugin{number}-1.0.dist-info"
                info.mkdir()
                (info / "METADATA").write_text(f"Name: plugin{number}\nVersion: 1.0\n")
                entry = f"[dlbridge.backends]\nplugin{number} = plugin{number}:Backend\n"
                (info / "entry_points.txt").write_text(entry)
            paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
            command = [sys.executable, "-c", script]
            yield min(
                float(
                    subprocess.run(command, capture_output=True, check=True, env=environment).stdout
                )
                for _ in range(repeats)
            )


CURVES: dict[str, tuple[tuple[int, ...], Callable[[tuple[int, ...], int], Iterator[float]]]] = {
    "export, so many before": ((1, 1_000, 100_000, 1_000_000), _exports),
    "empty, so many alive": ((1, 100, 1_000, 10_000), _live),
    "first move, so many plugins": ((0, 10, 100), _plugins),
    "import and export, so many dimensions": ((1, 4, 16, 64), _dimensions),
    "import and export, so many threads": ((1, 2, 4, 8), _threads),
}
"""Name -> the numbers, and the function that gives the ns at each."""

NOTES = {"import and export, so many dimensions": "each extent and stride is read and copied"}
"""Name -> why its curve is not flat."""
