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
import signal
import sys

from .cases import Rule, Source, told
from .runner import rules
from .subject import Fail, NotOffered, Subject

LIMIT = 60
"""Seconds for one case."""

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
        found = run_case(subject, rules()[text.strip()])
        print(json.dumps(found), flush=True)


def _in_child(subject: Subject, rule: Rule) -> tuple[str, str]:
    import resource  # not on Windows, which has no fork either

    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIMIT)  # it ends a case that hangs
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is expected: no dump
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
    status = os.waitpid(child, 0)[1]
    with os.fdopen(reader, "rb") as file:
        text = file.read()
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        return "crash", f"it hangs: no end after {LIMIT} s"
    if os.WIFSIGNALED(status):
        after = " when the process ended" if text else ""
        return "crash", f"{signal.Signals(os.WTERMSIG(status)).name}{after}"
    if not text or os.WEXITSTATUS(status):
        return "crash", f"the process ended with status {os.WEXITSTATUS(status)}"
    result, evidence = json.loads(text)
    return result, evidence


if __name__ == "__main__":
    main(sys.argv[1])
