"""Ctrl-C at any moment: it arrives as itself, and nothing stays behind in C's hands.

One signal at a time, at a random moment of one operation; two within the
microseconds in which the first is being handled are not what a person does.
"""

from __future__ import annotations

import ast
import sys

import pytest

STORM = """
import gc, random, signal, sys, time
from dlbridge import ffi
from dlbridge.ffi.calls.callbacks import _callables
from dlbridge.ffi.values.opaque import _kept

class Thing: pass
t, f = Thing(), lambda: 1
call, array = ffi.convert_func(lambda x: x), ffi.get_global_func("ffi.Array")
bound = array.bind(t)

def work():
    {work}

work(); gc.collect()
before = len(_callables), len(_kept), sys.getrefcount(t), sys.getrefcount(f)
signals = 0

def handler(_number, frame):
    global signals
    while frame is not None:
        if frame.f_code is work.__code__:
            signals += 1
            raise KeyboardInterrupt
        frame = frame.f_back

signal.signal(signal.SIGALRM, handler)
signal.signal(signal.SIGINT, handler)  # what a deleter delivers later
wrong = []
start = time.perf_counter(); work(); took = min(time.perf_counter() - start, 1e-4)
end = time.monotonic() + 1.5
while time.monotonic() < end:
    signal.setitimer(signal.ITIMER_REAL, 5e-6 + random.random() * 2 * took)
    try:
        work()
    except KeyboardInterrupt:
        pass
    except BaseException as error:
        wrong.append(repr(error))
    signal.setitimer(signal.ITIMER_REAL, 0)
gc.collect()
after = len(_callables), len(_kept), sys.getrefcount(t), sys.getrefcount(f)
assert signals > 100, signals
print([wrong[:2], [a - b for a, b in zip(after, before)], signals])
"""

# CPython 3.10 also raises between instructions where later ones do not: a few
# references stay there, an open defect (3.10.13: 47 after 2,737 signals at most).
MOST_LEFT = 0.05 if sys.version_info < (3, 11) else 0


@pytest.mark.parametrize(
    "work",
    [
        "ffi.convert_func(f)",  # a function object, and its entry in the table
        "ffi.convert([f, t])",  # an Array of a function and of a Python object
        "array(t, f)",  # a call whose result is an object
        "bound()",
        "ffi.get_global_func('ffi.Array')",
        "call(t)",  # through C into Python and back
        "ffi.Map({'a': t})['a']",
        "ffi.Error('ValueError', 'text').py_error()",
    ],
)
def test_an_interruption_leaves_nothing_behind(run_script, work):
    code, output = run_script(STORM.replace("{work}", work), prelude="", timeout=60)
    assert code == 0, output
    wrong, left, signals = ast.literal_eval(output)
    assert not wrong
    assert all(0 <= count <= MOST_LEFT * signals for count in left), (left, signals)
