"""Streams: what may be passed, and who waits for whom."""

import threading

import numpy as np
import pytest
from rocm_support import gate, memory, read, stream

import dlbridge
from dlbridge.errors import DeviceError

N = 1 << 16
NEW, OLD = b"n" * N, b"o" * N


# What may be passed -----------------------------------------------------------


@pytest.mark.parametrize("value", [None, 0])
def test_the_default_stream(kind, value):  # S11
    assert kind.normalize_stream(0, value) == 0
    assert kind.current_stream(0) == 0


@pytest.mark.parametrize("value", [-1, 3, 0x7F00DEADBEE0, np.int64(5)])
def test_integers_are_themselves(kind, value):  # S3 S11
    result = kind.normalize_stream(0, value)
    assert result == value
    assert type(result) is int


@pytest.mark.parametrize("value", [1, 2])
def test_cudas_default_streams_are_forbidden(kind, value):  # S11
    with pytest.raises(ValueError, match=rf"stream={value} .*forbidden for ROCm: pass 0 or None"):
        kind.normalize_stream(0, value)


@pytest.mark.parametrize("value", [-2, -100, -(1 << 63)])
def test_below_minus_one(kind, value):  # S8
    with pytest.raises(ValueError, match="only -1"):
        kind.normalize_stream(0, value)


@pytest.mark.parametrize("value", [1.0, "1", b"1", (1,), [], {}, object(), int, np.array([1, 2])])
def test_no_stream(kind, value):  # S9
    with pytest.raises(TypeError, match="is not a HIP stream; pass None"):
        kind.normalize_stream(0, value)


@pytest.mark.parametrize("value", [True, False, np.True_])
def test_a_bool_is_no_stream(kind, value):  # S10
    with pytest.raises(TypeError, match="stream"):
        kind.normalize_stream(0, value)


def of_library(module, name="Stream", **members):
    """An object as *module* would have made it, without the library."""
    return type(name, (), {"__module__": module, **members})()


@pytest.mark.parametrize(
    ("obj", "handle"),
    [
        (of_library("torch.cuda.streams", cuda_stream=55), 55),
        (of_library("torch.cuda.streams", cuda_stream=0), 0),
        (of_library("cupy.cuda.stream", ptr=66), 66),
        (of_library("cupy.cuda.stream", ptr=0), 0),
        (of_library("hip.hip", "ihipStream_t", __int__=lambda self: 44), 44),
        (of_library("rocm.bindings.hip", "ihipStream_t", __int__=lambda self: 45), 45),
    ],
)
def test_streams_of_libraries(rocm, obj, handle):
    assert rocm.normalize_stream(0, obj) == handle


def test_the_per_thread_stream_of_a_library_is_forbidden_too(rocm):
    with pytest.raises(ValueError, match="stream=2"):
        rocm.normalize_stream(0, of_library("cupy.cuda.stream", ptr=2))


@pytest.mark.parametrize(
    "obj",
    [
        of_library("torch.cuda.streams"),
        of_library("cupy.cuda.stream", ptr="x"),
        of_library("hip.hip", "ihipEvent_t", __int__=lambda self: 44),
        of_library("somewhere.else", cuda_stream=5, ptr=5, __cuda_stream__=(0, 5)),
    ],
)
def test_what_is_no_stream_of_theirs(rocm, obj):
    with pytest.raises(TypeError, match="is not a HIP stream; pass None"):
        rocm.normalize_stream(0, obj)


# Order ------------------------------------------------------------------------


@pytest.mark.parametrize("on_default", [False, True])
def test_wait_orders_a_slow_stream_before_a_fast_one(rocm, on_default):  # S17
    """The host is not held up: it comes to open the gate."""
    with (
        stream() as first,
        stream() as second,
        memory(rocm, OLD) as source,
        memory(rocm, N) as copy,
    ):
        producer = 0 if on_default else first
        with gate(producer) as closed:
            rocm.fill(0, source, 0, N, NEW[0], producer)
            rocm.wait(0, second, producer)
            rocm.copy(0, copy, 0, 0, source, 0, N, second)
            closed.open_soon()
            assert read(rocm, copy, N, second) == NEW


@pytest.mark.parametrize("flags", [0, 1])
def test_without_wait_it_would_be_wrong(rocm, flags):
    """The test above can fail: two such streams are not ordered by themselves."""
    with (
        stream(flags=flags) as first,
        stream() as second,
        memory(rocm, OLD) as source,
        memory(rocm, N) as copy,
        gate(first),
    ):
        rocm.fill(0, source, 0, N, NEW[0], first)
        rocm.copy(0, copy, 0, 0, source, 0, N, second)
        assert read(rocm, copy, N, second) == OLD


def test_wait_takes_the_work_so_far_only(rocm):
    """Later work on the producer does not hold the consumer up; the event is used again."""
    with stream() as first, stream() as second:
        rocm.wait(0, second, first)
        with gate(first) as closed:
            rocm.synchronize(0, second)
            assert not closed.is_open


def test_events_are_used_again(fake, rocm):
    with stream() as first, stream() as second:
        rocm.wait(0, second, first)
        before = fake.calls("hipEventCreateWithFlags")
        for _ in range(100):
            rocm.wait(0, second, first)
            rocm.wait(0, first, second)
        assert fake.calls("hipEventCreateWithFlags") == before


def test_waiting_for_itself_is_nothing(fake, rocm):  # S17
    with stream() as own:
        before = fake.calls("hipStreamWaitEvent"), fake.calls("hipEventRecord")
        rocm.wait(0, own, own)
        rocm.wait(0, 0, 0)
        assert (fake.calls("hipStreamWaitEvent"), fake.calls("hipEventRecord")) == before


@pytest.mark.parametrize("version", [(5, 2), (6, 1), (7, 0)])
def test_wait_between_devices(fake, rocm, two_devices, version):
    """An event belongs to its stream's device. HIP 5.2 cannot tell which: then the host waits."""
    fake.version(*version)
    with (
        stream(0) as first,
        stream(1) as second,
        memory(rocm, OLD, first) as source,
        memory(rocm, N, second, device_id=1) as copy,
        gate(first) as closed,
    ):
        rocm.fill(0, source, 0, N, NEW[0], first)
        closed.open_soon()
        rocm.wait(1, second, first)
        assert closed.is_open == (version < (5, 6))
        rocm.copy(1, copy, 0, 0, source, 0, N, second)
        assert read(rocm, copy, N, second, 1) == NEW


def test_synchronize_waits(rocm):
    with stream() as own, gate(own) as closed:
        closed.open_soon()
        rocm.synchronize(0, own)
        assert closed.is_open


def test_synchronize_lets_other_threads_run(rocm):
    """The GIL is not held while the host waits: another thread opens the gate."""
    with stream() as own, gate(own) as closed:
        thread = threading.Thread(target=closed.open)
        thread.start()
        rocm.synchronize(0, own)
        thread.join()


@pytest.mark.parametrize("version", [(5, 2), (7, 0)])
@pytest.mark.parametrize("member", ["wait", "wait on", "synchronize"])
def test_a_destroyed_stream(fake, rocm, member, version):
    """Said, where the runtime can tell; it is asked before the handle is used."""
    fake.version(*version)
    with stream() as gone:
        pass
    with pytest.raises(DeviceError, match=f"stream {gone:#x} was destroyed"):
        {
            "wait": lambda: rocm.wait(0, gone, 0),
            "wait on": lambda: rocm.wait(0, 0, gone),
            "synchronize": lambda: rocm.synchronize(0, gone),
        }[member]()


@pytest.mark.parametrize(
    "function", ["hipEventCreateWithFlags", "hipEventRecord", "hipStreamWaitEvent"]
)
def test_a_wait_that_fails_leaves_nothing(fake, rocm, function):
    from dlbridge_rocm import streams

    streams._events.clear()
    with stream() as first, stream() as second:
        fake.fail(function, 999)
        with pytest.raises(DeviceError, match=f"{function}: hipErrorUnknown"):
            rocm.wait(0, second, first)
        kept = len(streams._events[0])
        assert kept == (function != "hipEventCreateWithFlags")
        fake.fail(function, 0)
        made = fake.calls("hipEventCreateWithFlags")
        rocm.wait(0, second, first)
        rocm.synchronize(0, second)
        # The event of the wait that failed is there again, if it came to one.
        assert fake.calls("hipEventCreateWithFlags") - made == (len(streams._events[0]) - kept)


@pytest.mark.parametrize("stream_handle", [1 << 64, 1 << 80])
def test_handles_have_64_bits(kind, stream_handle):
    with pytest.raises(ValueError, match="a handle has 64 bits"):
        kind.normalize_stream(0, stream_handle)


def test_a_stream_is_asked_for_before_each_use(fake, rocm):
    """Newer runtimes read the handle of a destroyed one unchecked elsewhere."""
    with memory(rocm, N) as data:
        with stream() as gone:
            pass
        host = bytearray(N)
        uses = {
            "allocate": lambda: rocm.allocate(0, N, 256, gone),
            "copy": lambda: rocm.copy(0, data, 0, 0, data, 0, 1, gone),
            "fill": lambda: rocm.fill(0, data, 0, N, 0, gone),
            "to the host": lambda: rocm.copy_to_host(0, data, 0, memoryview(host), gone),
            "from the host": lambda: rocm.copy_from_host(0, data, 0, memoryview(host), gone),
            "synchronize": lambda: rocm.synchronize(0, gone),
            "wait": lambda: rocm.wait(0, gone, 0),
        }
        for name, use in uses.items():
            asked = fake.calls("hipStreamGetDevice")
            others = [fake.calls(f) for f in HANDLED]
            with pytest.raises(DeviceError, match="was destroyed"):
                use()
            assert fake.calls("hipStreamGetDevice") == asked + 1, name
            assert [fake.calls(f) for f in HANDLED] == others, name


HANDLED = ["hipStreamIsCapturing", "hipMallocAsync", "hipMemcpyAsync", "hipMemsetAsync"]


# Through the tensors ------------------------------------------------------------


def test_tensors_order_their_consumers(rocm):  # S11 S17
    """A consumer that passes its stream reads what is still being written on ours."""
    with stream() as ours, stream() as theirs, memory(rocm, N) as copy:
        with dlbridge.use_stream("rocm:0", ours):
            tensor = dlbridge.to_device(np.frombuffer(OLD, "u1"), "rocm:0")
            with gate(ours) as closed:
                rocm.fill(0, tensor.data_ptr(), 0, N, NEW[0], ours)
                capsule = tensor.__dlpack__(stream=theirs)
                rocm.copy(0, copy, 0, 0, tensor.data_ptr(), 0, N, theirs)
                closed.open_soon()
                assert read(rocm, copy, N, theirs) == NEW
        del capsule


def test_minus_one_makes_no_order(fake, rocm):  # S3
    tensor = dlbridge.zeros(10, device="rocm:0")
    before = {name: fake.calls(name) for name in ORDERING}
    tensor.__dlpack__(stream=-1)
    assert {name: fake.calls(name) for name in ORDERING} == before


ORDERING = ["hipEventRecord", "hipStreamWaitEvent", "hipStreamSynchronize", "hipDeviceSynchronize"]


@pytest.mark.parametrize(
    ("stream_argument", "error"),
    [(1, ValueError), (2, ValueError), (-2, ValueError), (True, TypeError), ("1", TypeError)],
)
def test_what_dlpack_refuses(rocm, stream_argument, error):  # S8 S9 S10 S11
    with pytest.raises(error, match="stream"):
        dlbridge.zeros(10, device="rocm:0").__dlpack__(stream=stream_argument)


@pytest.mark.parametrize("stream_argument", [None, 0, -1])
def test_what_dlpack_takes(rocm, stream_argument):  # S11
    dlbridge.zeros(10, device="rocm:0").__dlpack__(stream=stream_argument)


def test_pinned_memory_has_no_stream(rocm_host):  # S1
    tensor = dlbridge.empty(10, device="rocm_host")
    tensor.__dlpack__(stream=None)
    tensor.__dlpack__(stream=-1)
    with pytest.raises(ValueError, match="stream"):
        tensor.__dlpack__(stream=3)


def test_to_the_cpu_is_synchronised(rocm):  # S12
    with stream() as ours, dlbridge.use_stream("rocm:0", ours):
        tensor = dlbridge.to_device(np.frombuffer(OLD, "u1"), "rocm:0")
        with gate(ours) as closed:
            rocm.fill(0, tensor.data_ptr(), 0, N, NEW[0], ours)
            closed.open_soon()
            assert np.from_dlpack(tensor, device="cpu").tobytes() == NEW
        with pytest.raises(ValueError, match="stream must be None"):
            tensor.__dlpack__(stream=3, dl_device=(1, 0))


class TorchTensor:
    """A tensor as torch for ROCm makes it: it says "cuda", and exports kDLROCM.

    Its ``__dlpack__`` refuses what torch refuses there: 1 and 2.
    """

    device = "cuda:0"

    def __init__(self, tensor):
        self.tensor = tensor
        self.streams = []

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **keywords):
        assert stream not in (1, 2)
        self.streams.append(stream)
        return self.tensor.__dlpack__(stream=-1, **keywords)


def test_a_torch_tensor_that_calls_itself_cuda(rocm):  # S14
    """It is ROCm memory for us, and gets our stream's handle: 0 for the default one."""
    theirs = TorchTensor(dlbridge.to_device(np.arange(5), "rocm:0"))
    tensor = dlbridge.from_dlpack(theirs)
    assert str(tensor.device) == "rocm:0"
    assert tensor.__dlpack_device__() == (10, 0)
    assert tensor.tolist() == [0, 1, 2, 3, 4]
    with stream() as ours, dlbridge.use_stream("rocm:0", ours):
        dlbridge.from_dlpack(theirs)
    assert theirs.streams[0] in (None, 0)
    assert theirs.streams[-1] == ours
