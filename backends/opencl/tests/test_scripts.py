"""What users write: other libraries' tensors, OpenCL kernels, and back, with the trace of it."""

from __future__ import annotations

import gc

import numpy as np
import pyopencl as cl
import pyopencl.array
import pytest

import dlbridge as bridge

N = 1 << 16
DOUBLE = "__kernel void twice(__global float *x) { x[get_global_id(0)] *= 2; }"


def torch_range(peer):
    torch = peer("torch")
    return torch.arange(N, dtype=torch.float32)


def numpy_range(_):
    array = bridge.empty(N, "float32").numpy()  # aligned, as plain numpy memory seldom is
    array[:] = np.arange(N)
    return array


def jax_range(peer):
    cpu = peer("jax").devices("cpu")[0]  # its arrays are on a GPU if it has one
    return peer("jax").device_put(peer("jax.numpy").arange(N, dtype="float32"), cpu)


def address(x):
    if hasattr(x, "data_ptr"):
        return x.data_ptr()
    if hasattr(x, "unsafe_buffer_pointer"):
        return x.unsafe_buffer_pointer()
    return x.__array_interface__["data"][0]


def device_that_shares(opencl, shares):
    for i in range(opencl.device_count()):
        if opencl.device_info(i)["host_memory_shared"] == shares:
            return f"opencl:{i}"
    return pytest.skip(f"no device with host_memory_shared={shares} here")


def double(tensor):
    array = tensor.to_native()
    program = cl.Program(array.context, DOUBLE).build()
    program.twice(array.queue, (N,), None, array.base_data)


@pytest.mark.parametrize("source", [torch_range, numpy_range])
def test_one_memory_and_no_copy(opencl, peer, source):
    """Script S1: into a kernel and out to numpy, one address throughout, zero bytes."""
    device = device_that_shares(opencl, True)
    x = source(peer)
    with bridge.trace() as trace:
        tensor = bridge.to_device(x, device, copy=False)
        double(tensor)
        y = np.from_dlpack(tensor.host_view())
    assert address(y) == address(x)
    assert (y == 2 * np.arange(N)).all()
    assert (trace.copies, trace.nbytes) == (0, 0)
    del y, tensor
    assert x[3] == 6


@pytest.mark.parametrize("source", [torch_range, numpy_range, jax_range])
def test_copies_are_those_that_explain_predicted(opencl, peer, source):
    """The same on a device with memory of its own."""
    device = device_that_shares(opencl, False)
    x = source(peer)
    there = bridge.plan(x, device)
    assert "memory of its own" in str(there)
    refusal = opencl.host_import_refusal(int(device.partition(":")[2]), address(x), 4 * N, True)
    if refusal:
        with pytest.raises(bridge.Error) as caught:
            bridge.plan(x, device, copy=False)
        assert refusal in str(caught.value)
    else:
        asked = bridge.plan(x, device, copy=False)  # only then host memory is used over the bus
        assert [step.kind for step in asked.steps] == ["host import"]
    with bridge.trace() as trace:
        tensor = bridge.to_device(x, device)
        back = bridge.plan(tensor, "cpu")
        double(tensor)
        y = bridge.to_device(tensor, "cpu").numpy()
    assert (y == 2 * np.arange(N)).all()
    assert x[3] == 3
    ran = [[(step.kind, step.nbytes) for step in plan.steps] for plan in trace.plans]
    assert ran == [[(step.kind, step.nbytes) for step in plan.steps] for plan in (there, back)]
    assert ran == [[("upload", 4 * N)], [("download", 4 * N)]]
    assert trace.nbytes == 8 * N
    with pytest.raises(BufferError, match="memory of its own"):
        tensor.host_view()


def test_immutable_sources_stay_as_they_are(opencl, peer):
    """A jax array on a device that shares memory: read-only, whatever the road."""
    device = device_that_shares(opencl, True)
    x = jax_range(peer)
    tensor = bridge.to_device(x, device)
    assert tensor.readonly or address(np.from_dlpack(tensor.host_view())) != address(np.asarray(x))
    assert (bridge.to_device(tensor, "cpu").numpy() == np.arange(N)).all()


@pytest.mark.parametrize("shares", [True, False])
def test_pyopencl_arrays_go_anywhere(opencl, shares):
    device = device_that_shares(opencl, shares)
    number = int(device.partition(":")[2])
    handle = cl.CommandQueue.from_int_ptr(opencl.current_stream(number), True).device
    context = cl.Context([handle])
    queue = cl.CommandQueue(context)  # all the user's own
    array = cl.array.to_device(queue, np.arange(N, dtype="f4").reshape(-1, 16))
    tensor = bridge.asarray(array[4:8, 2:6])
    assert (tensor.shape, str(tensor.device)) == ((4, 4), device)
    array += 1
    want = np.arange(N, dtype="f4").reshape(-1, 16)[4:8, 2:6] + 1
    assert (bridge.to_device(tensor, "cpu").numpy() == want).all()


def test_there_and_back_through_another_library(opencl, peer):
    """tvm_ffi carries tensors of any device, and exports them under its own name."""
    tvm_ffi = peer("tvm_ffi")
    tensor = bridge.to_device(np.arange(N, dtype="f4"), "opencl:0", copy=True)
    carried = tvm_ffi.from_dlpack(tensor)
    again = bridge.from_dlpack(carried)
    del tensor, carried
    gc.collect()
    assert str(again.device) == "opencl:0"
    assert (bridge.to_device(again, "cpu").numpy() == np.arange(N)).all()
