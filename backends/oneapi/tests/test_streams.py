"""Queues as streams: the order of work between them, dlbridge, and other libraries."""

import gc

import dpctl
import dpctl.memory
import numpy as np
import pytest

import dlbridge as bridge
from backends.oneapi.tests.late import Described, late_copy, memory_of, numbers_in
from dlbridge.errors import DeviceError

SHORT = 20_000_000
"""Turns of a kernel that takes some 30 ms."""
LONG = 600_000_000
"""Turns for a second, so that a busy machine does not come too late to see it run."""


@pytest.fixture(params=["in order", "out of order"])
def queue(request, oneapi):
    properties = {"property": "in_order"} if request.param == "in order" else {}
    return dpctl.SyclQueue(oneapi.devices[0], **properties)


def filled(queue, value, n=1000):
    memory = dpctl.memory.MemoryUSMDevice(4 * n, queue=queue)
    memory.copy_from_host(np.full(n, value, "u4").view("u1"))
    return memory


def memory_in(tensor, queue):
    return memory_of(tensor.data_ptr(), 4 * tensor.size, queue)


def on_host(tensor):
    return bridge.to_device(tensor, "cpu", copy=True).numpy()


def test_a_kernel_comes_after_a_copy_on_its_stream(oneapi, queue):
    target = filled(queue, 0)
    with bridge.use_stream("oneapi:0", queue):
        source = bridge.to_device(np.full(1000, 7, "u4"), "oneapi:0")
        again = bridge.to_device(source, "oneapi:0", copy=True)  # on the device
        late_copy(queue, memory_in(again, queue), target, 1).event.wait()
    assert (numbers_in(target, "u4") == 7).all()


def test_a_kernel_without_a_barrier_comes_after_a_large_copy(oneapi, queue):
    n = 32 << 18
    source = bridge.to_device(np.full(n, 7, "u4"), "oneapi:0", copy=True)
    for _ in range(5):
        end = filled(queue, 0, 4)
        with bridge.use_stream("oneapi:0", queue):
            target = bridge.zeros(n, "uint32", "oneapi:0")
            bridge.copy_(target, source)
            late_copy(queue, memory_in(target[-4:], queue), end, 1, alone=True).event.wait()
        assert (numbers_in(end, "u4") == 7).all()


def test_a_native_object_has_finished_work(oneapi, queue):
    tensor = bridge.zeros(1000, "uint32", "oneapi:0")
    with bridge.use_stream("oneapi:0", queue):
        tensor.operand()
        work = late_copy(queue, filled(queue, 7), memory_in(tensor, queue), SHORT)
        native = dpctl.memory.as_usm_memory(tensor.to_native())
        assert native.sycl_queue == oneapi.queue(0)
        target = filled(native.sycl_queue, 0)
        late_copy(native.sycl_queue, native, target, 1).event.wait()
    assert (numbers_in(target, "u4") == 7).all()
    del work


def test_a_native_object_comes_in_with_finished_work(oneapi, queue):
    memory = filled(queue, 0)
    work = late_copy(queue, filled(queue, 7), memory, SHORT)
    with bridge.use_stream("oneapi:0", dpctl.SyclQueue(oneapi.devices[0], property="in_order")):
        tensor = bridge.asarray(memory)
        assert work.event.execution_status == dpctl.event_status_type.complete
        assert (on_host(tensor).view("u4") == 7).all()


def test_arrays_of_dpnp_on_another_queue(oneapi, dpnp, queue):
    """dpnp orders its work before a queue that it gets as stream=, and before nothing else."""
    array = dpnp.zeros(1000, dtype="i4", sycl_queue=queue)
    queue.wait()
    work = late_copy(queue, filled(queue, 7), array.get_array().usm_data, SHORT)
    tensor = bridge.from_dlpack(array, stream=oneapi.queue(0))
    assert (on_host(tensor) == 7).all()
    del work


def test_an_owner_is_released_after_our_work(oneapi):
    """Its library frees the memory at once, so a copy that reads it must be done by then."""
    queue = dpctl.SyclQueue(oneapi.devices[0], property="in_order")
    status = []

    class Owner(Described):
        def __del__(self):
            status.append(work.event.execution_status)

    memory = filled(queue, 7)
    tensor = bridge.asarray(Owner(memory._pointer, queue, shape=(4000,)))
    with bridge.use_stream("oneapi:0", queue):
        work = late_copy(queue, turns=LONG)
        copied = bridge.to_device(tensor, "oneapi:0", copy=True)
        assert work.event.execution_status != dpctl.event_status_type.complete
        del tensor
        gc.collect()
    assert status == [dpctl.event_status_type.complete]
    assert (on_host(copied).view("u4") == 7).all()


# Which queues are streams


def test_one_queue_has_one_handle(oneapi, queue):
    handle = oneapi.normalize_stream(0, queue)
    assert handle == oneapi.normalize_stream(0, dpctl.SyclQueue(queue._get_capsule()))
    assert handle == oneapi.normalize_stream(0, handle)
    assert oneapi.queue(0, handle) == queue
    assert handle != oneapi.normalize_stream(0, dpctl.SyclQueue(oneapi.devices[0]))
    assert oneapi.normalize_stream(0, oneapi.queue(0)) == 0


def test_the_address_of_a_queue_is_taken(oneapi, queue):
    """torch's streams of XPU give it as ``sycl_queue``; dpctl's queues say their own."""
    handle = oneapi.normalize_stream(0, queue.addressof_ref())
    assert oneapi.queue(0, handle) == queue
    assert handle == oneapi.normalize_stream(0, queue) == oneapi.normalize_stream(0, handle)
    assert oneapi.normalize_stream(0, oneapi.queue(0).addressof_ref()) == 0


def test_work_on_a_queue_of_an_address_is_ordered(oneapi, queue):
    source = bridge.zeros(1000, "uint32", "oneapi:0")
    work = late_copy(queue, filled(queue, 7), memory_in(source, queue), SHORT)
    address = queue.addressof_ref()
    with bridge.use_stream("oneapi:0", address):
        copied = bridge.to_device(source, "oneapi:0", copy=True)
    assert (on_host(copied) == 7).all()
    del work


def test_an_address_without_a_queue_is_refused(oneapi):
    """Mapped memory, too: SYCL would end the process."""
    words = np.zeros(4, "u8")
    words[:] = words.ctypes.data  # each word leads to itself
    context = oneapi.queue(0).sycl_context.addressof_ref()
    for address in (12345, 1 << 63, id(words), words.ctypes.data, context):
        with pytest.raises(ValueError, match=r"is no known queue of oneapi:0; .*, or its address"):
            oneapi.normalize_stream(0, address)


def test_queues_are_forgotten_when_they_are_done(oneapi):
    first = dpctl.SyclQueue(oneapi.devices[0], property="in_order")
    tensor = bridge.zeros(1000, "uint32", "oneapi:0")
    handle = oneapi.normalize_stream(0, first)
    work = late_copy(first, filled(first, 7), memory_in(tensor, first))
    for _ in range(64):
        oneapi.normalize_stream(0, dpctl.SyclQueue(oneapi.devices[0]))
    assert work.event.execution_status == dpctl.event_status_type.complete
    with pytest.raises(
        DeviceError, match=rf"oneapi:0 knows no queue {handle:#x} any more; pass it"
    ):
        oneapi.synchronize(0, handle)
    oneapi.wait(0, 0, handle)  # there is nothing to wait for
    assert (on_host(tensor) == 7).all()
    assert oneapi.normalize_stream(0, first) == handle


def test_streams_that_are_none(oneapi):
    device = oneapi.devices[0]
    elsewhere = dpctl.SyclQueue(dpctl.SyclContext([device]), device)
    streams = [elsewhere, 12345]
    if device.max_compute_units > 1:  # a process on one processor has no part of its device
        streams.append(dpctl.SyclQueue(device.create_sub_devices(partition=1)[0]))
    for stream in streams:
        with pytest.raises(ValueError, match=r"is no known queue of oneapi:0; pass None, -1, or a"):
            oneapi.normalize_stream(0, stream)
    with pytest.raises(TypeError, match=r"is no SYCL stream; pass None, -1, or a dpctl\.S"):
        oneapi.normalize_stream(0, oneapi.queue(0).submit_barrier())
