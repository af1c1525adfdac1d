"""bench: a table of times compared with other libraries, in one run."""

from __future__ import annotations

import argparse
import importlib

from .timing import report

__all__ = ["add_arguments", "run"]

BENCHES = {
    "exchange": "tensors in and out, beside the other libraries",
    "ffi": "calls of compiled functions, beside tvm_ffi",
    "pack": "copies inside host memory, beside numpy and torch",
}
"""Each is a module ``bench_NAME`` with ``rows() -> list[Row]``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``bench``."""
    choices = "; ".join(f"{name}: {what}" for name, what in BENCHES.items())
    parser.add_argument("what", choices=list(BENCHES), help=choices)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the ratios (matplotlib)")
    parser.add_argument("--write", metavar="FILE.md", help="write the table to a file")


def run(arguments: argparse.Namespace) -> int:
    """Measure and report."""
    module = importlib.import_module(f".bench_{arguments.what}", __package__)
    title = f"bench {arguments.what}: {BENCHES[arguments.what]}"
    options = {"as_json": arguments.json, "plot": arguments.plot, "write": arguments.write}
    report(module.rows(), title, **options)
    return 0
