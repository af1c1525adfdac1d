"""Whether the rows of a benchmark are worse than those of a committed table.

Ratios to the peers are compared, and never times: they depend less on the machine,
and little on what else it does, because all contenders are measured in turns.
"""

from __future__ import annotations

from collections.abc import Callable

from dlbridge.cli.bench import Row

TOLERANCE = 1.15
"""A row is worse if its ratio is more than this times the committed one."""

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
