"""Time measurement: all contenders in one run, in turns, the best of several."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "REPEATS",
    "Row",
    "best_of",
    "floors",
    "machine",
    "memory",
    "plot",
    "report",
    "reset_peak",
    "side",
    "table",
    "versions",
]

REPEATS = 7
"""Turns of each contender."""


@dataclass
class Row:
    """One operation: ours in *ns*, the peers' by name, and the floor under ours."""

    operation: str
    ns: float
    peers: dict[str, float] = field(default_factory=dict)
    floor: float = 0.0
    note: str = ""

    @property
    def best_peer(self) -> str:
        """The name of the fastest peer, empty if there is none here."""
        return min(self.peers, key=lambda name: self.peers[name], default="")

    @property
    def ratio(self) -> float:
        """Our time as a multiple of the fastest peer's; 0 if there is none here."""
        return self.ns / self.peers[self.best_peer] if self.peers else 0.0

    @property
    def label(self) -> str:
        """The operation and its note: the row's name in tables."""
        return self.operation + (f" ({self.note})" if self.note else "")


def best_of(
    contenders: Mapping[str, Callable[[], object]],
    repeats: int = REPEATS,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, float]:
    """Ns per call of each contender: the best of *repeats*, taken in turns.

    In turns, so that other work on the machine does not slow down only one of them.
    """
    counts = {name: _count(function) for name, function in contenders.items()}
    found = dict.fromkeys(contenders, float("inf"))
    for _ in range(repeats):
        for name, function in contenders.items():
            found[name] = min(found[name], _time(function, counts[name], clock))
    return found


def _count(function: Callable[[], object]) -> int:
    """How many calls take about 20 ms, after the first ones, which import and fill caches."""
    if min(_time(function, 1), _time(function, 1)) > 20e6:
        return 1
    _time(function, 10)
    count = 1
    while (spent := _time(function, count) * count) < 2e6:
        count *= 4
    return max(1, int(count * 20e6 / max(spent, 1.0)))


def _time(
    function: Callable[[], object], count: int, clock: Callable[[], int] = time.perf_counter_ns
) -> float:
    loop = range(count)
    start = clock()
    for _ in loop:
        function()
    return (clock() - start) / count


def floors() -> dict[str, float]:
    """Ns of an empty Python call and of an empty cffi call, as these loops see them."""
    from dlbridge.core._cdefs import ffi

    # The declared C function that does least.
    from ..ffi import _lib

    out = ffi.new("TVMFFIVersion *")
    get_version = _lib.C.TVMFFIGetVersion
    return best_of({"empty Python call": lambda: None, "empty cffi call": lambda: get_version(out)})


def table(rows: list[Row], title: str) -> str:
    """The rows as a Markdown table with versions and date."""
    lines = [
        f"# {title}",
        "",
        f"{time.strftime('%Y-%m-%d')}, {machine()}.",
        f"{versions()}.",
        "Best of several in one run, in turns; ns per call unless the row says otherwise.",
        "",
        "| operation | dlbridge | best peer | | ratio | all peers | floor |",
        "|---|---:|---|---:|---:|---|---:|",
    ]
    for row in rows:
        name = row.best_peer
        peer = row.peers.get(name, 0.0)
        ratio = f"{row.ratio:.2f}x" if peer else ""
        others = ", ".join(f"{each} {ns:.0f}" for each, ns in row.peers.items() if each != name)
        floor = f"{row.ns / row.floor:.1f}x" if row.floor else ""
        peer_ns = f"{peer:.0f}" if peer else ""
        lines.append(
            f"| {row.label} | {row.ns:.0f} | {name} | {peer_ns} | {ratio} | {others} | {floor} |"
        )
    return "\n".join(lines) + "\n"


def machine() -> str:
    """The processor, its cores and the system."""
    import os

    return f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}"


def versions() -> str:
    """Python and the packages, for the head of a table."""
    from ..diagnosis.report import packages as installed_packages

    packages = ", ".join(f"{name} {version}" for name, version in installed_packages().items())
    return f"Python {platform.python_version()}, {packages}"


def report(rows: list[Row], title: str, *, as_json: bool, write: str | None) -> None:
    """Print the rows, and write the table where asked."""
    if as_json:
        values: list[dict[str, Any]] = [asdict(row) for row in rows]
        json.dump({"title": title, "versions": versions(), "rows": values}, sys.stdout, indent=2)
        print()
    else:
        print(table(rows, title))
    if write:
        Path(write).write_text(table(rows, title))


def side(row: Row) -> tuple[float, str, str]:
    """The ratio to the best peer, the colour of its side of 1, and both times in words."""
    text = f"{_in_units(row.ns)}, {row.best_peer} {_in_units(row.peers[row.best_peer])}"
    return row.ratio, "#3f7f5f" if row.ratio <= 1 else "#c8743c", text


def _in_units(ns: float) -> str:
    """*ns* to three digits, in the unit that people use for it."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"


def plot(rows: list[Row], title: str, path: str) -> None:
    """Bars from 1, to the left where dlbridge is faster than the best peer, with both times."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    shown = [row for row in rows if row.peers]
    figure, axes = pyplot.subplots(figsize=(11, 0.36 * len(shown) + 1.4))
    ratios, colours, texts = zip(*map(side, shown), strict=True)
    axes.barh(
        [row.operation for row in shown], [ratio - 1 for ratio in ratios], left=1, color=colours
    )
    for place, (ratio, text) in enumerate(zip(ratios, texts, strict=True)):
        axes.annotate(
            text,
            (max(ratio, 1.0), place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlim(min(*ratios, 0.5) / 1.3, max(*ratios, 2.0) * 8)  # room for the words
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.set_xlabel("time of dlbridge / time of the best peer (left, green: dlbridge is faster)")
    axes.set_title(title)
    axes.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def memory(name: str) -> int:
    """``VmRSS`` or ``VmHWM`` (its highest value) of this process in bytes; 0 if not on Linux."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


def reset_peak() -> int:
    """Let ``VmHWM`` begin again at the memory in use now, which is returned."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")
