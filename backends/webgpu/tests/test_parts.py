"""The parts that need no device: answers by callbacks, the table of buffers, arrays in buffers."""

import gc
import sys
from functools import partial

import cffi
import pytest
from dlbridge_webgpu import WebGPUArray
from dlbridge_webgpu.devices import Callback
from dlbridge_webgpu.handles import Handles

from dlbridge.errors import ExchangeError
from dlbridge.protocol import NativeArray

FFI = cffi.FFI()
SHORT_CALL = partial(FFI.callback, "void (*)(int, void *)")


def test_the_arguments_of_a_callback_are_the_answer():
    callback, polls = Callback(SHORT_CALL), []

    def poll():
        polls.append(callback)
        if len(polls) == 3:
            callback.pointer(7, FFI.NULL)

    assert callback.wait(poll) == (7, FFI.NULL)
    assert len(polls) == 3


def test_a_pointer_that_nobody_waits_for_lives_until_it_was_called():
    abandoned = Callback(SHORT_CALL)
    address = int(FFI.cast("intptr_t", abandoned.pointer))
    del abandoned
    gc.collect()
    before = len(Callback._uncalled)
    FFI.cast("void (*)(int, void *)", address)(1, FFI.NULL)
    second = Callback(SHORT_CALL)
    second.wait(lambda: second.pointer(2, FFI.NULL))
    assert len(Callback._uncalled) == before - 1


def test_an_exception_ends_the_wait_only():
    def interrupted():
        raise KeyboardInterrupt

    callback = Callback(SHORT_CALL)
    with pytest.raises(KeyboardInterrupt):
        callback.wait(interrupted)
    assert callback.wait(lambda: callback.pointer(3, FFI.NULL))[0] == 3


def test_no_python_code_runs_in_the_call():
    """There a signal handler could raise, and C could not hand the exception on."""
    callback, entered = Callback(SHORT_CALL), []
    sys.setprofile(lambda frame, event, _: event == "call" and entered.append(frame))
    try:
        callback.pointer(1, FFI.NULL)
    finally:
        sys.setprofile(None)
    assert entered == []


# handles -----------------------------------------------------------------------------


class Buffer:
    def __init__(self, device_id, nbytes):
        self.device_id, self.nbytes = device_id, nbytes


@pytest.fixture
def handles():
    return Handles("sim", lambda buffer: (buffer.device_id, buffer.nbytes))


def test_an_object_that_is_owned_lives_as_long_as_its_owner(handles):
    owner = handles.own(7, 16, 3, Buffer(1, 16))
    gc.collect()
    assert (owner.data, owner.nbytes, owner.offset, owner.stream) == (7, 16, 0, 3)
    assert (handles.find(7)[0], len(handles)) == (1, 1)
    del owner
    assert len(handles) == 0
    with pytest.raises(ExchangeError, match="0x7"):
        handles.find(7)


def test_an_owned_object_that_somebody_else_has_outlives_its_owner(handles):
    buffer = Buffer(0, 16)
    owner = handles.own(9, 16, 0, buffer)
    del owner
    assert handles.find(9) == (0, buffer)


def test_an_array_in_a_buffer_there_and_back():
    """Offset, type, shape, strides and read-only stay; the array itself owns the memory then."""
    owner = object()
    native = NativeArray(1, 7, 8, "float16", (2, 3), (12, 2), True, owner)
    array = WebGPUArray("a buffer", "float16", (2, 3), 8, (12, 2), True, owner)
    assert array.described(1, 7) == native._replace(owner=array)
    plain = WebGPUArray("a buffer", "uint8", (2,))
    assert plain.described(0, 9) == NativeArray(0, 9, 0, "uint8", (2,), None, False, plain)


def test_a_buffer_that_may_not_be_written():
    """Read-only by the array or by the buffer."""
    array = WebGPUArray("a buffer", "uint8", (2,))
    assert not array.described(0, 9).readonly
    assert array.described(0, 9, readonly=True).readonly
    assert WebGPUArray("a buffer", "uint8", (2,), readonly=True).described(0, 9).readonly
