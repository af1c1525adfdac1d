"""A move stays short: the calls of Python functions in one move, counted."""

from __future__ import annotations

import numpy as np

import dlbridge as bridge


def test_a_copy_calls_what_pyopencl_calls():
    """Its private functions: where a version lacks them, copies take pyopencl's public way."""
    from dlbridge_opencl import driver
    from pyopencl import _cl

    assert driver.write_buffer is _cl._enqueue_write_buffer
    assert driver.read_buffer is _cl._enqueue_read_buffer


def test_copies_without_them(opencl, monkeypatch):
    from dlbridge_opencl import copies, driver

    monkeypatch.setattr(copies, "write_buffer", driver._write)
    monkeypatch.setattr(copies, "read_buffer", driver._read)
    device = bridge.zeros(16, "float32", "opencl:0")
    bridge.copy_(device[4:8], np.arange(4, dtype="float32"))
    assert bridge.to_device(device[3:7], "cpu", copy=True).tolist() == [0, 0, 1, 2]
