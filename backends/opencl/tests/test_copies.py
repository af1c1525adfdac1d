"""A move stays short: the calls of Python functions in one move, counted."""

from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np
import pytest

import dlbridge as bridge


def modules_of_calls(move):
    """The modules of the functions of dlbridge that one *move* calls, in order."""
    modules, kept = [], []
    for _ in range(3):
        move()  # the first ones fill caches

    def note(frame, event, _argument):
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("dlbridge"):
            modules.append(name)

    sys.setprofile(note)
    try:
        kept.append(move())
    finally:
        sys.setprofile(None)
    return modules, kept[0]


@pytest.fixture
def quick(opencl):
    if not opencl.device_info(0)["host_memory_shared"]:
        pytest.skip("a driver for one thread needs locks around each call")


def changes(modules):
    """Of the module, from one call to the next."""
    return sum(one != other for one, other in pairwise(modules))


def unaligned(size):
    """So that it is copied, and not used in place."""
    return np.arange(size + 8, dtype="float32")[3 : size + 3]


@pytest.mark.parametrize(
    ("size", "most_calls", "most_changes"),
    # 161 calls and 121 changes before `Operand`, 70 and 48 before the backend was asked for
    # memory with its content.
    [(1024, 36, 26), (1 << 18, 70, 50)],
)
def test_the_calls_of_an_upload(quick, size, most_calls, most_changes):
    array = unaligned(size)
    modules, moved = modules_of_calls(lambda: bridge.to_device(array, "opencl:0"))
    assert moved.tolist() == array.tolist()
    assert len(modules) <= most_calls, modules
    assert changes(modules) <= most_changes, modules


@pytest.mark.parametrize("there", ["source", "target"])
def test_the_calls_of_a_copy(quick, there):
    """27 and 22 before the copies asked the driver less."""
    host, device = bridge.asarray(unaligned(16)), bridge.zeros(16, "float32", "opencl:0")
    ends = (host, device) if there == "source" else (device, host)
    modules, _ = modules_of_calls(lambda: bridge.copy_(*ends))
    assert len(modules) <= 18, modules
    assert changes(modules) <= 14, modules


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
