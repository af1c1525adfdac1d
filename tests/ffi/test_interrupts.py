"""An exception at any moment, of a signal handler, for want of memory or of a trace function: it arrives as itself, and nothing stays behind in C's hands."""

from __future__ import annotations

import importlib.util
import inspect
import signal
import sys

import pytest

from dlbridge import ffi
from dlbridge.ffi import _lib, containers, functions, modules, reflection

WORK = [
    *("function", "convert", "object", "bound", "look up", "callback", "lent", "map", "error"),
    *("failed", "failed with a tensor", "lent and kept", "our tensor", "read-only"),
]


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "Alarm"])
def test_an_interruption_leaves_nothing_behind(run_scene, work, error):
    code, output = run_scene("signals", "storm", work, error)
    # Python prints the exceptions that met a destructor.
    assert code == 0, output


@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 14),
    reason="CPython 3.12 and 3.13 themselves crash where a generator gets no memory: docs/safety.md",
)
def test_each_allocation_fails_once(run_scene):
    """A reference was given up that had never been taken, and the process crashed later."""
    pytest.importorskip("_testcapi", reason="CPython's own tests are not installed")
    assert run_scene("failures", "cut_off", "allocations", "2000") == (0, "")


def test_a_trace_function_raises_at_each_line(run_scene):
    assert run_scene("failures", "cut_off", "lines", "4000") == (0, "")


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
        reflection.Field,
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
