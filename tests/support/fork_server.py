"""A process that has imported modules and used nothing: each program runs in a fork of it.

``python fork_server.py MODULE ...``; "-torch" says that there is no torch. `scripts.py` starts it, and
writes a line of JSON for each program to its standard input. (Children of multiprocessing's own
``forkserver`` end by ``os._exit``; these end as a script does, with its exit functions.)
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import warnings
from types import CodeType
from typing import Any

_path = list(sys.path)


def _next_program() -> CodeType:
    """Return in a fork of this process, which is set up for the program that is asked for."""
    for line in sys.stdin:
        with warnings.catch_warnings():  # a library may have threads, which wait
            warnings.simplefilter("ignore")
            child = os.fork()
        if not child:
            return _set_up(**json.loads(line))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.exit()


def _set_up(
    source: str,
    arguments: list[str],
    env: dict[str, str],
    cwd: str,
    outputs: list[str],
) -> CodeType:
    """Become the process that ``python source`` would be; an empty *source* is a file, the first argument."""
    for descriptor, name in enumerate([os.devnull, *outputs]):
        opened = os.open(name, os.O_RDWR)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = arguments if not source else ["-c", *arguments]
    first = "" if source else os.path.dirname(arguments[0])  # noqa: PTH120 - pathlib may not be there
    sys.path[:] = [first, *filter(None, env["PYTHONPATH"].split(os.pathsep)), *_path]
    # A process in the background may be started with SIGINT ignored, and hands that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    globals()["__file__"] = None if source else arguments[0]  # what `multiprocessing` starts again
    if source:
        return compile(source, "<string>", "exec", dont_inherit=True)
    with open(arguments[0], "rb") as file:  # noqa: PTH123
        return compile(file.read(), arguments[0], "exec", dont_inherit=True)


if __name__ == "__main__":
    _absent: Any = None
    for _name in sys.argv[1:]:
        if _name.startswith("-"):
            sys.modules[_name[1:]] = _absent
        else:
            with contextlib.suppress(ImportError):  # the program says what it needs
                importlib.import_module(_name)
    # At the top level: the program's names are those of the module __main__.
    exec(_next_program())
