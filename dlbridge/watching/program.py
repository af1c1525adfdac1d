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
    script = Path(arguments.program)
    if not sys.flags.safe_path:
        sys.path[0] = str(Path.cwd() if arguments.module else script.resolve().parent)
    code = 0
    try:
        with exchanges:
            if arguments.module:
                runpy.run_module(arguments.program, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(str(script.absolute()), run_name="__main__")
    except Exception as exc:
        code = 1
        if isinstance(exc, ExchangeError) and "watch(fail_on=...)" in str(exc):
            print(f"dlbridge watch: {exc}", file=sys.stderr)
        else:
            _report(exc)
    finally:
        _tell(exchanges, arguments.json)
    return code


def _report(exc: Exception) -> None:
    """Print an exception of the program as Python does, with the frames of the program."""
    frames = exc.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in _RUNNERS:
        frames = frames.tb_next
    if frames is None and not isinstance(exc, SyntaxError):
        raise exc  # there is no such program
    sys.excepthook(type(exc), exc.with_traceback(frames), frames)


_RUNNERS = (__file__, runpy.run_path.__code__.co_filename)


def _tell(exchanges: Exchanges, file: str | None) -> None:
    if file is None:
        print(exchanges, flush=True)
        return
    text = json.dumps(exchanges.as_dict(), indent=2)
    if file == "-":
        print(text, flush=True)
    else:
        Path(file).write_text(f"{text}\n", encoding="utf-8")
