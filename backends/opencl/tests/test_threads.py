"""Two threads and one buffer, a Ctrl-C at every moment, finalizers while a lock is held."""

from __future__ import annotations

import threading

import numpy as np
import pyopencl as cl

import dlbridge as bridge
from dlbridge.protocol import Span
from tests.support.threads import in_threads


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
