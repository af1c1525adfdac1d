"""watch: runs a program, and prints the exchanges of arrays that it has made."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dlbridge import watch
from dlbridge.errors import ExchangeError

if TYPE_CHECKING:
    from dlbridge import Exchanges


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``watch``."""
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module")
    parser.add_argument("--json", metavar="FILE", help="write JSON to FILE ('-': print it)")
    parser.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="KIND",
        help="end the program at the line that does it: copy, host copy or move",
    )
    parser.add_argument("program", help="a script, or with -m a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="those of the program")


def run(arguments: argparse.Namespace) -> int:
    """Run the program as Python would, and print the table, however it ends."""
    exchanges = watch(fail_on=tuple(arguments.fail_on))
    sys.argv = [arguments.program, *arguments.arguments]
    code = 0
    try:
        with exchanges:
            if arguments.module:
                sys.path.insert(0, str(Path.cwd()))
                runpy.run_module(arguments.program, run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, str(Path(arguments.program).resolve().parent))
                runpy.run_path(arguments.program, run_name="__main__")
    except SystemExit as exc:
        code = _exit_code(exc)
    except ExchangeError as exc:
        if "watch(fail_on=...)" not in str(exc):
            raise
        print(f"dlbridge watch: {exc}", file=sys.stderr)
        code = 1
    finally:
        _tell(exchanges, arguments.json)
    return code


def _exit_code(exc: SystemExit) -> int:
    if exc.code is None or isinstance(exc.code, int):
        return exc.code or 0
    print(exc.code, file=sys.stderr)
    return 1


def _tell(exchanges: Exchanges, file: str | None) -> None:
    if file is None:
        print(exchanges)
        return
    text = json.dumps(exchanges.as_dict(), indent=2)
    if file == "-":
        print(text)
    else:
        Path(file).write_text(f"{text}\n", encoding="utf-8")
