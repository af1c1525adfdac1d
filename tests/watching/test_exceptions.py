"""Exceptions in the table's own code: none reaches the program, whichever function raises."""

from __future__ import annotations

import inspect
import sys

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.watching import arrays, exchanges, sites, table

if sys.version_info >= (3, 12):
    from dlbridge.watching import monitoring as watcher
else:
    from dlbridge.watching import profiling as watcher

# What begins and ends a watch and shows its table: the program itself calls it.
NOT_IN_EVENTS = {"start", "stop", "fill", "forget", "rows", "notes", "short", "remark", "failed"}
NOT_IN_EVENTS |= {"as_dict", "summary", "_foot", "_call_event", "_instruction_event", "_callbacks"}
NOT_IN_EVENTS |= {"_repr_html_", "_on_event"}


def functions():
    """Those of the modules and of their classes, with who has them."""
    for module in (arrays, exchanges, sites, table, watcher):
        owners = [module, *(x for x in vars(module).values() if inspect.isclass(x))]
        for owner in owners:
            if getattr(owner, "__module__", module.__name__) != module.__name__:
                continue
            for name, x in vars(owner).items():
                is_ours = inspect.isfunction(x) and x.__module__ == module.__name__
                if is_ours and name not in NOT_IN_EVENTS and not name.startswith("__"):
                    yield owner, name


def program():
    """Exchanges of several kinds: into a variable, a return, a call, a parameter, in a block."""

    def called(function, x):
        return function(x)

    a = np.ones(8, "float32")
    t = bridge.asarray(a)
    b = np.asarray(t)
    made = [t.tolist(), called(np.array, t), called(len, b), np.stack([t, t])]
    with memoryview(a):
        c = np.array(bridge.asarray(np.asarray(t)))
    return [np.sum(x) for x in (*made, b, c)]


@pytest.mark.parametrize("exception", [OSError, MemoryError, RecursionError])
def test_no_exception_reaches_the_program(monkeypatch, exception):
    def wrong(*_arguments, **_keywords):
        raise exception("in the table's own code")

    expected = program()
    noted = 0
    for owner, name in list(functions()):
        with bridge.watch() as found:
            monkeypatch.setattr(owner, name, wrong)
            try:
                assert program() == expected, name
            finally:
                monkeypatch.undo()
        noted += "in the table's own code" in str(found)
    assert noted > 10
