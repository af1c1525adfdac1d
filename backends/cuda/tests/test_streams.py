"""Streams: what may be passed, and who waits for whom."""

import ctypes
import threading
import types

import numpy as np
import pytest
from cuda_support import Gate, gate, memory, own_context, read, slow, stream, write

import dlbridge
from dlbridge.errors import DeviceError

N = 1 << 16
NEW, OLD = b"n" * N, b"o" * N


# What may be passed -----------------------------------------------------------


def test_none_is_the_legacy_stream(kind):  # S2
    assert kind.normalize_stream(0, None) == 1


@pytest.mark.parametrize("value", [-1, 1, 2, 3, 0x7F00DEADBEE0, np.int64(5)])
def test_integers_are_themselves(kind, value):  # S3 S4 S5 S6
    result = kind.normalize_stream(0, value)
    assert result == value
    assert type(result) is int


def test_a_handle_has_64_bits(kind):
    assert kind.normalize_stream(0, 2**64 - 1) == 2**64 - 1
    with pytest.raises(ValueError, match="a handle has 64 bits"):
        kind.normalize_stream(0, 2**64)


def test_zero_is_ambiguous(kind):  # S7
    with pytest.raises(ValueError, match=r"ambiguous.*1 .*2 .*None"):
        kind.normalize_stream(0, 0)


@pytest.mark.parametrize("value", [-2, -100, -(1 << 63)])
def test_below_minus_one(kind, value):  # S8
    with pytest.raises(ValueError, match="only -1"):
        kind.normalize_stream(0, value)


@pytest.mark.parametrize("value", [1.0, "1", b"1", (1,), [], {}, object(), int, np.array([1, 2])])
def test_no_stream(kind, value):  # S9
    with pytest.raises(TypeError, match="stream"):
        kind.normalize_stream(0, value)


@pytest.mark.parametrize("value", [True, False, np.True_])
def test_a_bool_is_no_stream(kind, value):  # S10
    with pytest.raises(TypeError, match="stream"):
        kind.normalize_stream(0, value)


class WithProtocol:
    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return (0, self.handle)


class WithAttribute:
    __cuda_stream__ = (0, 77)


def of_library(module, **members):
    """An object as *module* would have made it, without the library."""
    return type("Stream", (), {"__module__": module, **members})()


@pytest.mark.parametrize(
    ("obj", "handle"),
    [
        (WithProtocol(99), 99),
        (WithProtocol(0), 1),  # an object's 0 is its default stream, not an ambiguity
        (WithAttribute(), 77),
        (of_library("torch.cuda.streams", cuda_stream=55), 55),
        (of_library("torch.cuda.streams", cuda_stream=0), 1),
        (of_library("cupy.cuda.stream", ptr=66), 66),
        (of_library("cupy.cuda.stream", ptr=2), 2),
        (of_library("numba.cuda.cudadrv.driver", __int__=lambda self: 44), 44),
        (of_library("numba.cuda.cudadrv.driver", __int__=lambda self: 0), 1),
        (of_library("pycuda.driver", handle=33), 33),
    ],
)
def test_streams_of_libraries(cuda, obj, handle):
    assert cuda.normalize_stream(0, obj) == handle


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


@pytest.mark.parametrize(
    "obj",
    [
        of_library("torch.cuda.streams"),
        of_library("cupy.cuda.stream", ptr="x"),
        types.SimpleNamespace(__cuda_stream__=lambda: 7),
        types.SimpleNamespace(__cuda_stream__=lambda: (0, "x")),
        of_library("somewhere.else", cuda_stream=5, ptr=5, handle=5),
    ],
)
def test_broken_stream_objects(cuda, obj):
    with pytest.raises(TypeError, match="is not a CUDA stream; pass None"):
        cuda.normalize_stream(0, obj)


# Order ------------------------------------------------------------------------


@pytest.mark.parametrize("on_default", [False, True])
def test_wait_orders_a_slow_stream_before_a_fast_one(cuda, on_default):  # S17
    """The host is not held up, and the reader sees what the slow stream wrote."""
    with (
        stream() as first,
        stream() as second,
        memory(cuda, OLD) as source,
        memory(cuda, N) as copy,
    ):
        producer = 1 if on_default else first
        with gate(producer) as closed:
            cuda.fill(0, source, 0, N, NEW[0], producer)
            cuda.wait(0, second, producer)
            cuda.copy(0, copy, 0, 0, source, 0, N, second)
            assert not closed.is_open  # nobody has waited on the host so far
            closed.open_soon()
            assert read(cuda, copy, N, second) == NEW


@pytest.mark.parametrize("flags", [0, 1])
def test_without_wait_it_would_be_wrong(cuda, flags):
    """The test above can fail: two such streams are not ordered by themselves."""
    with (
        stream(flags=flags) as first,
        stream(flags=flags) as second,
        memory(cuda, OLD) as source,
        memory(cuda, N) as copy,
        gate(first),
    ):
        cuda.fill(0, source, 0, N, NEW[0], first)
        cuda.copy(0, copy, 0, 0, source, 0, N, second)
        assert read(cuda, copy, N, second) == OLD


def test_wait_takes_the_work_so_far_only(cuda):
    """Later work on the producer does not hold the consumer up; the event is used again."""
    with stream() as first, stream() as second:
        cuda.wait(0, second, first)
        with gate(first) as closed:
            cuda.synchronize(0, second)
            assert not closed.is_open


def test_events_are_used_again(fake, cuda):
    with stream() as first, stream() as second:
        cuda.wait(0, second, first)
        before = fake.calls("cuEventCreate")
        for _ in range(100):
            cuda.wait(0, second, first)
            cuda.wait(0, first, second)
        assert fake.calls("cuEventCreate") == before


@pytest.mark.parametrize("same", [1, 0, "stream"])
def test_waiting_for_itself_is_nothing(fake, cuda, same):  # S17
    with stream() as own:
        handle = own if same == "stream" else same
        before = fake.calls("cuStreamWaitEvent"), fake.calls("cuEventRecord")
        cuda.wait(0, handle, handle or 1)
        assert (fake.calls("cuStreamWaitEvent"), fake.calls("cuEventRecord")) == before


def test_zero_is_the_legacy_stream_inside_the_contract(fake, cuda):
    before = fake.calls("cuStreamWaitEvent")
    cuda.wait(0, 0, 1)
    cuda.wait(0, 1, 0)
    assert fake.calls("cuStreamWaitEvent") == before


def test_wait_between_devices(cuda, two_devices):
    with (
        stream(0) as first,
        stream(1) as second,
        memory(cuda, OLD, first) as source,
        memory(cuda, N, second, device_id=1) as copy,
    ):
        slow(first)
        cuda.fill(0, source, 0, N, NEW[0], first)
        cuda.wait(1, second, first)
        cuda.copy(1, copy, 0, 0, source, 0, N, second)
        assert read(cuda, copy, N, second, 1) == NEW
        cuda.synchronize(0, first)


def test_wait_for_a_stream_of_another_context(cuda):
    """Somebody's own context: its event is made there."""
    from dlbridge_cuda.contexts import current
    from dlbridge_cuda.driver import call

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

        def produce():
            slow(2)
            cuda.fill(0, source, 0, N, NEW[0], 2)

        thread = threading.Thread(target=produce)
        thread.start()
        thread.join()
        cuda.wait(0, consumer, 2)
        cuda.copy(0, copy, 0, 0, source, 0, N, consumer)
        assert read(cuda, copy, N, consumer) == NEW


def test_synchronize_the_per_thread_stream_of_another_thread(cuda):
    closed = Gate()
    thread = threading.Thread(target=closed.stand, args=(2,))
    thread.start()
    thread.join()
    closed.open_soon()
    cuda.synchronize(0, 2)
    assert closed.is_open


def test_synchronize_lets_other_threads_run(cuda):
    """The GIL is not held while the host waits, else nobody could open the gate."""
    with stream() as own, gate(own) as closed:
        closed.open_soon()
        cuda.synchronize(0, own)
        assert closed.is_open


@pytest.mark.parametrize("member", ["wait", "synchronize", "fill"])
def test_a_destroyed_stream(fake, cuda, member):
    with stream() as handle:
        pass
    with pytest.raises(DeviceError, match=r"INVALID_HANDLE.*destroyed"):
        {
            "wait": lambda: cuda.wait(0, 1, handle),
            "synchronize": lambda: cuda.synchronize(0, handle),
            "fill": lambda: cuda.fill(0, cuda.allocate(0, 8, 8, 1), 0, 8, 0, handle),
        }[member]()


@pytest.mark.parametrize(
    "function", ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuStreamGetCtx"]
)
def test_a_wait_that_fails_is_said(fake, cuda, function):
    """And the next one works: no event is lost in a bad state."""
    from dlbridge_cuda import streams

    streams._events.clear()
    with stream() as first, stream() as second:
        fake.fail(function, 999)
        with pytest.raises(DeviceError, match=f"{function}: CUDA_ERROR_UNKNOWN"):
            cuda.wait(0, second, first)
        fake.fail(function, 0)
        cuda.wait(0, second, first)
        cuda.synchronize(0, second)


# Through the tensors ------------------------------------------------------------


def test_tensors_order_their_consumers(cuda):  # S2 S6 S17
    """A consumer that passes its stream reads what is still being written on ours."""
    with stream() as ours, stream() as theirs, memory(cuda, N) as copy:
        with dlbridge.use_stream("cuda:0", ours):
            tensor = dlbridge.to_device(np.frombuffer(OLD, "u1"), "cuda:0")
            slow(ours)
            cuda.fill(0, tensor.data_ptr(), 0, N, NEW[0], ours)
            capsule = tensor.__dlpack__(stream=theirs)
        cuda.copy(0, copy, 0, 0, tensor.data_ptr(), 0, N, theirs)
        assert read(cuda, copy, N, theirs) == NEW
        del capsule
        cuda.synchronize(0, ours)


def test_minus_one_makes_no_order(fake, cuda):  # S3
    tensor = dlbridge.zeros(10, device="cuda:0")
    before = {name: fake.calls(name) for name in ORDERING}
    with stream() as ours, dlbridge.use_stream("cuda:0", ours):
        tensor.__dlpack__(stream=-1)
        after = {name: fake.calls(name) for name in ORDERING}
    assert after == before


ORDERING = ["cuEventRecord", "cuStreamWaitEvent", "cuEventSynchronize", "cuCtxSynchronize"]


@pytest.mark.parametrize(
    ("stream_argument", "error"),
    [(0, ValueError), (-2, ValueError), (True, TypeError), ("1", TypeError), (object(), TypeError)],
)
def test_what_dlpack_refuses(cuda, stream_argument, error):  # S7 S8 S9 S10
    with pytest.raises(error, match="stream"):
        dlbridge.zeros(10, device="cuda:0").__dlpack__(stream=stream_argument)


@pytest.mark.parametrize("device", ["cuda_host"])
def test_pinned_memory_has_no_stream(cuda_host, device):  # S1
    tensor = dlbridge.empty(10, device=device)
    tensor.__dlpack__(stream=None)
    tensor.__dlpack__(stream=-1)
    with pytest.raises(ValueError, match="stream"):
        tensor.__dlpack__(stream=1)


@pytest.mark.parametrize("stream_argument", [None, -1, 1, 2])
def test_managed_memory_takes_cudas_streams(cuda_managed, stream_argument):  # S15
    dlbridge.empty(10, device="cuda_managed").__dlpack__(stream=stream_argument)


def test_to_the_cpu_is_synchronised(cuda):  # S12
    with stream() as ours, dlbridge.use_stream("cuda:0", ours):
        tensor = dlbridge.to_device(np.frombuffer(OLD, "u1"), "cuda:0")
        slow(ours)
        cuda.fill(0, tensor.data_ptr(), 0, N, NEW[0], ours)
        host = np.from_dlpack(tensor, device="cpu")
        assert host.tobytes() == NEW
        with pytest.raises(ValueError, match="stream must be None"):
            tensor.__dlpack__(stream=1, dl_device=(1, 0))


def test_a_copy_is_queued_on_our_stream(cuda):  # S13
    with stream() as ours, stream() as theirs, memory(cuda, N) as into:
        with dlbridge.use_stream("cuda:0", ours):
            tensor = dlbridge.to_device(np.frombuffer(NEW, "u1"), "cuda:0")
            slow(ours)
            twin = dlbridge.to_device(tensor, "cuda:0", copy=True)
            capsule = twin.__dlpack__(stream=theirs)
        cuda.copy(0, into, 0, 0, twin.data_ptr(), 0, N, theirs)
        assert read(cuda, into, N, theirs) == NEW
        del capsule


class Producer:
    """Somebody's tensor that notes which stream its consumer passed."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.streams = []

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **keywords):
        self.streams.append(stream)
        return self.tensor.__dlpack__(stream=-1, **keywords)


def test_as_a_consumer_we_pass_our_stream(cuda):  # S14
    producer = Producer(dlbridge.zeros(10, device="cuda:0"))
    dlbridge.from_dlpack(producer)
    with stream() as ours, dlbridge.use_stream("cuda:0", ours):
        dlbridge.from_dlpack(producer)
        assert producer.streams == [1, ours]


def test_use_stream_takes_stream_objects(cuda):
    with stream() as ours, dlbridge.use_stream("cuda:0", WithProtocol(ours)) as handle:
        assert handle == ours
        tensor = dlbridge.zeros((3, 4), device="cuda:0")
        assert tensor.tolist() == [[0.0] * 4] * 3


def test_pageable_sources_may_change_at_once(cuda):
    """What `to_device` has taken is taken, also with a slow stream before it."""
    source = np.frombuffer(bytearray(NEW), "u1")
    with stream() as ours, dlbridge.use_stream("cuda:0", ours):
        slow(ours)
        tensor = dlbridge.to_device(source, "cuda:0")
        ctypes.memset(source.ctypes.data, 0, N)
        assert bytes(tensor.tolist()) == NEW


def test_writing_after_reading(cuda):
    """The write of one stream waits for the read of another, when asked to."""
    with (
        stream() as reader,
        stream() as writer,
        memory(cuda, OLD) as data,
        memory(cuda, N) as copy,
    ):
        slow(reader)
        cuda.copy(0, copy, 0, 0, data, 0, N, reader)
        cuda.wait(0, writer, reader)
        cuda.fill(0, data, 0, N, NEW[0], writer)
        cuda.synchronize(0, writer)
        assert read(cuda, copy, N, reader) == OLD
        write(cuda, data, OLD)


# The events of waits ----------------------------------------------------------


def events_alive(fake):
    return fake.calls("cuEventCreate") - fake.calls("cuEventDestroy")


@pytest.mark.parametrize("function", ["cuEventRecord", "cuStreamWaitEvent", "cuEventSynchronize"])
def test_a_wait_that_fails_keeps_its_event(fake, cuda, function):
    with stream() as one, stream() as two:
        cuda.wait(0, one, two)  # the event is there
        alive = events_alive(fake)
        for _ in range(5):
            fake.fail(function, 999)
            made, arguments = cuda.wait, (one, two)
            if function == "cuEventSynchronize":
                made, arguments = cuda.synchronize, (2,)
            with pytest.raises(DeviceError, match=function):
                made(0, *arguments)
        assert events_alive(fake) == alive


def test_events_of_a_context_that_may_go_are_not_kept(fake, cuda):
    """The next context may get its address; an event of the dead one is none of it."""
    from dlbridge_cuda import streams
    from dlbridge_cuda.driver import call

    kept = set(streams._events)
    own = own_context()
    call("cuCtxPopCurrent")
    with stream(context=own) as foreign, stream() as one:
        alive = events_alive(fake)
        cuda.wait(0, one, foreign)
        assert events_alive(fake) == alive
        assert set(streams._events) - kept <= {int(streams.primary(0))}
    call("cuCtxDestroy", own)
