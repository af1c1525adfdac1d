"""Run cases for one library: the module of a process that may crash.

``python -m dlbridge.conformance.worker SUBJECT`` reads one line of a rule at a time from its
standard input, and answers each with one line of JSON. Each case runs in a fork of this process,
which has imported the library and has done nothing with it. Where there is no fork it
runs here, and the one who asks starts a new worker for each.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import time

from .cases import Rule, Source, told
from .runner import rules
from .subject import Fail, NotOffered, Subject

LIMIT = 60
"""Seconds of work for one case, and seconds in which it may do nothing."""

_LONGEST_CASE = 10
"""So many times as long a case may take, on a machine that gives it little time."""

_LONGEST = 4000
"""Characters of evidence."""

_WITH_EXIT = {"P53"}
"""Lines whose case goes on while Python ends."""


_USABLE = Rule("", "there is something to check", Source.NONE, Subject.check_usable)


def run(subject: Subject, rule: Rule) -> tuple[str, str]:
    """The result and the evidence of one case, which fits into a pipe."""
    try:
        result, evidence = "pass", rule.case(subject)
    except NotOffered as exc:
        result, evidence = "not offered", str(exc)
    except (Fail, Exception) as exc:
        result, evidence = "fail", str(exc) if isinstance(exc, Fail) else told(exc)
    return result, evidence[:_LONGEST]


def main(library: str) -> None:
    """Run the cases that are asked for, each in a child where this system can fork."""
    try:
        subject = Subject(library)
    except Exception as exc:  # whatever the import of a library raises, in one line
        sys.exit(" ".join(told(exc).split()))
    gc.collect()
    gc.freeze()  # a collection in a case looks at the objects of the case, and not at a library's
    run_case = _in_child if hasattr(os, "fork") else run
    result, evidence = run_case(subject, _USABLE)
    if result != "pass":
        sys.exit(evidence)
    for text in sys.stdin:
        answer = run_case(subject, rules()[text.strip()])
        print(json.dumps(answer), flush=True)


def _in_child(subject: Subject, rule: Rule) -> tuple[str, str]:
    import resource  # not on Windows, which has no fork either

    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIMIT * _LONGEST_CASE)  # the last resort; see `_has_ended`
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is expected: no dump
        spent = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (spent + LIMIT, spent + LIMIT + 1))
        with contextlib.suppress(OSError):  # what a library prints is not our output
            silent = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(silent, descriptor)
        result = json.dumps(run(subject, rule)).encode()
        with os.fdopen(writer, "wb") as file:
            file.write(result)
        if rule.line in _WITH_EXIT:
            sys.exit(0)
        os._exit(0)  # the end of Python takes a second where a large library is loaded
    os.close(writer)
    # With the exit the pipe is closed; a case that goes on while Python ends has the last resort.
    waits = not _has_ended(reader, child)
    if waits:
        os.kill(child, signal.SIGALRM)
    _, status, usage = os.wait4(child, 0)
    with os.fdopen(reader, "rb") as file:
        text = file.read()
    by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if by == signal.SIGALRM and waits:
        return "crash", f"it hangs: nothing happens for {LIMIT} s"
    if by == signal.SIGALRM:
        return "crash", f"it hangs: no end after {LIMIT * _LONGEST_CASE} s"
    # The system sends SIGKILL where it looks a second late.
    worked = usage.ru_utime + usage.ru_stime
    if by == signal.SIGXCPU or (by == signal.SIGKILL and worked >= LIMIT):
        return "crash", f"it hangs: no end after {LIMIT} s of work"
    if by:
        after = " when the process ended" if text else ""
        return "crash", f"{signal.Signals(by).name}{after}"
    if not text or os.WEXITSTATUS(status):
        return "crash", f"the process ended with status {os.WEXITSTATUS(status)}"
    result, evidence = json.loads(text)
    return result, evidence


def _has_ended(reader: int, child: int) -> bool:
    """Wait until the case has answered; False if it does nothing any more.

    On a busy machine a case that works gets little time: it is one that waits if it has got none
    and wants none.
    """
    before = None
    while not select.select([reader], [], [], LIMIT)[0]:
        now = _activity(child)
        if now is None or now == before:
            return False
        before = now
    return True


def _activity(child: int) -> object:
    """What changes while the process works, or waits for its turn; None if that is not told."""
    try:
        with open(f"/proc/{child}/stat") as file:  # noqa: PTH123 - not a path of ours
            state, *numbers = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    # It waits for the processor or a disk; or its time as a user, and in calls of the system.
    return time.monotonic() if state in "RD" else numbers[10:12]


if __name__ == "__main__":
    main(sys.argv[1])
