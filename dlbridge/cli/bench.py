"""bench: copies from, to and on each device that runs here, beside numpy on the host.

All contenders are measured in one run, in turns, the best of several.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import dlbridge as bridge
from dlbridge.errors import BackendUnavailable

from ..diagnosis.report import packages as installed_packages

SIZES = (64, 64 << 10, 16 << 20)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``bench``."""
    parser.add_argument("what", choices=["copy"], help="copy: copies from, to and on each device")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", metavar="FILE.md", help="write the table to a file")
    parser.add_argument("--quick", action="store_true", help="one turn instead of seven")


def run(arguments: argparse.Namespace) -> int:
    """Measure and report."""
    if arguments.write and not (folder := Path(arguments.write).absolute().parent).is_dir():
        raise FileNotFoundError(f"--write: there is no folder {folder}: make it, or name another")
    title = (
        "bench copy: copies from, to and on each device that runs here, beside numpy on the host"
    )
    rows = _rows(1 if arguments.quick else REPEATS)
    report(rows, title, as_json=arguments.json, write=arguments.write)
    return 0


def _rows(repeats: int) -> list[Row]:
    """One row per device, way and size; the work is waited for. Peer: numpy on the host."""
    rows = []
    for device in _devices():
        for nbytes in SIZES:
            for way, copy in _ways(device, nbytes).items():
                operation = f"{device}: {way}, {nbytes} bytes"
                contenders = {"dlbridge": copy, "numpy (host)": _on_host(nbytes)}
                times = best_of(contenders, repeats)
                rows.append(Row(operation, times.pop("dlbridge"), times))
    return rows


def _devices() -> Iterator[str]:
    for name in bridge.backends():
        if name == "cpu":
            continue  # that would be numpy's own copy
        try:
            count = bridge.backend(name).device_count()
        except BackendUnavailable as exc:
            print(f"no rows for {name}: {exc}", file=sys.stderr)
            continue
        yield from (f"{name}:{index}" for index in range(count))


def _ways(device: str, nbytes: int) -> dict[str, Callable[[], object]]:
    host = bridge.zeros(nbytes, "uint8")
    there, other = (bridge.zeros(nbytes, "uint8", device) for _ in range(2))

    def ready(target: bridge.Tensor, source: bridge.Tensor) -> Callable[[], object]:
        def copy() -> None:
            bridge.copy_(target, source)
            bridge.synchronize(device)

        return copy

    return {
        "from the host": ready(there, host),
        "to the host": ready(host, there),
        "on the device": ready(other, there),
    }


def _on_host(nbytes: int) -> Callable[[], object]:
    import numpy as np

    target, source = np.zeros(nbytes, "u1"), np.ones(nbytes, "u1")
    return lambda: np.copyto(target, source)


# Times, and the table of them ---------------------------------------------------------

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
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(repeats):
        for name, function in contenders.items():
            best[name] = min(best[name], _time(function, counts[name], clock))
    return best


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
    return f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}"


def versions() -> str:
    """Python and the packages, for the head of a table."""
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
