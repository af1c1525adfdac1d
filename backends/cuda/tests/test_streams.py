"""Streams: what may be passed, and who waits for whom."""

import pytest

import dlbridge
from backends.cuda.tests.cuda_support import (
    Gate,
    WithProtocol,
    at,
    call,
    gate,
    memory,
    own_context,
    read,
    slow,
    stream,
)
from dlbridge.protocol import Span
from tests.support.threads import in_threads

N = 1 << 16
NEW, OLD = b"n" * N, b"o" * N


# What may be passed -----------------------------------------------------------


def test_zero_is_ambiguous(kind):  # S7
    with pytest.raises(ValueError, match=r"ambiguous.*1 .*2 .*None"):
        kind.normalize_stream(0, 0)


def test_streams_of_cuda_python(cuda):
    from cuda.bindings.driver import CUstream

    assert cuda.normalize_stream(0, CUstream(0x123450)) == 0x123450
    core = pytest.importorskip("cuda.core")
    device = core.Device(0)
    device.set_current()
    theirs = device.create_stream()
    assert cuda.normalize_stream(0, theirs) == int(theirs.handle)
    assert cuda.normalize_stream(0, core.LEGACY_DEFAULT_STREAM) == 1
    theirs.close()


# Order ------------------------------------------------------------------------


def test_wait_for_a_stream_of_another_context(cuda):
    """Somebody's own context: its event is made there."""
    from backends.cuda.tests.cuda_support import call, current

    own = own_context()
    call("cuCtxPopCurrent")
    with stream(context=own) as foreign, stream() as ours:
        with gate(foreign) as closed:
            cuda.wait(0, ours, foreign)
            closed.open_soon()
            cuda.synchronize(0, ours)
            assert closed.is_open
        with current(own):
            call("cuStreamSynchronize", foreign)
    call("cuCtxDestroy", own)


def test_the_per_thread_stream_of_another_thread(cuda):
    """A tensor made on stream 2 in one thread is waited for in another."""
    with memory(cuda, OLD) as source, memory(cuda, N) as copy, stream() as consumer:

        def produce(_):
            slow(2)
            cuda.fill(Span(0, source, 0, N), NEW[0], 2)

        assert in_threads(produce, 1) == []
        cuda.wait(0, consumer, 2)
        cuda.copy(Span(0, copy, 0, N), Span(0, source, 0, N), consumer)
        assert read(cuda, copy, N, consumer) == NEW


def test_synchronize_the_per_thread_stream_of_another_thread(cuda):
    made = []
    assert in_threads(lambda _: made.append(Gate(2)), 1) == []
    (closed,) = made
    closed.open_soon()
    cuda.synchronize(0, 2)
    assert closed.is_open


def test_the_default_stream_waits_for_the_per_thread_one_before_another_device_reads(two_devices):
    """cuStreamSynchronize of the legacy stream is not said to wait for other default streams."""
    source = dlbridge.full(N, NEW[0], "uint8", "cuda:0")
    tensor = dlbridge.full(N, OLD[0], "uint8", "cuda:0")
    slow(2)
    with dlbridge.use_stream("cuda:0", 2):
        dlbridge.copy_(tensor, source)
    moved = dlbridge.to_device(tensor, "cuda:1")
    assert bytes(dlbridge.to_device(moved, "cpu").numpy()) == NEW


# Through the tensors ------------------------------------------------------------


def test_use_stream_takes_stream_objects(cuda):
    with stream() as ours, dlbridge.use_stream("cuda:0", WithProtocol(ours)) as handle:
        assert handle == ours
        tensor = dlbridge.zeros((3, 4), device="cuda:0")
        assert tensor.tolist() == [[0.0] * 4] * 3


# The events of waits ----------------------------------------------------------


def events_alive(fake):
    return fake.calls("cuEventCreate") - fake.calls("cuEventDestroy")


def test_events_of_a_context_that_may_go_are_not_kept(fake, cuda):
    """The next context may get its address; an event of the dead one is none of it."""
    from dlbridge_cuda.gpu import events

    from backends.cuda.tests.cuda_support import call, primary

    kept = set(events._unused)
    own = own_context()
    call("cuCtxPopCurrent")
    with stream(context=own) as foreign, stream() as one:
        alive = events_alive(fake)
        cuda.wait(0, one, foreign)
        assert events_alive(fake) == alive
        assert set(events._unused) - kept <= {primary(0)}
    call("cuCtxDestroy", own)


# The driver itself ------------------------------------------------------------


def test_a_wait_keeps_the_record_that_it_found(cuda):
    """CUDA driver API, cuStreamWaitEvent: the most recent record at the time of this call."""
    with stream() as first, stream() as second, stream() as waiting, at(0):
        event, before = call("cuEventCreate", 2), call("cuEventCreate", 2)
        with gate(first) as work:
            call("cuEventRecord", before, first)
            call("cuEventRecord", event, first)
            call("cuStreamWaitEvent", waiting, event, 0)
            call("cuEventRecord", event, second)
            call("cuStreamSynchronize", second)
            call("cuEventSynchronize", event)  # the later record
            # Time in which a wait that looks at that would end. No slow work: a real driver has
            # one thread for the host functions of all streams, and the gate holds that up.
            assert all(is_busy(waiting) for _ in range(10_000))
            work.open()
            call("cuStreamSynchronize", waiting)
            call("cuEventQuery", before)  # raises if it is not done


def is_busy(handle):
    """Whether the stream has work that is not done."""
    from cuda.bindings import driver as cu

    return cu.cuStreamQuery(handle)[0] == cu.CUresult.CUDA_ERROR_NOT_READY
