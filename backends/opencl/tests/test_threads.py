"""Two threads and one buffer, a Ctrl-C at every moment, finalizers while a lock is held."""

from __future__ import annotations

import threading

import numpy as np
import pyopencl as cl
import pytest
from threads import in_threads

import dlbridge as bridge
from dlbridge.protocol import Span

VIEWS = """
import sys, time
import numpy as np
import dlbridge as bridge
from threads import in_threads

sys.setswitchinterval(1e-6)
t = bridge.to_device(np.arange(4096.0), "opencl:0", copy=True)
views, end = [0] * 4, time.monotonic() + 4

def look(number):
    first = number % 2 * 8
    while not views[number] or time.monotonic() < end:
        with t[first:].host_view() as host:
            assert host.numpy()[0] == first
        views[number] += 1

assert in_threads(look, 4) == []
from dlbridge_opencl import views as inside
assert not inside._resources.all()
"""


def test_host_views_of_one_tensor_in_several_threads(script, shared):
    """PoCL crashes if two threads map and unmap one buffer at once."""
    script(VIEWS)


def test_a_view_of_every_thread_is_given_back(opencl, make, shared):
    """Many views of one region have one address, and the list of them is not lost."""
    from dlbridge_opencl import views

    memory = make(4096)
    barrier = threading.Barrier(4)

    def look(_number):
        for _ in range(300):
            barrier.wait()
            opencl.host_view(Span(0, memory.data, 0, 64), False, memory.stream)

    assert in_threads(look, 4) == []
    assert not views._resources.all()
    assert memory.buffer.map_count == 0


def test_a_view_that_waits_does_not_lock_out_others(opencl, make, kernels, gate, context, shared):
    """One thread waits for a kernel on the buffer; a finalizer on the same buffer does not."""
    from dlbridge_opencl import views

    memory = make(4096)
    queue = cl.CommandQueue(context)
    stream = opencl.normalize_stream(0, queue)
    kernels("late_fill", queue, memory.buffer, 16, 7, 0, wait_for=gate.closed)
    queue.flush()
    given = []
    look = threading.Thread(
        target=lambda: given.append(opencl.host_view(Span(0, memory.data, 0, 64), False, stream))
    )
    look.start()
    look.join(0.2)  # no verdict: a view that does not wait may come later, unseen
    assert not given, "it did not wait for the kernel"
    taken = []

    other_view = [opencl.host_view(Span(0, memory.data, 0, 64), False, memory.stream)]

    def finalizer():
        other_view.clear()
        taken.append(views._lock.acquire(timeout=100))
        views._lock.release()

    other = threading.Thread(target=finalizer)
    other.start()
    other.join(100)
    gate.open()
    look.join()
    assert taken == [True]
    given.clear()
    assert memory.buffer.map_count == 0


IMPORTS = """
import sys
import dlbridge as bridge
from interrupted import interrupted

opencl = bridge.backend("opencl")
host = bridge.empty(4096, "uint8").numpy()
address = host.__array_interface__["data"][0]
sys.unraisablehook = lambda _: None  # what a handler raises in a finalizer

def work():
    opencl.import_host(0, address, 4096, False, 0)

work()
interrupted(work, KeyboardInterrupt, 1000)
opencl.allocate(0, 64, 64, 0)  # its end does what was cut off
assert opencl.live_allocations() == 0, opencl.live_allocations()
"""


def test_a_ctrl_c_loses_no_imported_memory(script, shared):
    script(IMPORTS)


def test_no_thread_gets_a_queue_that_another_replaces(opencl, context):
    """One queue for each context of a user, however many threads ask at once."""
    from dlbridge_opencl import queues

    for _ in range(20):
        elsewhere = cl.Context(context.devices)
        barrier = threading.Barrier(4)
        got = []

        def ask(_number, elsewhere=elsewhere, barrier=barrier, got=got):
            barrier.wait()
            got.append(queues.elsewhere(0, elsewhere))

        assert in_threads(ask, 4) == []
        assert len({queue.int_ptr for queue in got}) == 1


def test_host_memory_is_waited_for_though_a_ctrl_c_comes(opencl, make, kernels, gate, shared):
    """It is raised when the work is done: before, a kernel could write to memory of others."""
    from dlbridge_opencl import memory, queues

    host = bridge.empty(4096, "uint32").numpy()
    address = host.__array_interface__["data"][0]
    imported = [opencl.import_host(0, address, host.nbytes, False, 0)]
    queue = cl.CommandQueue.from_int_ptr(opencl.current_stream(0), True)
    buffer = cl.MemoryObject.from_int_ptr(imported[0].data, True)
    kernels("late_fill", queue, buffer, 4096, 7, 0, wait_for=gate.closed)
    queue.flush()
    interrupted = []
    finish = queues.finish

    def interrupt_once(device_id, queue):
        if not interrupted:
            interrupted.append(1)
            raise KeyboardInterrupt
        finish(device_id, queue)

    def drop():
        memory.queues.finish = interrupt_once
        try:
            imported.clear()
        finally:
            memory.queues.finish = finish

    gate.holds(drop)
    assert interrupted
    assert (host == 7).all()
    assert isinstance(host, np.ndarray)


VIEW_STORM = """
import sys
import numpy as np
import dlbridge as bridge
from dlbridge.protocol import Span
from dlbridge_opencl import memory, views
from interrupted import interrupted

opencl = bridge.backend("opencl")
t = bridge.to_device(np.arange(3000), "opencl:0", copy=True)
view = bridge.to_device(t, "cpu", like="numpy", copy=False)
del view
data, stream = t.operand().data, opencl.current_stream(0)
span = Span(0, data, 0, 64)
buffer = memory.live[data].buffer
other = opencl.host_view(span, False, stream)
sys.unraisablehook = lambda _: None  # what a handler raises in a finalizer
interrupted(lambda: opencl.host_view(span, False, stream), KeyboardInterrupt, 500)
opencl.host_view(span, False, stream)  # its end does what was cut off
{check}
print("done")
"""


def test_another_view_stays_mapped_though_a_handler_raises(script, shared):
    """PoCL takes a second release of one view for that of another, which has the same address."""
    check = """
assert len(views._resources.all()) == 1, views._resources.all()
assert buffer.map_count == 1, buffer.map_count
del other
assert buffer.map_count == 0, buffer.map_count
assert not views._resources.all()"""
    assert script(VIEW_STORM.replace("{check}", check)) == "done\n"


def test_a_view_that_the_driver_does_not_unmap(script, shared):
    """As of a lost context. pyopencl's destructor would try again, and end the process."""
    check = """
del other
assert not views._resources.all()"""
    said = script(VIEW_STORM.replace("{check}", check), refuse_unmap=-34)
    assert said == "done\n"


def test_a_view_that_is_not_returned_is_not_kept(opencl, make, shared, monkeypatch):
    from dlbridge_opencl import views

    memory = make(4096)
    span, call = Span(0, memory.data, 0, 64), views.call

    def interrupt(*given):
        call(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(views, "call", interrupt)
    with pytest.raises(KeyboardInterrupt):
        opencl.host_view(span, False, memory.stream)
    assert not views._resources.all()
    assert memory.buffer.map_count == 0
