"""Which functions of pyopencl copy, and copies between buffers that share bytes."""

from __future__ import annotations

import numpy as np
import pyopencl as cl
import pyopencl.array
import pytest

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


def two_buffers(way):
    """Two tensors on the same 64 bytes by two buffers of OpenCL, or a test that is skipped."""
    one = bridge.zeros(64, "uint8", "opencl:0")
    native = one.to_native()
    if way == "imported again":
        view = bridge.to_device(one, "cpu")
        if bridge.plan(view, "opencl:0").copies or bridge.plan(one, "cpu").copies:
            pytest.skip("the device and the host share no memory")
        return one, bridge.to_device(view, "opencl:0")
    if way == "a part":
        buffer = native.base_data.get_sub_region(0, 64)
        other = cl.array.Array(native.queue, (64,), np.uint8, data=buffer)
        return one, bridge.asarray(other)
    base = np.zeros(8192, "u1")
    host = base[-base.ctypes.data % 4096 :][:64]
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    buffers = [cl.Buffer(native.context, flags, hostbuf=host) for _ in range(2)]
    arrays = [cl.array.Array(native.queue, (64,), np.uint8, data=each) for each in buffers]
    return tuple(map(bridge.asarray, arrays))


@pytest.mark.parametrize("way", ["imported again", "a part", "of a user"])
@pytest.mark.parametrize("turned", [False, True])
def test_two_buffers_over_one_memory_may_overlap(opencl, way, turned):
    target, source = two_buffers(way)[:: -1 if turned else 1]
    for into, of in (
        (np.s_[22:53:2], np.s_[18:34]),
        (np.s_[1:64], np.s_[:63]),
        (np.s_[:63], np.s_[1:64]),
    ):
        right = np.arange(64, dtype="uint8")
        bridge.copy_(source, right)
        right[into] = right[of].copy()
        bridge.copy_(target[into], source[of])
        assert bridge.to_device(source, "cpu", like="numpy", copy=True).tolist() == right.tolist()
