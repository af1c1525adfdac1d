"""A move stays short: the calls of Python functions in one `to_device`, counted."""

from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np
import pytest

import dlbridge as bridge

MOST_CALLS = 70
MOST_CHANGES = 40
"""Of the module, from one call to the next. (161 calls and 121 changes before `Operand`.)"""


def test_the_calls_of_an_upload(opencl):
    if not opencl.device_info(0)["host_memory_shared"]:
        pytest.skip("a driver for one thread needs locks around each call")
    # Not aligned for a use in place: it is copied.
    array = np.arange(1100, dtype="float32")[3:1027].reshape(32, 32)
    for _ in range(3):
        bridge.to_device(array, "opencl:0")
    modules, kept = [], []

    def note(frame, event, _argument):
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("dlbridge"):
            modules.append(name)

    sys.setprofile(note)
    try:
        kept.append(bridge.to_device(array, "opencl:0"))
    finally:
        sys.setprofile(None)
    changes = sum(one != other for one, other in pairwise(modules))
    assert kept[0].tolist() == array.tolist()
    assert len(modules) <= MOST_CALLS, modules
    assert changes <= MOST_CHANGES, modules
