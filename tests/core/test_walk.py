"""How far a reader has to follow one move: the functions and modules of the core on its way."""

from __future__ import annotations

from tests.support.expected_parts import backend_or_skip
from tests.support.scripts import run_script

WALK = """
import sys, numpy as np, dlbridge as bridge

def walk(work):
    passed = set()

    def note(frame, event, _argument):
        code = frame.f_code
        _, core, module = code.co_filename.rpartition("/dlbridge/core/")
        if event == "call" and core and code.co_name[0] != "<":  # no comprehension
            passed.add((module, code))

    sys.setprofile(note)
    kept.append(work())
    sys.setprofile(None)
    return len(passed), len({module for module, _ in passed})

kept = []
host = np.arange(1003, dtype="f4")[3:]  # not aligned: it is copied
kept.append(bridge.to_device(host, "cpu"))
bridge.backend("opencl")  # to load a driver is a walk of its own
for _ in range(3):
    print(*walk(lambda: bridge.to_device(host, "opencl:0")))
"""


def test_the_walk_of_numpy_to_a_device():
    """The first call, and the third: with `opencl` the memory is made with its content."""
    backend_or_skip("opencl")
    counts = [int(count) for count in run_script(WALK).split()]
    functions, modules, *_, warm, warm_modules = counts
    assert functions <= 35, counts
    assert modules <= 11, counts
    assert warm <= 16, counts
    assert warm_modules <= 8, counts
