"""Ctrl-C, or another exception of a signal handler, at any moment: it arrives as itself, and nothing stays behind in C's hands.

One signal at a time, at a random moment of one operation; two within the
microseconds in which the first is being handled are not what a person does.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import signal

import pytest

from dlbridge import ffi
from dlbridge.ffi import _lib, classes, containers, functions, modules

STORM = """
import gc, random, signal, sys, time
import numpy as np
import dlbridge as bridge
from dlbridge import ffi
from dlbridge.core._cdefs import ffi as cffi
from dlbridge.ffi.functions import _callables
from dlbridge.ffi.errors import untaken
from dlbridge.ffi.objects import _kept

class Alarm(Exception): pass
class Thing: pass
def fail(_):
    raise KeyError
failing = ffi.convert_func(fail)
def failed(x):
    try:
        failing(x)
    except KeyError:
        pass
t, f, n = Thing(), lambda: 1, np.arange(4.)
testing = ffi.library_path.replace("libtvm_ffi.", "libtvm_ffi_testing.")
library = cffi.dlopen(testing, cffi.RTLD_NOW)
nop = ffi.get_global_func("testing.nop")
call, array = ffi.convert_func(lambda x: x), ffi.get_global_func("ffi.Array")
bound = array.bind(t)

def work():
    {work}

work(); gc.collect()
before = len(_callables), len(_kept), sys.getrefcount(t), sys.getrefcount(f), sys.getrefcount(n)
signals = 0

def handler(_number, frame):
    global signals
    while frame is not None:
        if frame.f_code is work.__code__:
            signals += 1
            raise {error}
        frame = frame.f_back

signal.signal(signal.SIGALRM, handler)
wrong, waiting = [], 0
start = time.perf_counter(); work(); took = min(time.perf_counter() - start, 1e-4)
while signals < 1000:
    signal.setitimer(signal.ITIMER_REAL, 5e-6 + random.random() * 2 * took)
    try:
        try:
            work()
        finally:  # what a deleter puts off until it has run may arrive here
            signal.setitimer(signal.ITIMER_REAL, 0)
    except {error}:
        waiting += bool(untaken)
    except BaseException as error:
        wrong.append(repr(error))
work()  # takes the error of a call that was cut off last, which the thread still has
gc.collect()
after = len(_callables), len(_kept), sys.getrefcount(t), sys.getrefcount(f), sys.getrefcount(n)
print([wrong[:2], [a - b for a, b in zip(after, before)], signals, waiting])
"""


@pytest.mark.parametrize(
    "work",
    [
        "ffi.convert_func(f)",  # a function object, and its entry in the table
        "ffi.convert([f, t])",  # an Array of a function and of a Python object
        "array(t, f)",  # a call whose result is an object
        "bound()",
        "ffi.get_global_func('ffi.Array')",
        "call(t)",  # through C into Python and back
        "nop(n, n)",  # with tensors that are lent
        "ffi.Map({'a': t})['a']",
        "ffi.Error('ValueError', 'text').py_error()",
        "failed(t)",  # with an error of the callback
        "failed(n)",  # which got a tensor
        "array(n)",  # a tensor that was lent, and is kept
        "array(bridge.from_dlpack(n))",  # and ours
        "array(ffi.readonly(n[...]))",  # with a struct that is a copy
    ],
)
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "Alarm"])
def test_an_interruption_leaves_nothing_behind(run_script, work, error):
    script = STORM.replace("{work}", work).replace("{error}", error)
    code, output = run_script(script, prelude="")
    assert code == 0, output
    # Before that, Python prints the exceptions that met a destructor.
    wrong, left, signals, waiting = ast.literal_eval(output.splitlines()[-1])
    assert not wrong
    assert waiting * 200 <= signals  # an error may wait in its thread until the next call
    assert not any(left), f"{left} left behind by {signals} signals"


def _keywords(_first, _second):
    """A function that can be called by keywords."""


def _call_with_keywords():
    ffi.register_global_func("test.keywords", _keywords, override=True)
    ffi.get_global_func("test.keywords")(1, _second=2)


TREATED = {
    # name: where the signal comes, the exceptions that are treated there, what the user does
    "repr, bounded": (containers, "bounded", (ValueError, RecursionError), lambda: repr(NESTED)),
    "repr, printed": (containers, "ask", (ValueError,), lambda: repr(NESTED)),
    "get_global_func": (
        functions,
        "ask",
        (RuntimeError,),
        lambda: ffi.get_global_func("ffi.Array"),
    ),
    "register_global_func": (
        inspect,
        "signature",
        (TypeError, ValueError),
        lambda: ffi.register_global_func("test.published", _keywords, override=True),
    ),
    "load_module": (
        modules,
        "ask",
        (RuntimeError,),
        lambda: ffi.load_module(ffi.library_path),
    ),
    "the library's place": (
        importlib.util,
        "find_spec",
        (ValueError,),
        lambda: list(_lib._candidates()),
    ),
    "field": (
        classes.Field,
        "_set",
        (TypeError,),
        lambda: setattr(_pair(), "v_i64", 5),
    ),
    "keywords": (inspect.Signature, "bind", (TypeError,), _call_with_keywords),
}
NESTED = ffi.Array([[1]])


def _pair():
    return ffi.object_class("testing.TestObjectBase")(v_i64=3)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs a POSIX signal")
@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, (_, _, kinds, _) in TREATED.items() for kind in kinds]
)
def test_an_exception_of_a_handler_is_not_treated(testing, monkeypatch, name, kind):
    """It is of a class that means something else where the signal comes."""
    assert testing("nop")  # the library is loaded
    home, attribute, _, work = TREATED[name]
    monkeypatch.delenv(_lib.ENVIRONMENT, raising=False)
    error = kind("of the handler")

    def handler(_number, _frame):
        raise error

    def interrupted(*_arguments, **_keywords):
        signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(home, attribute, interrupted)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(kind) as caught:
            work()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert caught.value is error
