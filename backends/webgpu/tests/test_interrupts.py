"""Why an exception of a signal handler hangs nothing; that it does not, the kit shows."""

from __future__ import annotations

import sys
import threading

import numpy as np

import dlbridge as bridge


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
