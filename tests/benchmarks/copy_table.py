"""The table of copies between host and device that each function of ``copies.py`` makes."""

from __future__ import annotations

import datetime
import os
import platform
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

Ways = Mapping[str, Callable[[], object]]

SECONDS, LEAST = 3.0, 7
"""For each row: rounds are repeated for so long, but at least so often."""
CALLS = 200
"""Of one way in one round, for 4 KiB and less: some milliseconds."""

HEAD = """# {title}

Made by `python tests/benchmarks/copies.py {name}` on {date}; do not edit.

- {machine}, load average {load:.1f} at the start
- device: {device}
- {versions}

All memory is allocated and touched before, and all ways copy between the same
device memory and the same host memory. Each way takes its turn in each round, in
an order that changes; the figure is the time of one call, the mean of its best
round. {text}

| bytes | direction | {columns} |
|---|---|{lines}
"""


@dataclass(frozen=True)
class CopyTable:
    """What the table of one backend compares.

    Parameters
    ----------
    name : str
        The backend's name.
    title, device, text : str
        The table's title, the device's name, and what the columns are.
    columns : tuple of str
        Ways of copying; the first is dlbridge's.
    peers : tuple of str
        The columns with which the first is compared.
    packages : tuple of str
        The distributions whose versions are named.
    """

    name: str
    title: str
    device: str
    text: str
    columns: tuple[str, ...]
    peers: tuple[str, ...]
    packages: tuple[str, ...] = ()

    def write(
        self,
        file: Path,
        sizes: Iterable[int],
        ways: Callable[[int, str], Ways],
        directions: tuple[str, ...] = ("to the device", "to the host"),
    ) -> None:
        """Measure, print each row at once, and write the table.

        Parameters
        ----------
        file : Path
            Where the table goes.
        sizes : iterable of int
            Bytes.
        ways : Callable[[int, str], Ways]
            The ways to copy so many bytes in a direction. ``"column: variant"`` is one of several
            ways for a column, which shows the fastest.
        """
        text = self._head()
        print(text, end="")
        for nbytes in sizes:
            for direction in directions:
                calls = max(1, CALLS * 4096 // max(nbytes, 4096))
                row = self._row(nbytes, direction, best_in_turns(ways(nbytes, direction), calls))
                print(row, end="", flush=True)
                text += row
        file.write_text(text)

    def _head(self) -> str:
        packages = ("numpy", *self.packages, "dlbridge")
        versions = [f"Python {platform.python_version()}"]
        titles = [*self.columns, *(f"speed / {peer}" for peer in self.peers)]
        return HEAD.format(
            title=self.title,
            name=self.name,
            date=datetime.datetime.now(datetime.UTC).date(),
            machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan"),
            device=self.device,
            versions=", ".join(versions + [f"{name} {version(name)}" for name in packages]),
            text=self.text,
            columns=" | ".join(titles),
            lines="---|" * len(titles),
        )

    def _row(self, nbytes: int, direction: str, times: dict[str, float]) -> str:
        seconds = {
            column: min(spent for name, spent in times.items() if name.partition(":")[0] == column)
            for column in self.columns
        }
        ours = seconds[self.columns[0]]
        cells = [_figure(nbytes, seconds[column]) for column in self.columns]
        ratios = [f"{seconds[peer] / ours:.2f}" for peer in self.peers]
        return f"| {nbytes} | {direction} | {' | '.join(cells + ratios)} |\n"


def _figure(nbytes: int, seconds: float) -> str:
    """Microseconds for what is small, GB/s for what is large."""
    if nbytes <= 1 << 20:
        return f"{seconds * 1e6:.1f} us"
    return f"{nbytes / seconds / 1e9:.1f} GB/s"


def best_in_turns(ways: Ways, calls: int) -> dict[str, float]:
    """Seconds of one call of each way, in its best round of *calls*, in turns."""
    times = dict.fromkeys(ways, float("inf"))
    order = list(ways)
    end, rounds = time.perf_counter() + SECONDS, 0
    while rounds < LEAST or time.perf_counter() < end:
        random.shuffle(order)  # what comes next finds memory in the cache
        for name in order:
            way = ways[name]
            start = time.perf_counter()
            for _ in range(calls):
                way()
            times[name] = min(times[name], (time.perf_counter() - start) / calls)
        rounds += 1
    return times
