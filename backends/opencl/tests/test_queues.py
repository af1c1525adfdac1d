"""Queues: whose they are, and the order between them."""

from __future__ import annotations

import sys

import pyopencl as cl
import pytest

from dlbridge.protocol import Span
from tests.support.threads import in_threads

N = 4096


@pytest.fixture
def two(opencl, context):
    """Two queues of the user's, with their streams."""
    queues = [cl.CommandQueue(context, context.devices[0]) for _ in range(2)]
    return [(queue, opencl.normalize_stream(0, queue)) for queue in queues]


def test_each_thread_has_a_queue_of_its_own(opencl):
    streams = [opencl.current_stream(0)]
    assert in_threads(lambda _: streams.append(opencl.current_stream(0)), 1) == []
    assert streams[0] != streams[1]
    assert opencl.current_stream(0) == streams[0]
    assert opencl.normalize_stream(0, None) == streams[0]
    assert opencl.normalize_stream(0, 0) == streams[0]


def test_queues_of_ended_threads_are_used_again(opencl):
    streams = set()
    for _ in range(20):
        assert in_threads(lambda _: streams.add(opencl.current_stream(0)), 1) == []
    assert len(streams) == 1


def test_streams_are_queues_or_their_handles(opencl, two):
    queue, stream = two[0]
    assert stream == queue.int_ptr
    assert opencl.normalize_stream(0, queue.int_ptr) == stream


@pytest.mark.parametrize("stream", [1, 2, 4095, -2, 1 << 62, 1 << 70, 0x7FFF_0000_0008])
def test_integers_that_are_no_queue(opencl, stream):
    with pytest.raises(ValueError, match=r"not a (cl_command_queue|valid OpenCL stream)"):
        opencl.normalize_stream(0, stream)


def test_queues_out_of_order_are_refused(opencl, context):
    properties = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    queue = cl.CommandQueue(context, context.devices[0], properties=properties)
    with pytest.raises(ValueError, match="out of order"):
        opencl.normalize_stream(0, queue)


def test_users_queues_are_not_kept_for_ever(opencl, context):
    queues = [cl.CommandQueue(context, context.devices[0]) for _ in range(100)]
    for queue in queues:
        opencl.normalize_stream(0, queue)
    assert sys.getrefcount(queues[0]) < sys.getrefcount(queues[-1])


def test_wait_does_not_block_the_host(opencl, make, kernels, gate, two):
    a = make(N * 4)
    (one, first), (_, second) = two
    event = kernels("late_fill", one, a.buffer, N, 7, 0, wait_for=gate.closed)
    opencl.wait(0, second, first)
    assert event.command_execution_status != cl.command_execution_status.COMPLETE
    gate.open()
    assert (a.read("u4", second) == 7).all()


def test_wait_between_contexts_blocks_until_done(opencl, make, kernels, turns, context):
    elsewhere = cl.Context(context.devices)
    queue = cl.CommandQueue(elsewhere, elsewhere.devices[0])
    a = make(N * 4)
    own = cl.CommandQueue.from_int_ptr(opencl.current_stream(0), True)
    event = kernels("late_fill", own, a.buffer, N, 7, 10 * turns)
    opencl.wait(0, opencl.normalize_stream(0, queue), own.int_ptr)
    assert event.command_execution_status == cl.command_execution_status.COMPLETE


@pytest.mark.parametrize("kind", ["platform", "device", "context"])
def test_other_objects_are_no_queues_and_no_memory(opencl, context, kind):
    """Refused before the driver is asked, which ends the process on some of them."""
    device = context.devices[0]
    handle = {"platform": device.platform, "device": device, "context": context}[kind].int_ptr
    with pytest.raises(ValueError, match="not a cl_command_queue"):
        opencl.normalize_stream(0, handle)
    with pytest.raises(BufferError, match="not a cl_mem of the drivers"):
        opencl.copy_from_host(Span(0, handle, 0, 1), memoryview(b"x"), 0)
    with pytest.raises(BufferError, match="neither a cl_mem nor"):
        opencl.import_data(0, handle, "somebody")


def test_what_says_no_device_is_no_queue(opencl):
    """By a simulated queue: PoCL says it of a context taken for a queue, and may crash afterwards."""
    from dlbridge_opencl import queues

    class NoQueue:
        device = None
        int_ptr = 0x1000

    with pytest.raises(ValueError, match="not a cl_command_queue"):
        queues._keep(0, NoQueue())
