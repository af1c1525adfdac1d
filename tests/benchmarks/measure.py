"""The project's own measurements: a table of times beside other libraries, in one run.

    python tests/benchmarks/measure.py exchange
    python tests/benchmarks/measure.py exchange --against docs/benchmarks/exchange.md
    python tests/benchmarks/measure.py growth --draw docs/benchmarks/growth.md
    python tests/benchmarks/measure.py exchange --against-tree ../before

With a committed table it says which rows have become worse in comparison with their peers, or draws
it, without a measurement: the picture has the table's name. With another tree of the project it
measures each row with both packages in turns (`trees.py`), and prints the ratios.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from dlbridge.cli.bench import REPEATS, report
from tests.benchmarks.compare import read_ratios, read_rows, remeasured, summary
from tests.benchmarks.measuring import plot
from tests.benchmarks.trees import compared, table

BENCHES = {
    "exchange": "tensors in and out, beside the other libraries",
    "ffi": "calls of compiled functions, beside tvm_ffi, in time of the processor",
    "pack": "copies inside host memory, beside numpy and torch",
    "astype": "conversions between dtypes, in CPU time of one thread, beside ml_dtypes and torch",
    "processes": "256 MiB to another process, beside numpy, torch and SharedMemory",
    "files": "a safetensors file to each device: time and peak memory, beside safetensors' own way",
    "growth": "the cost of one operation when there are many tensors, plugins, dimensions, threads",
}
"""Each is a module ``bench_NAME`` with ``rows(wanted, repeats) -> list[Row]``, or with
``report(arguments)``."""

AGAIN = 5
"""How often a row that looks worse is measured again."""


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    choices = "; ".join(f"{name}: {what}" for name, what in BENCHES.items())
    parser.add_argument("what", choices=list(BENCHES), help=choices)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--plot", metavar="FILE.png", help="draw the ratios, or the curves (matplotlib)"
    )
    parser.add_argument("--write", metavar="FILE.md", help="write the table to a file")
    parser.add_argument(
        "--mib", type=int, default=1024, help="files: the size of the file (default 1024)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="files, --against-tree: of which the best counts"
    )
    parser.add_argument(
        "--against", metavar="FILE.md", help="fail if a row is 15 %% worse than in this table"
    )
    parser.add_argument(
        "--against-tree",
        metavar="PATH",
        type=Path,
        help="fail if a row is 15 %% slower than with the package of this tree, in turns",
    )
    parser.add_argument(
        "--draw", metavar="FILE.md", help="measure nothing, draw this table into FILE.png"
    )
    parser.add_argument("--quick", action="store_true", help="one turn instead of seven")
    arguments = parser.parse_args()
    module = importlib.import_module(f"tests.benchmarks.bench_{arguments.what}")
    if arguments.against_tree:
        if not hasattr(module, "rows"):
            parser.error(f"--against-tree compares rows, which {arguments.what} does not have")
        both = compared(module.__name__, arguments.against_tree, arguments.rounds, AGAIN)
        print(table(both))
        return int(any(row.is_slower for row in both))
    if arguments.what == "files":
        module.report(arguments)
        return 0
    title = f"bench {arguments.what}: {BENCHES[arguments.what]}"
    draw = getattr(module, "plot", plot)
    if arguments.draw:
        path = Path(arguments.draw)
        draw(read_rows(path.read_text()), title, str(path.with_suffix(".png")))
        return 0
    known = read_ratios(Path(arguments.against).read_text()) if arguments.against else {}
    repeats, again = (1, 1) if arguments.quick else (REPEATS, AGAIN)
    rows, bad = remeasured(lambda wanted: module.rows(wanted, repeats), known, again)
    report(rows, title, as_json=arguments.json, write=arguments.write)
    if arguments.plot:
        draw(rows, title, arguments.plot)
    if bad:
        print(summary(bad, known), file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
