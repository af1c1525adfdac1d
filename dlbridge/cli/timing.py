"""Time measurement: all contenders in one run, in turns, the best of several."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Row", "best_of", "floors", "report", "table"]


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


def best_of(contenders: Mapping[str, Callable[[], object]], repeats: int = 7) -> dict[str, float]:
    """Ns per call of each contender: the best of *repeats*, taken in turns.

    In turns, so that other work on the machine does not slow down only one of them.
    """
    counts = {name: _count(function) for name, function in contenders.items()}
    found = dict.fromkeys(contenders, float("inf"))
    for _ in range(repeats):
        for name, function in contenders.items():
            found[name] = min(found[name], _time(function, counts[name]))
    return found


def _count(function: Callable[[], object]) -> int:
    """How many calls take about 20 ms."""
    count = 1
    while (spent := _time(function, count) * count) < 2e6:
        count *= 4
    return max(1, int(count * 20e6 / max(spent, 1.0)))


def _time(function: Callable[[], object], count: int) -> float:
    loop = range(count)
    start = time.perf_counter_ns()
    for _ in loop:
        function()
    return (time.perf_counter_ns() - start) / count


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
        f"{time.strftime('%Y-%m-%d')}, {_machine()}.",
        f"{_versions()}.",
        "Best of several in one run, in turns; ns per call unless the row says otherwise.",
        "",
        "| operation | dlbridge | best peer | | ratio | all peers | floor |",
        "|---|---:|---|---:|---:|---|---:|",
    ]
    for row in rows:
        name = row.best_peer
        peer = row.peers.get(name, 0.0)
        ratio = f"{row.ns / peer:.2f}x" if peer else ""
        others = ", ".join(f"{each} {ns:.0f}" for each, ns in row.peers.items() if each != name)
        floor = f"{row.ns / row.floor:.1f}x" if row.floor else ""
        peer_ns = f"{peer:.0f}" if peer else ""
        label = row.operation + (f" ({row.note})" if row.note else "")
        lines.append(
            f"| {label} | {row.ns:.0f} | {name} | {peer_ns} | {ratio} | {others} | {floor} |"
        )
    return "\n".join(lines) + "\n"


def _machine() -> str:
    import os

    return f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}"


def _versions() -> str:
    from .info import collect_packages

    packages = ", ".join(f"{name} {version}" for name, version in collect_packages().items())
    return f"Python {platform.python_version()}, {packages}"


def report(
    rows: list[Row], title: str, *, as_json: bool, plot: str | None, write: str | None
) -> None:
    """Print the rows, and write the table and the plot where asked."""
    if as_json:
        values: list[dict[str, Any]] = [asdict(row) for row in rows]
        json.dump({"title": title, "versions": _versions(), "rows": values}, sys.stdout, indent=2)
        print()
    else:
        print(table(rows, title))
    if write:
        Path(write).write_text(table(rows, title))
    if plot:
        _plot(rows, title, plot)


def _plot(rows: list[Row], title: str, path: str) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    shown = [row for row in rows if row.peers]
    figure, axes = pyplot.subplots(figsize=(9, 0.5 * len(shown) + 1.5))
    ratios = [row.ns / row.peers[row.best_peer] for row in shown]
    axes.barh([row.operation for row in shown], ratios, color="#4878a8")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("time of dlbridge / time of the best peer (left of 1: faster)")
    axes.set_title(title)
    axes.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
