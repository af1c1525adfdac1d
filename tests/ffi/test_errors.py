"""Errors both ways: kinds, backtraces, causes, the exception itself, Ctrl-C, exit."""

from __future__ import annotations

import gc
import pickle
import traceback
import weakref

import pytest

from dlbridge import ffi
from dlbridge.abi import ffi as cffi
from dlbridge.ffi._lib import C
from dlbridge.ffi.errors import take_raised
from tests.ffi.producers import c_function

KINDS = [
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    IndexError,
    AssertionError,
    MemoryError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    OSError,
    StopIteration,
]


# --- From C -----------------------------------------------------------------------


@pytest.mark.parametrize("cls", KINDS)
def test_kind_becomes_class(testing, cls):  # 2.6
    with pytest.raises(cls) as caught:
        testing("test_raise_error")(cls.__name__, "what happened")
    assert type(caught.value) is cls
    assert caught.value.args == ("what happened",)


def test_unknown_kind_is_not_lost(testing):
    with pytest.raises(RuntimeError, match="NewKind: what happened") as caught:
        testing("test_raise_error")("NewKind", "what happened")
    assert caught.value.__tvm_ffi_error__.kind == "NewKind"


def test_registered_kind(testing):
    @ffi.register_error
    class DlbridgeTestError(Exception):
        pass

    @ffi.register_error("OtherName")
    class NamedError(Exception):
        pass

    with pytest.raises(DlbridgeTestError, match="registered"):
        testing("test_raise_error")("DlbridgeTestError", "registered")
    with pytest.raises(NamedError):
        testing("test_raise_error")("OtherName", "by name")


@pytest.mark.parametrize("line", ["4294967296", "2147483648", "9" * 5000])
def test_a_large_line_number_does_not_replace_the_error(line):
    error = ffi.Error("ValueError", "the message", f'  File "k.cc", line {line}, in f\n')
    found = error.py_error()
    assert type(found) is ValueError
    assert str(found) == "the message"
    assert found.__traceback__.tb_lineno == 2**31 - 1


def test_backtrace_of_cpp_is_in_the_traceback(testing):
    with pytest.raises(ValueError, match="no") as caught:
        testing("test_raise_error")("ValueError", "no")
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[0].name == "test_backtrace_of_cpp_is_in_the_traceback"
    assert "TestRaiseError" in frames[-1].name
    assert frames[-1].filename.endswith("testing.cc")
    assert frames[-1].lineno > 1
    assert not [frame for frame in frames if "cffistatic" in frame.name]


def test_traceback_keeps_no_locals_alive(testing):
    # tvm_ffi needs care for this (its pull request 327): a frame's f_back.
    class Big:
        pass

    def scope():
        big = Big()
        alive = weakref.ref(big)
        try:
            testing("test_raise_error")("ValueError", "no")
        except ValueError as exc:
            caught = exc.with_traceback(exc.__traceback__.tb_next.tb_next)  # C++'s frames
            return alive, caught
        return None

    gc.disable()
    try:
        alive, caught = scope()
        assert alive() is None
        assert caught.__traceback__ is not None
    finally:
        gc.enable()


@pytest.mark.parametrize("places", [0, 1, 2])
def test_a_callback_that_recurses_too_deep_says_so(places):
    """Wherever the limit is met: in the callback, in the call, or while the error is described."""

    def deeper(*arguments):
        return function(*arguments)

    def from_level(level):
        return from_level(level - 1) if level else function(*range(places))

    function = ffi.convert_func(deeper)
    for level in range(10):
        with pytest.raises(RecursionError):
            from_level(level)


def test_failure_without_an_error():  # 1.1 ErrorMoveFromRaised: SIGSEGV in tvm_ffi
    @c_function
    def silent(_self, _arguments, _count, _result):
        return -1

    take_raised()
    for call in (silent, silent.bind(), lambda: silent(*range(10))):
        with pytest.raises(RuntimeError, match="failed without saying why"):
            call()


def test_causes_of_an_error_that_C_made():
    inner = ffi.Error("KeyError", "inner", '  File "a.cc", line 3, in Inner\n')
    out = cffi.new("void **")
    kind, message, backtrace = (
        cffi.new("TVMFFIByteArray *", (text, len(text)))
        for text in map(cffi.from_buffer, (b"OSError", b"outer", b""))
    )
    handle = cffi.cast("void *", int(inner._handle))
    assert not C.TVMFFIErrorCreateWithCauseAndExtraContext(
        kind, message, backtrace, handle, cffi.NULL, out
    )
    C.TVMFFIErrorSetRaised(out[0])
    C.TVMFFIObjectDecRef(out[0])
    from dlbridge.ffi.errors import raised

    exception = raised()
    assert (type(exception), exception.args) == (OSError, ("outer",))
    assert (type(exception.__cause__), exception.__cause__.args) == (KeyError, ("inner",))
    assert traceback.extract_tb(exception.__cause__.__traceback__)[-1].name == "Inner"


# --- From Python, through C, to Python ---------------------------------------------


class CustomError(Exception):
    """Not known to C."""

    def __init__(self, code, detail):
        super().__init__(code, detail)
        self.code = code


def test_the_exception_itself_comes_home(apply):  # 2.6: class, notes, errno, cause are lost
    raised = []

    def fail():
        exception = CustomError(7, {"detail": 1})
        exception.__notes__ = ["a note"]
        raised.append(exception)
        raise exception from KeyError("cause")

    with pytest.raises(CustomError) as caught:
        apply(fail)
    assert caught.value is raised[0]
    assert caught.value.code == 7
    assert caught.value.__notes__ == ["a note"]
    assert isinstance(caught.value.__cause__, KeyError)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[0] == "test_the_exception_itself_comes_home"
    assert names[-1] == "fail"


@pytest.mark.parametrize("cls", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_base_exceptions_stay_what_they_are(apply, cls):  # 2.6: RuntimeError in tvm_ffi
    def fail():
        raise cls(3)

    with pytest.raises(cls) as caught:
        apply(apply, fail)
    assert caught.value.args == (3,)


def test_exceptions_are_freed(apply):
    class Carried(Exception):
        pass

    def fail():
        raise Carried

    gc.disable()
    try:
        exception = None
        try:
            apply(fail)
        except Carried as exc:
            exception = weakref.ref(exc)
        assert exception() is None
    finally:
        gc.enable()


class NoText(Exception):
    def __str__(self):
        raise ValueError("no text")


class OddError(Exception):
    __tvm_ffi_error__ = 5


def chain_of_200():
    exception = ValueError("0")
    for i in range(1, 200):
        later = ValueError(str(i))
        later.__cause__ = exception
        exception = later
    return exception


def cycle_of_two():
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    return first


@pytest.mark.parametrize(
    "raised",
    [NoText(), OddError("odd"), ValueError("half \ud800"), chain_of_200(), cycle_of_two()],
    ids=["no text", "odd", "half a character", "200 causes", "causes in a cycle"],
)
def test_exception_that_cannot_be_described(apply, raised):
    """It comes home itself all the same."""

    def fail():
        raise raised

    with pytest.raises(type(raised)) as caught:
        apply(fail)
    assert caught.value is raised


def test_error_kind_and_backtrace_seen_by_C(apply):
    def fail():
        raise FileNotFoundError("missing")

    with pytest.raises(FileNotFoundError) as caught:
        apply(fail)
    error = ffi.get_global_func("testing.echo")(caught.value)
    assert isinstance(error, ffi.Error)
    assert error.kind == "OSError"  # the nearest class that C has a name for
    assert error.message == "missing"
    assert error.backtrace.splitlines()[0].endswith("in fail")
    assert error.extra_context is caught.value


def test_generator_is_left_by_its_own_error(apply):
    def generate():
        yield apply(lambda: 1)
        yield apply({}.__getitem__, 0)

    with pytest.raises(KeyError):
        list(generate())


# --- Error objects --------------------------------------------------------------------


def test_error_object(echo):
    error = ffi.Error("MyKind", "message", '  File "x.py", line 1, in f\n')
    assert (error.kind, error.message) == ("MyKind", "message")
    assert error.backtrace == '  File "x.py", line 1, in f\n'
    assert error.cause is None
    assert error.extra_context is None
    assert echo(error) is error
    error.update_backtrace("new")
    assert error.backtrace == "new"
    again = pickle.loads(pickle.dumps(error))
    assert (again.kind, again.message, again.backtrace) == ("MyKind", "message", "new")
    assert repr(error) == "Error('MyKind', 'message')"
    assert isinstance(ffi.Error("ValueError", "x").py_error(), ValueError)


# --- Signals, exit ---------------------------------------------------------------------
