"""The rows of a benchmark with the package of this tree and with that of another, in turns.

    git worktree add ../before COMMIT
    python tests/benchmarks/measure.py exchange --against-tree ../before

Two processes, one with each package, measure the same operation one after the other, with the
benchmark of this tree; of several rounds the best counts, and who begins changes each round.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.compare import TOLERANCE

ROOT = Path(__file__).resolve().parents[2]

Times = dict[str, tuple[str, float]]
"""By the label of a row: its operation, which is the label without the note, and its ns."""

WORK = """
import pathlib, sys
import tests  # of this tree; dlbridge is of the other
root, module = sys.argv[1:]
sys.path[:0] = [root, *map(str, pathlib.Path(root).glob("backends/*"))]
from tests.benchmarks import trees
trees.work(root, module)
"""


class Compared(NamedTuple):
    """One row in both trees: ns, and ours as a multiple of the other's."""

    label: str
    ours: float
    others: float

    @property
    def ratio(self) -> float:
        return self.ours / self.others

    @property
    def is_slower(self) -> bool:
        """Whether it is not only noise, as in `compare.worse`."""
        return self.ratio > TOLERANCE


class Tree:
    """A process that has the package of a tree."""

    def __init__(self, root: Path, module: str, ends: ExitStack) -> None:
        command = [sys.executable, "-c", WORK, str(root), module]
        self._process: Any = ends.enter_context(
            subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        )
        self.first = self._answer()

    def measure(self, operation: str) -> Times:
        """One turn of the rows of this operation."""
        print(json.dumps(operation), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Times:
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the process of a tree has ended: what it says stands above")
        return {label: (name, ns) for label, name, ns in json.loads(line)}


def work(root: str, name: str) -> None:
    """What the process of a tree does: says all rows, and then those that it is asked for."""
    answers, sys.stdout = sys.stdout, sys.stderr
    module = importlib.import_module(name)
    package = sys.modules["dlbridge"].__file__ or ""
    if not Path(package).is_relative_to(root):
        raise SystemExit(f"dlbridge is {package}, and not of {root}")
    wanted: Callable[[str], bool] = lambda _operation: True  # noqa: E731
    while True:
        rows = module.rows(wanted, 1)
        print(
            json.dumps([(row.label, row.operation, row.ns) for row in rows]),
            file=answers,
            flush=True,
        )
        if not (line := sys.stdin.readline()):
            return
        wanted = json.loads(line).__eq__


def compared(module: str, other: Path, rounds: int, again: int) -> list[Compared]:
    """Each row of the *module* that both trees have; its first turns only say which there are.

    A row that looks slower is measured in up to *again* rounds more: other work on the machine is
    no reason.
    """
    with ExitStack() as ends:
        trees = [Tree(root, module, ends) for root in (ROOT, other.resolve(strict=True))]
        known, others = (tree.first for tree in trees)
        rows = {label: Compared(label, inf, inf) for label in known if label in others}
        for number in range(rounds + again):
            seen: set[str] = set()
            for row in list(rows.values()):
                # Some benchmarks measure all rows of a curve at once.
                if row.label in seen or (number >= rounds and not row.is_slower):
                    continue
                operation = known[row.label][0]
                order = (0, 1) if number % 2 else (1, 0)
                turns = {each: trees[each].measure(operation) for each in order}
                for label in turns[0].keys() & turns[1].keys() & rows.keys():
                    (_, ours), (_, theirs) = turns[0][label], turns[1][label]
                    _, best, others_best = rows[label]
                    rows[label] = Compared(label, min(best, ours), min(others_best, theirs))
                    seen.add(label)
    return list(rows.values())


def table(rows: list[Compared]) -> str:
    """The rows with their ratios, and those that are slower once more."""
    lines = ["| operation | ns | other tree ns | ratio |", "|---|---|---|---|"]
    lines += [
        f"| {row.label} | {row.ours:.0f} | {row.others:.0f} | {row.ratio:.2f} |" for row in rows
    ]
    slower = [row.label for row in rows if row.is_slower]
    lines.append(f"slower by more than {TOLERANCE - 1:.0%}: {', '.join(slower) or 'none'}")
    return "\n".join(lines)
