"""Whether the rows of a benchmark are worse than those of a committed table; the rows of a table.

Ratios to the peers are compared, and never times: they depend less on the machine,
and little on what else it does, because all contenders are measured in turns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from dlbridge.cli.bench import Row

TOLERANCE = 1.15
"""A row is worse if its ratio is more than this times the committed one."""

_COLUMNS = 7
_RATIO = 5  # the column, as `dlbridge.cli.bench.table` writes it
_ROUNDING = 0.005  # of a ratio in a table, which has two decimals

Measure = Callable[[Callable[[str], bool]], list[Row]]
"""It measures the rows whose operation is wanted."""


def read_ratios(text: str) -> dict[str, float]:
    """The ratio of each row of a table that `dlbridge.cli.bench.table` wrote, where there is a peer."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > _RATIO and cells[_RATIO].endswith("x"):
            found[cells[1]] = float(cells[_RATIO].removesuffix("x"))
    return found


def read_rows(text: str) -> list[Row]:
    """The rows of a table that `dlbridge.cli.bench.table` wrote, without their floors."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")][1:-1]
        if len(cells) == _COLUMNS and cells[1].isdecimal():
            label, ns, best, best_ns, _ratio, others, _floor = cells
            peers = {best: float(best_ns)} if best else {}
            for other in filter(None, others.split(", ")):
                name, _, time = other.rpartition(" ")
                peers[name] = float(time)
            operation, _, note = label.removesuffix(")").partition(" (")
            if f"{operation} ({note})" != label:  # the brackets are the operation's own
                operation, note = label, ""
            found.append(Row(operation, float(ns), peers, note=note))
    return found


def stamp(rows: list[Row]) -> str:
    """A sum of the times in *rows*: a picture has it, and says by it of which table it is."""
    times = [(row.label, round(row.ns), round(row.peers.get(row.best_peer, 0))) for row in rows]
    return hashlib.sha256(repr(times).encode()).hexdigest()


def worse(rows: list[Row], known: dict[str, float]) -> list[Row]:
    """The *rows* that are worse than the ratios in *known*, by the labels of the rows.

    Rows without a peer, and new rows, are not compared.
    """
    return [
        row
        for row in rows
        if row.ratio and row.ratio > TOLERANCE * (known.get(row.label, row.ratio) + _ROUNDING)
    ]


def remeasured(
    measure: Measure, known: dict[str, float], times: int
) -> tuple[list[Row], list[Row]]:
    """The rows, and those of them that are worse than *known* in each of 1 + *times* turns.

    A row that looks worse is measured again: other work on the machine is no reason.
    """
    rows = measure(lambda _operation: True)
    for _ in range(times):
        bad = {row.label for row in worse(rows, known)}
        if not bad:
            break
        operations = {row.operation for row in rows if row.label in bad}
        again = {row.label: row for row in measure(operations.__contains__)}
        rows = [min(row, again.get(row.label, row), key=lambda each: each.ratio) for row in rows]
    return rows, worse(rows, known)


def summary(bad: list[Row], known: dict[str, float]) -> str:
    """Lines for people: which rows are worse, and how much."""
    lines = [f"{row.label}: {row.ratio:.2f}x, was {known[row.label]:.2f}x" for row in bad]
    return "\n".join(["worse than the committed table:", *lines])
