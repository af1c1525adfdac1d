"""Python functions called by C: arguments, results, threads."""

from __future__ import annotations

import sys
import threading

import pytest

from dlbridge import ffi
from dlbridge.abi import ffi as cffi
from dlbridge.ffi._lib import C
from tests.ffi.producers import c_function


def raw_call(function, *words):
    """Call with raw ``(tag, payload)`` arguments; the result's two words."""
    frame = cffi.new("int64_t[]", [0, 0, *(word for pair in words for word in pair)])
    result = cffi.cast("TVMFFIAny *", frame)
    failed = C.TVMFFIFunctionCall(function._pointer, result + 1, len(words), result)
    assert not failed
    return frame[0], frame[1]


def test_every_form_of_text_is_decoded(echo):  # 1.3: types 8 and 9 as arguments
    seen = []
    f = ffi.convert_func(lambda *args: seen.extend(args))
    text = cffi.new("char[]", b"a raw C string")
    array = cffi.new("TVMFFIByteArray *", (text, 5))
    address = lambda pointer: int(cffi.cast("intptr_t", pointer))  # noqa: E731
    raw_call(f, (8, address(text)), (9, address(array)), (11 | 3 << 32, 0x636261))
    assert seen == ["a raw C string", b"a raw", "abc"]


def test_callee_that_returns_borrowed_text():
    # 1.3: nothing stops C from returning type 8; it is copied at once.
    text = cffi.new("char[]", b"borrowed text")

    @c_function
    def raw(_self, _arguments, _count, result):
        result.type_index = 8
        result.v_c_str = text
        return 0

    assert raw() == "borrowed text"


def test_moved_object_arrives_as_the_only_reference(testing):
    seen = []
    use_count = testing("object_use_count")

    def look(x):
        seen.append((x.message, use_count(x)))

    thing = ffi.Error("ValueError", "an object to move")
    ffi.convert_func(look)(thing._move())
    assert seen == [("an object to move", 1)]


def test_foreign_threads_call_back(foreign_call):  # 4.7
    seen = []
    function = ffi.convert_func(lambda: seen.append(threading.get_ident()))
    foreign_call(function, threads=4, turns=200)
    assert len(seen) == 800
    assert len(set(seen)) == 4


@pytest.mark.parametrize(("code", "kind"), [("_enter", "callback"), ("_call_mlir", "mlir symbol")])
def test_a_signal_at_the_first_instruction(testing, code, kind):
    """Ctrl-C before the entry point can catch it: it crosses C all the same."""
    make = ffi.Function.__from_mlir_packed_safe_call__
    symbol = testing("get_mlir_add_one_c_symbol")()
    function = ffi.convert_func(lambda x: x + 1) if kind == "callback" else make(symbol)

    def interrupt(frame, _event, _argument):
        if frame.f_code.co_name == code:
            sys.settrace(None)
            raise KeyboardInterrupt("at the first instruction")

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt, match="at the first instruction"):
            function(41)
    finally:
        sys.settrace(before)
    assert function(41) == 42
