"""Answers by callbacks, which need no device."""

import gc
import sys
from functools import partial

import cffi
import pytest
from dlbridge_webgpu.devices import Callback

FFI = cffi.FFI()
SHORT_CALL = partial(FFI.callback, "void (*)(int, void *)")


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
