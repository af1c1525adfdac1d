"""What comes after what: each order behind a gate that the earlier work waits for.

`Gate.holds` fails where the later work does not wait, so each of these tests
fails if the line that makes its order is taken out.
"""

from __future__ import annotations

import ctypes
import gc
import threading

import numpy as np
import pyopencl as cl
import pyopencl.array
import pytest
from dlbridge_opencl import devices, use_context

import dlbridge as bridge
from dlbridge.protocol import NativeArray, Span
from dlbridge.testing import side

N = 4096


@pytest.fixture
def zeros(opencl):
    """A tensor of zeros that are there."""
    tensor = bridge.zeros(N, "uint32", "opencl:0")
    bridge.synchronize("opencl:0")
    return tensor


@pytest.fixture
def fives(opencl):
    return bridge.to_device(np.full(N, 5, "u4"), "opencl:0", copy=True)


def close(queue, gate):
    """What goes to *queue* from now on waits for *gate*."""
    cl.enqueue_barrier(queue, wait_for=gate.closed)


def read_behind(gate, queue, buffer):
    """What a copy on *queue* sees, that must wait for *gate*."""
    got = np.zeros(N, "u4")
    event = cl.enqueue_copy(queue, got, buffer, is_blocking=False)
    queue.flush()
    gate.holds(event.wait)
    return got


def fill_in_a_thread(tensor, kernels, gate):
    """A kernel on the array that another thread got, while that thread lives."""

    def fill():
        array = tensor.to_native()
        kernels("late_fill", array.queue, array.base_data, N, 5, 0, wait_for=gate.closed)
        array.queue.flush()
        done.set()
        end.wait()

    done, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=fill)
    thread.start()
    done.wait()
    return lambda: (end.set(), thread.join())


@pytest.mark.parametrize("look", ["copy", "host view"])
def test_after_the_block_comes_what_its_kernel_wrote(zeros, queue, kernels, gate, look):
    """Though in the block the user did nothing but ask for the array."""
    if look == "host view" and not devices.device(0).shares_memory:
        pytest.skip("the device has memory of its own")
    with bridge.use_stream("opencl:0", queue):
        array = zeros.to_native()
        kernels("late_fill", queue, array.base_data, N, 5, 0, wait_for=gate.closed)

    def read():
        if look == "copy":
            return bridge.to_device(zeros, "cpu", copy=True).numpy()
        with zeros.host_view() as view:
            return view.numpy().copy()

    assert (gate.holds(read) == 5).all()


def test_the_users_queue_comes_after_our_work_before_the_block(zeros, fives, own, queue, gate):
    close(own, gate)
    bridge.copy_(zeros, fives)
    with bridge.use_stream("opencl:0", queue):
        array = zeros.to_native()
        assert (read_behind(gate, queue, array.base_data) == 5).all()


def test_the_arrays_queue_comes_after_our_work_in_the_block(zeros, fives, queue, gate):
    with bridge.use_stream("opencl:0", queue):
        close(queue, gate)
        bridge.copy_(zeros, fives)
        array = zeros.to_native()
        assert array.queue is queue
        assert (read_behind(gate, array.queue, array.base_data) == 5).all()


def test_the_arrays_queue_comes_after_work_on_queues_we_know(opencl, zeros, queue, kernels, gate):
    """That the user put there beside us."""
    opencl.normalize_stream(0, queue)
    buffer = zeros.to_native().base_data
    kernels("late_fill", queue, buffer, N, 5, 0, wait_for=gate.closed)
    assert (read_behind(gate, zeros.to_native().queue, buffer) == 5).all()


def test_the_arrays_queue_comes_after_another_threads_copy(opencl, zeros, fives, gate):
    def copy():
        close(cl.CommandQueue.from_int_ptr(opencl.current_stream(0), True), gate)
        bridge.copy_(zeros, fives)
        done.set()
        end.wait()

    done, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=copy)
    thread.start()
    done.wait()
    array = zeros.to_native()
    assert (read_behind(gate, array.queue, array.base_data) == 5).all()
    end.set()
    thread.join()


def test_the_arrays_queue_comes_after_another_threads_array(zeros, kernels, gate):
    end = fill_in_a_thread(zeros, kernels, gate)
    array = zeros.to_native()
    assert (read_behind(gate, array.queue, array.base_data) == 5).all()
    end()


def test_consumers_come_after_another_threads_array(zeros, queue, kernels, gate):
    buffer = zeros.to_native().base_data
    end = fill_in_a_thread(zeros, kernels, gate)
    capsule = zeros.__dlpack__(stream=queue.int_ptr)
    assert (read_behind(gate, queue, buffer) == 5).all()
    end()
    del capsule


def test_consumers_come_after_the_queue_of_the_users_array(context, queue, kernels, gate):
    array = cl.array.zeros(queue, N, "u4")
    queue.finish()
    tensor = bridge.asarray(array)
    kernels("late_fill", queue, array.base_data, N, 5, 0, wait_for=gate.closed)
    consumer = cl.CommandQueue(context)
    capsule = tensor.__dlpack__(stream=consumer.int_ptr)
    assert (read_behind(gate, consumer, array.base_data) == 5).all()
    del capsule


def test_the_arrays_queue_comes_after_the_queue_of_the_users_array(queue, kernels, gate):
    array = cl.array.zeros(queue, N, "u4")
    queue.finish()
    tensor = bridge.asarray(array)
    kernels("late_fill", queue, array.base_data, N, 5, 0, wait_for=gate.closed)
    again = tensor.to_native()
    assert again.queue != queue
    assert (read_behind(gate, again.queue, again.base_data) == 5).all()


def test_the_events_of_the_users_array_come_first(opencl, queue, context, kernels, gate):
    """Events of queues that nobody will ever name here."""
    array = cl.array.zeros(queue, N, "u4")
    unknown = cl.CommandQueue(context)
    event = kernels("late_fill", unknown, array.base_data, N, 5, 0, wait_for=gate.closed)
    unknown.flush()
    array.add_event(event)
    gate.holds(lambda: opencl.from_native(array))


def test_work_on_the_users_buffer_is_done_on_return(opencl, context, own, gate):
    """Its owner knows nothing of our queues."""
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, size=N)
    close(own, gate)
    gate.holds(lambda: opencl.fill(Span(0, buffer.int_ptr, 0, N), 7, own.int_ptr))


@pytest.mark.parametrize("stream", ["the consumer's", "the default"])
def test_memory_that_a_consumer_reads_is_not_used_again(queue, kernels, gate, make, stream):
    """Though the consumer let go of its capsule, and nothing here can know that it reads."""
    tensor = bridge.to_device(np.full(N, 5, "u4"), "opencl:0", copy=True)
    capsule = tensor.__dlpack__(stream=queue.int_ptr if stream == "the consumer's" else None)
    source = cl.MemoryObject.from_int_ptr(tensor.data_ptr(), True)
    target = make(N * 4)
    event = kernels("late_copy", queue, source, target.buffer, N, 0, wait_for=gate.closed)
    queue.flush()
    del capsule, source, tensor
    gc.collect()
    intruders = [bridge.to_device(np.full(N, 9, "u4"), "opencl:0", copy=True) for _ in range(3)]
    gate.holds(event.wait)
    assert (target.read("u4") == 5).all()
    del intruders


@pytest.mark.parametrize("allocated", ["before the block", "in the block"])
def test_memory_of_a_block_is_not_used_again_during_its_work(queue, kernels, gate, make, allocated):
    """The user's kernel has the ``cl_mem`` and nothing else; the tensor dies before it runs."""
    target = make(N * 4)
    bridge.synchronize("opencl:0")
    tensor = bridge.to_device(np.full(N, 5, "u4"), "opencl:0", copy=True)
    with bridge.use_stream("opencl:0", queue):
        if allocated == "in the block":
            tensor = bridge.to_device(np.full(N, 5, "u4"), "opencl:0", copy=True)
        source = cl.MemoryObject.from_int_ptr(tensor.data_ptr(), True)
        event = kernels("late_copy", queue, source, target.buffer, N, 0, wait_for=gate.closed)
        queue.flush()
        del tensor, source
        gc.collect()

    def intrude():  # on this queue it may have to wait for the kernel itself
        for _ in range(3):
            bridge.to_device(np.full(N, 9, "u4"), "opencl:0", copy=True)
        event.wait()

    gate.holds(intrude)
    assert (target.read("u4") == 5).all()


@pytest.mark.parametrize("strided", [False, True])
def test_a_copy_to_another_context_comes_after_the_stream(
    opencl, make, kernels, gate, queue, elsewhere, strided
):
    """To which dlbridge has ordered the work on the source."""
    stream = opencl.normalize_stream(0, queue)
    source = make(N * 4).write(np.zeros(N, "u4"))
    target = make(N * 4, opencl.normalize_stream(0, elsewhere))
    kernels("late_fill", queue, source.buffer, N, 5, 0, wait_for=gate.closed)
    queue.flush()

    def copy():
        if strided:
            there, here = (side(0, each.data, 0, (N // 2,), (8,), 8) for each in (target, source))
            opencl.copy_strided(*there, *here, stream)
        else:
            opencl.copy(Span(0, target.data, 0, N * 4), Span(0, source.data, 0, N * 4), stream)

    gate.holds(copy)
    assert (target.read("u4") == 5).all()


def test_a_written_view_is_unmapped_on_return(opencl, make, own, context, gate, shared):
    """So that a queue that we do not know sees it, too; whatever is on the stream by then."""
    memory = make(N).write(np.zeros(N, "u1"))
    view = opencl.host_view(Span(0, memory.data, 0, N), True, own.int_ptr)
    ctypes.memset(view.data, 7, N)
    close(own, gate)
    del view
    assert memory.buffer.map_count == 0
    got = np.zeros(N, "u1")
    cl.enqueue_copy(cl.CommandQueue(context), got, memory.buffer, is_blocking=True)
    assert (got == 7).all()


def test_host_memory_goes_back_after_the_queue_of_its_array(opencl, context, kernels, gate, shared):
    """A queue that was made for the array: by then we use another context."""
    host = bridge.empty(N, "uint32").numpy()
    address = host.__array_interface__["data"][0]
    memory = [opencl.import_host(0, address, host.nbytes, False, 0)]
    data = memory[0].data
    try:
        use_context(cl.Context(context.devices))
        array = opencl.to_native(NativeArray(0, data, 0, "uint32", (N,), None, False, host))
        kernels("late_fill", array.queue, array.base_data, N, 5, 0, wait_for=gate.closed)
        array.queue.flush()
        gate.holds(memory.clear)
        assert (host == 5).all()
    finally:
        use_context(context)
