"""The details of CPython and numpy that dlbridge relies on: the table, and tests of each."""

from __future__ import annotations

import ast
import ctypes
import gc
import inspect
import re
import signal
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from cffi import FFI
from raw_producer import OldProducer, Producer, struct_in

import dlbridge as bridge
from dlbridge.core._cdefs import ffi as our_ffi
from dlbridge.core.dlpack.failures import failed
from dlbridge.core.implementation_details import DETAILS, finalizers
from dlbridge.core.implementation_details.callbacks import c_callback
from dlbridge.core.implementation_details.capsules import address_in
from dlbridge.core.implementation_details.finalizers import end_finalizers, report
from dlbridge.core.implementation_details.handlers import RESUME, handlers_cause
from dlbridge.core.implementation_details.numpy_arrays import address_of
from dlbridge.core.implementation_details.python_api import object_at

ROOT = Path(__file__).resolve().parents[2]


# The table ----------------------------------------------------------------------


def place_exists(where):
    """Whether ``"core/tensor/tensor.py: ArrayTensor"`` names a definition."""
    file, name = where.split(": ")
    path = ROOT / "dlbridge" / file
    if not path.is_file():
        return False
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return set(name.split(".")) <= names


def test_exists(test):
    """Whether ``"tests/core/test_x.py::test_y"`` names a test."""
    file, name = test.split("::")
    path = ROOT / file
    return path.is_file() and bool(re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE))


test_exists.__test__ = False


@pytest.mark.parametrize("detail", DETAILS, ids=lambda detail: detail.what[:50])
def test_each_detail_has_its_place_and_its_test(detail):
    assert place_exists(detail.where), f"there is no {detail.where}"
    assert test_exists(detail.test), f"there is no {detail.test}"
    assert all(detail), "each says what, why and since when"


def test_the_reader_of_the_table_sees_what_is_missing():
    assert not place_exists("core/tensor/tensor.py: NoSuchClass")
    assert not place_exists("core/tensor/no_such.py: Tensor")
    assert not test_exists("tests/core/test_implementation_details.py::test_no_such")
    assert not test_exists("tests/core/test_no_such.py::test_object_at")


# CPython ------------------------------------------------------------------------


def test_object_at():
    """The object itself, with a reference of its own."""
    thing = object()
    before = sys.getrefcount(thing)
    again = object_at(id(thing))
    assert again is thing
    assert sys.getrefcount(thing) == before + 1


def test_the_method_of_the_instance_is_found_before_that_of_the_class():
    """A consumer in C that asks a CPU tensor for a capsule calls numpy's C method."""
    tensor = bridge.zeros(3)
    method = tensor.__dlpack__
    assert type(method) is type([].append)
    assert isinstance(method.__self__, np.ndarray)
    called = []
    tensor.numpy_export = lambda **keywords: called.append(keywords) or method(**keywords)
    np.from_dlpack(tensor)
    assert called, "np.from_dlpack does not ask the instance"
    assert callable(inspect.getattr_static(type(tensor), "__dlpack__"))


# fmt: off
def one_line(act): act()
# fmt: on


def several_lines(act):
    act()


class WithCells:
    def __init__(self, act):
        def inner():
            return act, self

        self.inner = inner
        act()


@pytest.mark.parametrize("function", [one_line, several_lines, WithCells])
def test_a_function_that_was_cut_at_its_entry(function):
    """One that has begun has done something, whatever its line."""

    def handler(*_):
        raise InterruptedError

    def traceback_of(*arguments):
        with pytest.raises(InterruptedError) as caught:
            list(map(function, *arguments))
        return caught.tb.tb_next

    def is_cut_at_entry(trace):
        return RESUME not in trace.tb_frame.f_code.co_code[: trace.tb_lasti : 2]

    assert not is_cut_at_entry(traceback_of([handler]))
    before = signal.signal(signal.SIGTERM, handler)
    # Two functions that C calls, one after the other: no instruction comes between.
    arriving = getattr(ctypes.CDLL(None), "raise")
    try:
        assert is_cut_at_entry(traceback_of(map(arriving, [signal.SIGTERM])))
    finally:
        signal.signal(signal.SIGTERM, before)


class ItsOwn(Exception):
    """Raised by a signal handler."""


def signalled():
    signal.raise_signal(signal.SIGTERM)
    sum(range(1000))


def converted():
    try:
        signalled()
    except ItsOwn as exc:
        raise KeyError("another") from exc


def hidden():
    try:
        signalled()
    except ItsOwn:
        raise KeyError("another") from None


def twice():
    try:
        hidden()
    except KeyError:
        raise ValueError("a third")  # noqa: B904 - a library may do so


def by_c():
    """As CPython 3.11 does with an exception that leaves a codec."""
    caught = KeyError("another")
    try:
        signalled()
    except ItsOwn as exc:
        caught.__cause__ = exc.with_traceback(exc.__traceback__.tb_next.tb_next)
    raise caught


@pytest.fixture
def raising():
    """SIGTERM raises `ItsOwn`."""

    def handler(*_):
        raise ItsOwn

    before = signal.signal(signal.SIGTERM, handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("function", [signalled, converted, hidden, twice, by_c])
def test_the_exception_of_a_handler_is_found_in_what_was_made_of_it(function, raising):
    with pytest.raises((ItsOwn, KeyError, ValueError)) as caught:
        function()
    found = handlers_cause(caught.value)
    assert type(found) is ItsOwn


def test_an_exception_that_was_handled_before_is_no_cause(raising):
    def own():
        try:
            raise KeyError("its own")
        except KeyError:
            raise ValueError("its own, too")  # noqa: B904 - a library may do so

    def catch():
        with pytest.raises(ValueError, match="its own, too") as caught:
            own()
        return caught.value

    try:
        signalled()
    except ItsOwn:
        found = catch()
    assert type(found.__context__.__context__) is ItsOwn
    assert handlers_cause(found) is None


def test_causes_in_a_circle_end():
    first, second = KeyError(), KeyError()
    first.__cause__, second.__cause__ = second, first
    assert handlers_cause(first) is None


def test_references_of_an_array_are_counted_at_once():
    """An array, a view and a capsule each add one; they go with their last user."""
    array = np.zeros(3)
    before = sys.getrefcount(array)
    view = array[...]
    assert sys.getrefcount(array) == before + 1
    capsule = view.__dlpack__()
    assert sys.getrefcount(view) == 3  # view, the capsule, and the argument
    del capsule, view
    assert sys.getrefcount(array) == before


def test_the_class_of_an_instance_can_be_replaced():
    class Before:
        __slots__ = ("value",)

    class After(Before):
        __slots__ = ()

    thing = Before()
    thing.value = 5
    thing.__class__ = After
    assert type(thing) is After
    assert thing.value == 5


class Interrupt(Exception):
    """Raised by a signal handler of a user."""


@pytest.fixture
def handler():
    """SIGUSR1 raises `Interrupt`."""
    if not hasattr(signal, "SIGUSR1"):
        pytest.fail("this test needs POSIX signals")

    def interrupt(_number, _frame):
        raise Interrupt("from a handler")

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_an_interrupted_callback_is_run_again_with_its_arguments(handler):
    """C's qsort gets a whole result, and the exception of the handler comes after it."""
    ffi = FFI()
    ffi.cdef("void qsort(void *, size_t, size_t, int (*)(const void *, const void *));")
    values = ffi.new("int64_t[]", [3, 1, 2, 5, 4])
    calls, undone = [], []

    @c_callback("int(uintptr_t, uintptr_t)", undo=lambda variables: undone.append(set(variables)))
    def compare(left, right):
        calls.append((left, right))
        if len(calls) == 3:
            signal.raise_signal(signal.SIGUSR1)
        first = ctypes.c_int64.from_address(left).value
        second = ctypes.c_int64.from_address(right).value
        return (first > second) - (first < second)

    pointer = ffi.cast(
        "int (*)(const void *, const void *)", int(our_ffi.cast("uintptr_t", compare))
    )
    with pytest.raises(Interrupt, match="from a handler"):  # noqa: PT012 - as the comment says
        ffi.dlopen(None).qsort(values, 5, 8, pointer)
        # CPython raises it at the next instruction, which may be behind the call.
        sum(range(1000))
    assert list(values) == [1, 2, 3, 4, 5]
    assert calls[2] == calls[3], "the interrupted call has run again"
    assert undone
    assert {"left", "right"} <= undone[0]


# numpy ----------------------------------------------------------------------------


def test_the_struct_of_a_new_capsule_may_be_overwritten():
    """What a consumer gets is what we wrote; numpy's deleter frees it all the same."""
    tensor = bridge.zeros(4, "bfloat16")
    expected = bytes(tensor.tobytes())
    for _ in range(100):
        again = bridge.from_dlpack(tensor.__dlpack__(max_version=(1, 1)))
        assert again.dtype == "bfloat16"
        assert again.tobytes() == expected


def test_a_capsules_destructor_and_a_structs_deleter_are_numpys_c_functions():
    """Of all arrays the same, and in the file of numpy's extension module."""
    get = ctypes.pythonapi.PyCapsule_GetDestructor
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object]
    destructors = {get(np.zeros(n).__dlpack__(max_version=(1, 0))) for n in range(3)}
    assert len(destructors) == 1
    if not sys.platform.startswith("linux"):
        return
    (address,) = destructors
    files = [
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if int(line.split("-")[0], 16) <= address < int(line.split("-")[1].split()[0], 16)
    ]
    assert "_multiarray_umath" in files[0]


@pytest.mark.parametrize("version", [None, (1, 3)])
def test_the_address_in_a_capsule(version):
    capsule = np.zeros(3).__dlpack__(max_version=version)
    name = b"dltensor_versioned" if version else b"dltensor"
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_size_t, (ctypes.py_object, ctypes.c_char_p)
    assert address_in(capsule) == get(capsule, name)


@pytest.mark.parametrize("kind", [np.ndarray, np.memmap, np.recarray, np.ma.MaskedArray])
def test_the_address_of_an_array(kind):
    base = np.arange(24, dtype="f4").reshape(2, 3, 4)
    for array in (base, base[1:, ::-1], base.T[2:], base[0, 0, 3:], np.zeros(()), base > 3):
        view = array.view(kind) if kind is not np.memmap else array
        assert address_of(view) == view.__array_interface__["data"][0]


class Deleter:
    """A class whose ``__del__`` waits, and notes that it has ended."""

    def __init__(self):
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.ended = []

    def __del__(self):
        self.begun.set()
        self.go_on.wait()
        self.ended.append(time.monotonic())


def test_finalizers_end_before_the_process_does(monkeypatch):
    monkeypatch.setattr(finalizers, "_LONGEST_WAIT", 1000)
    held = [Deleter()]
    begun, go_on, ended = held[0].begun, held[0].go_on, held[0].ended
    dropping = threading.Thread(target=held.clear)
    dropping.start()
    begun.wait()
    threading.Timer(0.1, go_on.set).start()  # no verdict: who does not wait may come later, unseen
    end_finalizers(Deleter)
    assert ended
    dropping.join()
    late = Deleter()
    begun = late.begun
    del late
    assert not begun.is_set()


@pytest.mark.parametrize("versioned", [True, False])
def test_the_owner_of_an_imported_struct_keeps_the_pending_exception(versioned):
    """The deleter is Python, and runs while the exception of `fail` clears its frame."""
    deleted = []
    producer = (Producer if versioned else OldProducer)(
        dtype=(4, 16, 1)
    )  # not numpy's: the struct is ours
    capsule = producer.capsule()
    struct = struct_in(capsule)
    forget = our_ffi.callback(our_ffi.typeof(struct.deleter), lambda _struct: deleted.append(1))
    struct.deleter = forget

    def fail(tensor):
        raise KeyError(tensor.shape)

    with pytest.raises(KeyError):
        fail(bridge.from_dlpack(OneCapsule(capsule)))
    gc.collect()
    assert deleted == [1]


class OneCapsule:
    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **_keywords):
        return self.capsule

    def __dlpack_device__(self):
        return (1, 0)


class Injected(Exception):
    """One that can be watched."""


def test_a_callback_leaves_an_exception_pending():
    """And nothing of it is left afterwards."""

    @our_ffi.callback("int(int)")
    def call_back(number):
        return failed(Injected(number)) if number else 3

    function = int(our_ffi.cast("uintptr_t", call_back))
    call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int)(function)
    errors = []
    for number in range(1, 100):
        assert call(0) == 3
        with pytest.raises(Injected, match=str(number)) as info:
            call(number)
        errors.append(weakref.ref(info.value))
        del info
    gc.collect()
    assert [error() for error in errors] == [None] * 99
    assert not [x for x in gc.get_objects() if type(x).__name__ in ("_Pending", "_Failed")]


def test_an_error_that_nobody_can_catch_is_reported(monkeypatch):
    seen = []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda said: seen.append((said.exc_value, repr(said.object)))
    )
    error = Injected("once")
    report(error, "the place")
    assert seen == [(error, "the place")]
