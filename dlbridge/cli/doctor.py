"""doctor: tries what could be wrong on this machine, and says what to do, in order."""

from __future__ import annotations

import argparse
import sys

from ..diagnosis.checks import check_all
from ..diagnosis.display import colored, shows_color, wrapped

COLORS = {"ok": "green", "note": "yellow", "problem": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``doctor``."""
    parser.add_argument("--quick", action="store_true", help="do not try other libraries")


def run(arguments: argparse.Namespace) -> int:
    """Print each finding as it comes, and then what to do; 1 if there is a problem."""
    color = shows_color(sys.stdout)
    to_do = []
    for found in check_all(quick=arguments.quick):
        first, *rest = wrapped(found.state, f"{found.what}: {found.said}")
        print(colored(first[:9], COLORS[found.state], color) + first[9:])
        print("\n".join(rest), end="\n" * bool(rest), flush=True)
        if found.state == "problem":
            to_do.append(f"{found.what}: {found.remedy}")
    if not to_do:
        print("\nno problem was found")
        return 0
    print("\nDo this, in order, and run doctor again after each:")
    for number, remedy in enumerate(to_do, 1):
        print("\n".join(wrapped(f"{number}.", remedy)))
    return 1
