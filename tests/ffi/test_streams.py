"""The stream that a callee sees on each device. The notes' table is in 2.4."""

from __future__ import annotations

import ctypes
import inspect

import pytest

import dlbridge
from dlbridge import ffi
from dlbridge.ffi import streams as environment
from tests.ffi.producers import DEVICES, STREAMS, DeviceTensor, StreamTensor, TableTensor, streams
from tests.support.interrupted import at_each_step
from tests.support.stream_backend import Streams, installed


@pytest.fixture
def look():
    """``look(*args)`` calls a function with *args*; the streams that it saw."""
    seen = []
    function = ffi.convert_func(lambda *_args: seen.append(streams()))

    def call(*arguments):
        function(*arguments)
        return seen.pop()

    call.function, call.seen = function, seen
    return call


SEEN = {
    # what is passed: what the callee sees
    "one device": (lambda: [TableTensor((2, 0))], {(2, 0): 0x1234}),
    # tvm_ffi: only the first
    "every device": (lambda: map(TableTensor, DEVICES), STREAMS),
    "in a loop": (lambda: [*[1] * 10, *map(TableTensor, DEVICES)], STREAMS),
    "beside others": (
        lambda: [1, TableTensor((10, 0)), "text", TableTensor((2, 0))],
        {(2, 0): 0x1234, (10, 0): 0x9ABC},
    ),
    "the CPU": (lambda: [TableTensor((1, 0))], {}),
    # ignored by tvm_ffi, or id() of an int
    "of a plain producer": (lambda: [StreamTensor((2, 0))], {(2, 0): 0xBEEF}),
    "of two producers": (
        lambda: [TableTensor((2, 1)), StreamTensor((2, 0))],
        {(2, 0): 0xBEEF, (2, 1): 0x5678},
    ),
    "inside containers": (
        lambda: [[1, TableTensor((2, 0))], {"a": ({"b": TableTensor((2, 1))},)}],
        {(2, 0): 0x1234, (2, 1): 0x5678},
    ),
    "that nobody knows": (lambda: [DeviceTensor((2, 1))], {}),
}


def test_a_stream_of_more_than_64_bits_is_refused(look, monkeypatch):
    """C would be given the lower half of it."""
    monkeypatch.setattr(StreamTensor, "__tvm_ffi_env_stream__", lambda _self: (1 << 64) + 0xBEEF)
    with pytest.raises(ValueError, match="stream 0x1000000000000beef is none"):
        look(StreamTensor((2, 0)))
    assert streams() == {}


@pytest.mark.parametrize("name", SEEN)
def test_streams_of_arguments(look, name):
    arguments, expected = SEEN[name]
    assert look(*arguments()) == expected
    assert streams() == {}


def test_plain_producer_beside_a_raw_stream(look):
    with ffi.use_raw_stream("cuda:1", 0x42):
        assert look(DeviceTensor((2, 1))) == {(2, 1): 0x42}


def test_frameworks_stream_goes_before_the_raw_one(look):
    with ffi.use_raw_stream("cuda:0", 0x77):
        assert ffi.get_raw_stream("cuda:0") == 0x77
        assert look() == {(2, 0): 0x77}
        assert look(TableTensor((2, 0))) == {(2, 0): 0x1234}
        assert ffi.get_raw_stream("cuda:0") == 0x77
    assert ffi.get_raw_stream("cuda:0") == 0


def test_restored_after_an_error():
    def fail(*_arguments):
        raise ValueError("no")

    with ffi.use_raw_stream("cuda:0", 0x77):
        with pytest.raises(ValueError, match="no"):
            ffi.convert_func(fail)(TableTensor((2, 0)), TableTensor((10, 0)))
        assert streams() == {(2, 0): 0x77}
    assert streams() == {}


def test_nested_calls(look):
    inner = []

    def outer(_tensor):
        inner.append(streams())
        inner.append(look(TableTensor((2, 1))))
        inner.append(streams())

    ffi.convert_func(outer)(TableTensor((2, 0)))
    assert inner == [{(2, 0): 0x1234}, {(2, 0): 0x1234, (2, 1): 0x5678}, {(2, 0): 0x1234}]


def test_bound_call_asks_for_the_stream_each_time(look, monkeypatch):
    step = look.function.bind(TableTensor((2, 0)))
    step()
    monkeypatch.setitem(STREAMS, (2, 0), 0x4321)
    step()
    assert [look.seen.pop(), look.seen.pop()] == [{(2, 0): 0x4321}, {(2, 0): 0x1234}]
    assert streams() == {}


def test_other_threads_see_none_of_it(look):
    import threading

    seen = []
    with ffi.use_raw_stream("cuda:0", 0x77):
        thread = threading.Thread(target=lambda: seen.append(look()))
        thread.start()
        thread.join()
    assert seen == [{}]


def test_bad_streams():
    with pytest.raises(TypeError, match="stream"), ffi.use_raw_stream("cuda:0", "fast"):
        pass
    far = dlbridge.Device.of(2, 2**31 - 1)
    with (
        pytest.raises(ValueError, match=r"outside the environment.s table of devices"),
        ffi.use_raw_stream(far, 1),
    ):
        pass


@pytest.mark.parametrize("handle", [-1, 1 << 64, (1 << 64) + 5, 1 << 200], ids=hex)
@pytest.mark.parametrize("use", [ffi.use_raw_stream, ffi.use_stream])
def test_handles_that_no_stream_has(use, handle):
    """C would take the low 64 bits, which are another stream."""
    where = "cuda:0" if use is ffi.use_raw_stream else "vpi:0"
    message = r"-?0x[0-9a-f]+ is not a stream's native handle"
    with pytest.raises(ValueError, match=message), use(where, handle):
        pass
    assert ffi.get_raw_stream(where) == 0


@pytest.mark.parametrize("handle", [(1 << 64) - 1, 1 << 63, 5], ids=hex)
def test_handles_are_not_negative(handle):
    with ffi.use_raw_stream("cuda:0", handle):
        assert ffi.get_raw_stream("cuda:0") == handle
    with ffi.use_raw_stream("cuda:0", ctypes.c_void_p(handle)):
        assert ffi.get_raw_stream("cuda:0") == handle


def test_use_stream_without_a_backend(look):
    with ffi.use_stream(dlbridge.Device.of(8, 0), 0x99) as handle:
        assert handle == 0x99
        assert ffi.get_raw_stream(dlbridge.Device.of(8, 0)) == 0x99
    assert ffi.get_raw_stream(dlbridge.Device.of(8, 0)) == 0


@pytest.mark.parametrize(
    "function", [environment.on_streams, environment._on_streams, environment._put_back]
)
def test_an_interruption_of_a_call_leaves_no_stream(look, function):
    tensors = TableTensor((2, 0)), TableTensor((2, 1)), TableTensor((2, 0))
    left = at_each_step([function], lambda: look(*tensors), streams)
    assert len(left) > 3
    assert left == [{}] * len(left)


def test_an_interruption_on_entering_a_block_leaves_no_stream():
    def work():
        with ffi.use_raw_stream("cuda:0", 0x77):
            pass

    left = at_each_step([inspect.unwrap(ffi.use_raw_stream)], work, streams, last_line="finally:")
    assert len(left) > 4
    assert left == [{}] * len(left)


def test_two_streams_of_one_device(look):
    """The callee works on the first one's, after what is on the second's, which goes on behind."""
    with installed("cuda", Streams()) as cuda:
        assert look(TableTensor((2, 0)), StreamTensor((2, 0))) == {(2, 0): 0x1234}
        assert cuda.log == [("wait", 0x1234, 0xBEEF), ("wait", 0xBEEF, 0x1234)]
        on = look(TableTensor((2, 0)), TableTensor((2, 0)), TableTensor((2, 1)))
        assert on == {(2, 0): 0x1234, (2, 1): 0x5678}
        assert len(cuda.log) == 2
