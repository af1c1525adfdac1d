"""Signals that come while the FFI works."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

import dlbridge as bridge
from dlbridge import ffi
from dlbridge.ffi.errors import take_raised, untaken
from dlbridge.ffi.functions import _callables
from dlbridge.ffi.objects import _kept

from .scene import raised, testing


def long_call() -> None:
    """The call is longer than the test may take: what does not hear the signal fails by that."""
    f = testing("run_check_signal")
    for call in (lambda: f(600), f.bind(600), lambda: testing("apply")(f, 600)):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()  # no verdict
        assert type(raised(KeyboardInterrupt, call)) is KeyboardInterrupt
    assert take_raised() is None


def callback() -> None:
    def fail() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            pass

    raised(KeyboardInterrupt, testing("apply"), fail)


def dict_that_is_listed() -> None:
    """The library's own iterator would go on in freed memory."""

    def change(*_: Any) -> None:
        for key in range(300):
            table[1000 + key] = [key]
        for key in range(300):
            del table[1000 + key]
        table["new"] = 1

    signal.signal(signal.SIGUSR1, change)
    lines, turn = 1, 0

    def local(_frame: Any, _event: Any, _argument: Any) -> Any:
        nonlocal lines
        lines += 1
        if lines == turn:
            signal.raise_signal(signal.SIGUSR1)
        return local

    def trace(frame: Any, _event: Any, _argument: Any) -> Any:
        return local if frame.f_code.co_filename.endswith("containers.py") else None

    expected = [(key, [key]) for key in range(12)]
    while lines >= turn:  # a signal before each line in turn
        turn, lines = turn + 1, 0
        table = ffi.Dict(dict(expected))
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            found = list(table.items())
        finally:
            sys.settrace(before)
        assert found in (expected, [*expected, ("new", 1)]), found
    assert turn > 10, turn


class Alarm(Exception):
    """An exception that is no KeyboardInterrupt."""


class Thing:
    pass


def _fail(_value: Any) -> None:
    raise KeyError


thing, function, memory = Thing(), lambda: 1, np.arange(4.0)

WORK: dict[str, Any] = {
    "function": lambda: ffi.convert_func(function),  # a function object, and its entry in the table
    "convert": lambda: ffi.convert([function, thing]),
    "object": lambda array: array(thing, function),  # a call whose result is an object
    "bound": lambda bound: bound(),
    "look up": lambda: ffi.get_global_func("ffi.Array"),
    "callback": lambda call: call(thing),  # through C into Python and back
    "lent": lambda nop: nop(memory, memory),  # with tensors that are lent
    "map": lambda: ffi.Map({"a": thing})["a"],
    "error": lambda: ffi.Error("ValueError", "text").py_error(),
    "failed": lambda failing: _failed(failing, thing),  # with an error of the callback
    "failed with a tensor": lambda failing: _failed(failing, memory),
    "lent and kept": lambda array: array(memory),
    "our tensor": lambda array: array(bridge.from_dlpack(memory)),
    "read-only": lambda array: array(ffi.readonly(memory[...])),  # with a struct that is a copy
}


def _failed(failing: Any, value: Any) -> None:
    try:  # noqa: SIM105 - a signal would come while `suppress` runs
        failing(value)
    except KeyError:
        pass


def _living() -> Any:
    gc.collect()
    counts = map(sys.getrefcount, (thing, function, memory))
    return [len(_callables), len(_kept), *counts]


def storm(work: Any, error: Any) -> None:
    """1000 exceptions of a handler, one at a random moment of each turn.

    It leaves nothing behind, and each comes out as itself. Two within the microseconds in which
    the first is being handled are not what a person does.
    """
    error = {"KeyboardInterrupt": KeyboardInterrupt, "Alarm": Alarm}[error]
    array = ffi.get_global_func("ffi.Array")
    given = {
        "array": array,
        "bound": array.bind(thing),
        "call": ffi.convert_func(lambda x: x),
        "failing": ffi.convert_func(_fail),
        "nop": testing("nop"),
    }
    code = WORK[work].__code__
    needed = [given[name] for name in code.co_varnames[: code.co_argcount]]

    def turn() -> None:
        WORK[work](*needed)

    turn()
    before, signals, waiting = _living(), 0, 0

    def handler(_number: Any, frame: Any) -> None:
        nonlocal signals
        while frame is not None:
            if frame.f_code is code:
                signals += 1
                raise error
            frame = frame.f_back

    signal.signal(signal.SIGALRM, handler)
    start = time.perf_counter()
    turn()
    took = min(time.perf_counter() - start, 1e-4)
    while signals < 1000:
        signal.setitimer(signal.ITIMER_REAL, 5e-6 + random.random() * 2 * took)
        try:
            try:
                turn()
            finally:  # what a deleter puts off until it has run may arrive here
                signal.setitimer(signal.ITIMER_REAL, 0)
        except error:
            waiting += bool(untaken)
    assert waiting * 200 <= signals  # an error may wait in its thread until the next call
    turn()  # takes the error of a call that was cut off last, which the thread still has
    left = [after - one for after, one in zip(_living(), before, strict=True)]
    assert not any(left), f"{left} left behind by {signals} signals"
