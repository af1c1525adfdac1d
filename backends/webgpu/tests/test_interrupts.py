"""Ctrl-C at any moment: the exception arrives, and later transfers work."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.scripts import run_script

STORM = """
import random, sys
import numpy as np
import dlbridge as bridge
from tests.support.interrupted import Alarm, interrupted

x = np.arange(10_000, dtype="float32")
tensor = bridge.to_device(x, "webgpu:0")
bridge.to_device(tensor, "cpu", copy=True)
works = {
    "download": lambda: bridge.to_device(tensor, "cpu", copy=True),
    "upload": lambda: bridge.copy_(tensor, x),
    "many uploads": lambda: [bridge.copy_(tensor[:1], x[:1]) for _ in range(400)],
    "synchronize": lambda: bridge.synchronize("webgpu:0"),
    "allocate": lambda: bridge.zeros(1000, "float32", "webgpu:0"),
    "copy": lambda: bridge.to_device(tensor, "webgpu:0", copy=True),
}
pick = random.Random(int(sys.argv[1]))
interrupted(lambda: pick.choice(list(works.values()))(), Alarm, 500)
bridge.copy_(tensor, x)
assert (bridge.to_device(tensor, "cpu", copy=True).numpy() == x).all()
print("the end")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no timer that sends signals")
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (2, 3))]
)
def test_a_storm_of_signals_hangs_nothing(webgpu, seed):
    """wgpu's own waits, by threading.Event, hung in half of such processes.

    That dlbridge has none of these waits, the test below shows each time.
    """
    assert run_script(STORM, seed) == "the end\n"


def test_no_transfer_uses_a_lock_in_python(webgpu):
    """An exception inside of threading.Event, which is Python code, leaves its lock locked."""
    inside = set()

    def look(frame, event, _):
        if frame.f_code.co_filename == threading.__file__:
            inside.add(frame.f_code.co_name)

    source = np.arange(1000, dtype="u4")
    tensor = bridge.to_device(source, "webgpu:0")
    bridge.synchronize("webgpu:0")
    sys.setprofile(look)
    try:
        bridge.copy_(tensor, source)
        bridge.to_device(tensor, "cpu", copy=True)
        bridge.to_device(tensor, "webgpu:0", copy=True)
        bridge.zeros(1000, "u4", "webgpu:0")
        bridge.synchronize("webgpu:0")
    finally:
        sys.setprofile(None)
    assert inside <= {"current_thread", "RLock"}  # which makes a lock of C
