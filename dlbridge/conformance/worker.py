"""Run cases for one library: the module of a process that may crash.

``python -m dlbridge.conformance.worker SUBJECT`` reads one line of a rule at a time from its
standard input, and answers each with one line of JSON. Each case runs in a fork of this process,
which has imported the library and has done nothing with it. Where there is no fork it
runs here, and the one who asks starts a new worker for each.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time

from .cases import Case
from .consumer_cases import CONSUMER
from .producer_cases import PRODUCER
from .rules import RULES
from .stream_cases import STREAMS
from .subject import Fail, NotOffered, Subject
from .table_cases import TABLES

__all__ = ["CASES", "LIMIT", "main"]

CASES: dict[str, Case] = {
    line: ({**PRODUCER, **CONSUMER, **TABLES, **STREAMS})[line] for line in RULES
}

LIMIT = 60.0
"""Seconds for one case."""

_LONGEST = 4000
"""Characters of evidence."""

_WITH_EXIT = {"P53"}
"""Lines whose case goes on while Python ends."""


def run(subject: Subject, case: Case) -> tuple[str, str]:
    """The result and the evidence of one case, which fits into a pipe."""
    try:
        found = "pass", case.function(subject)
    except Fail as exc:
        found = "fail", str(exc)
    except NotOffered as exc:
        found = "not offered", str(exc)
    except Exception as exc:
        found = "fail", f"{type(exc).__name__}: {exc}"
    return found[0], found[1][:_LONGEST]


def main(arguments: list[str]) -> int:
    """Run the cases that are asked for, each in a child where this system can fork."""
    subject = Subject(arguments[0])
    for text in sys.stdin:
        case = CASES[text.strip()]
        found = _in_child(subject, case) if hasattr(os, "fork") else run(subject, case)
        print(json.dumps([case.rule.line, *found]), flush=True)
    return 0


def _in_child(subject: Subject, case: Case) -> tuple[str, str]:
    import resource  # not on Windows, which has no fork either

    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is expected: no dump
        with contextlib.suppress(OSError):  # what a library prints is not our output
            silent = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(silent, descriptor)
        result = json.dumps(run(subject, case)).encode()
        with os.fdopen(writer, "wb") as file:
            file.write(result)
        if case.rule.line in _WITH_EXIT:
            sys.exit(0)
        os._exit(0)  # the end of Python takes a second where a large library is loaded
    os.close(writer)
    status = _wait(child)
    with os.fdopen(reader, "rb") as file:
        text = file.read()
    if status is None:
        return "crash", f"it hangs: no end after {LIMIT:.0f} s"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        after = " when the process ended" if text else ""
        return "crash", f"{signal.Signals(number).name}{after}"
    if not text or os.WEXITSTATUS(status):
        return "crash", f"the process ended with status {os.WEXITSTATUS(status)}"
    result, evidence = json.loads(text)
    return result, evidence


def _wait(child: int) -> int | None:
    """The status of *child*; None if it had to be killed."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
