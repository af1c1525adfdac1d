"""The command line: info, doctor, explain, watch, demo, bench, conformance, new-backend."""

# A guest: it uses public names only. May import: `diagnosis`, `errors`, `extending`, `protocol`.

from __future__ import annotations

import argparse
import importlib
import os
import sys

from .. import __version__
from ..errors import Error

COMMANDS = {
    "info": (
        "diagnosis.report",
        "versions, libraries, backends and their devices, for a bug report",
    ),
    "doctor": (
        "diagnosis.checks",
        "tries what could be wrong on this machine, and says what to do",
    ),
    "explain": (
        "cli.explain",
        "the steps that would move a tensor, the bytes copied, and why",
    ),
    "watch": (
        "watching.program",
        "runs a program, and prints the exchanges of arrays that it has made",
    ),
    "demo": (
        "cli.demo",
        "a photograph through every backend of this machine, filtered on each",
    ),
    "bench": (
        "cli.bench",
        "copy: times of copies from, to and on each device that runs here",
    ),
    "conformance": (
        "conformance.runner",
        "what a library does with each rule of DLPack, one process per rule",
    ),
    "new-backend": (
        "cli.new_backend",
        "a working skeleton of a backend for a device of your own",
    ),
}
"""The module of each, with ``add_arguments(parser)`` and ``run(arguments)``; what it is for."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit code; without one, print the help.

    Errors of dlbridge print one line, no traceback. Ctrl-C ends with 130, as shells expect.
    """
    by_script = os.path.basename(sys.argv[0]).startswith("dlbridge")  # noqa: PTH119 - a str
    prog = "dlbridge" if by_script else "python -m dlbridge"
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    parser.add_argument("--version", action="version", version=f"dlbridge {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    given = sys.argv[1:] if arguments is None else arguments
    for name, (home, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        # Only the command that runs is loaded.
        if given[:1] == [name]:
            module = importlib.import_module(f"dlbridge.{home}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    if not given:
        parser.print_help()
        return 0
    parsed = parser.parse_args(given)
    try:
        code: int = parsed.run(parsed)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has closed it (head): print nothing more, at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Error, ImportError, OSError, TypeError, ValueError) as exc:
        print(f"dlbridge {parsed.command}: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return code
