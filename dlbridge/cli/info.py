"""info: versions, libraries, backends and their devices, for a bug report."""

from __future__ import annotations

import argparse
import json
import sys

from dlbridge.core.plugins.registry import backends

from ..diagnosis.display import shows_color
from ..diagnosis.report import Info
from ..diagnosis.trials import list_devices


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``info``."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="every property of each device"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the report."""
    report = Info(list_devices(backends()))
    if arguments.json:
        json.dump(report.as_dict(), sys.stdout, indent=2, default=str)
        print()
    else:
        print(report.text(verbose=arguments.verbose, color=shows_color(sys.stdout)))
    return 0
