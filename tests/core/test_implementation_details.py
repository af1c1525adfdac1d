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
from typing import NamedTuple

import numpy as np
import pytest
from cffi import FFI

import dlbridge as bridge
from dlbridge.abi import RESUME, address_in, ffi as our_ffi, memory, object_at, word_at
from dlbridge.core.implementation_details import ends
from dlbridge.core.implementation_details.ends import end_finalizers
from dlbridge.core.implementation_details.handlers import c_callback
from dlbridge.core.implementation_details.python_api import address_of
from dlbridge.core.interfaces.own_table import failure_status
from dlbridge.extending import handlers_cause
from dlbridge.kit.resources import shared_lock
from tests.support.foreign_arrays import OneCapsule
from tests.support.interrupted import Alarm, handled
from tests.support.raw_producer import OldProducer, Producer, struct_in

ROOT = Path(__file__).resolve().parents[2]


# The table ----------------------------------------------------------------------


class Detail(NamedTuple):
    """One detail of CPython or numpy that dlbridge relies on."""

    what: str
    why: str
    since: str
    where: str
    """The file below ``dlbridge/``, and the name in it."""
    test: str
    """The test that fails when the detail no longer holds."""


DETAILS = (
    Detail(
        "RLock._at_fork_reinit frees a lock, whichever thread holds it; threading and logging use it",
        "a child of fork() and the last collection of a process do not have the thread that held a "
        "lock; one of our own class could be cut off by a signal between its acquisition and its "
        "`with`",
        "CPython 3.9",
        "kit/resources.py: shared_lock",
        "tests/core/test_implementation_details.py::test_a_lock_is_freed_for_a_child",
    ),
    Detail(
        "torch.from_dlpack is a Python function of the module torch.utils.dlpack, and calls "
        "__dlpack__ itself",
        "a tensor on a device that torch does not have is refused with the way out; torch would "
        "answer it with an internal error",
        "torch 2.0",
        "core/implementation_details/python_api.py: is_called_by_torch",
        "tests/core/interfaces/test_producer.py::"
        "test_torch_is_told_that_it_has_no_tensors_on_the_device",
    ),
    Detail(
        "numpy's capsules own the array that they were made of, and their destructor and deleter "
        "are C functions that take the GIL, keep a pending exception and return at once when "
        "Python has ended",
        "a consumer may delete a tensor in a thread that Python does not know, or after Python "
        "has ended",
        "numpy 2.1",
        "core/dlpack/exports.py: export_array",
        "tests/safety/test_exit_safety.py::test_released_after_python_has_gone",
    ),
    Detail(
        "the destructor of a capsule of numpy is one C function, which works for any capsule "
        "whose struct has a deleter",
        "capsules with a struct of our own get it: it runs no Python, so it can be called late",
        "numpy 2.1",
        "core/dlpack/capsules.py: get_destructor",
        "tests/core/test_implementation_details.py::"
        "test_a_capsules_destructor_and_a_structs_deleter_are_numpys_c_functions",
    ),
    Detail(
        "the struct in a new numpy capsule may be overwritten before a consumer has it",
        "numpy cannot describe bfloat16, other devices, offsets and flags",
        "numpy 2.1",
        "core/dlpack/exports.py: describe",
        "tests/core/test_implementation_details.py::"
        "test_the_struct_of_a_new_capsule_may_be_overwritten",
    ),
    Detail(
        "a property over `operator.attrgetter` runs no Python; a subclass of property with "
        "`__call__` is what C finds on the class, and can be called there",
        "`ArrayTensor.__dlpack__` is numpy's bound C method, so np.from_dlpack calls C only; "
        "MLX takes only what can be called on the class",
        "CPython 3.11",
        "core/tensor/array_tensor.py: ArrayTensor",
        "tests/core/test_implementation_details.py::"
        "test_the_method_of_the_instance_is_found_before_that_of_the_class",
    ),
    Detail(
        "`_ctypes.PyObj_FromPtr` gives the object at an address",
        "the exchange table gets PyObject pointers; `py_object.from_address` takes ten times as "
        "long",
        "CPython 3.11",
        "core/implementation_details/python_api.py: object_at",
        "tests/core/test_implementation_details.py::test_object_at",
    ),
    Detail(
        "a callback of cffi drops what its function returned after it has read the number, and keeps "
        "an exception that is raised by C meanwhile; an object's attributes are dropped in their "
        "order; the value of a float lies 16 bytes behind its address",
        "a failing function of an exchange table leaves its exception pending (dlpack.h), which "
        "cffi and ctypes would clear",
        "CPython 3.11, cffi 2.0, numpy 2.1",
        "core/interfaces/own_table.py: failure_status",
        "tests/core/test_implementation_details.py::test_a_callback_leaves_an_exception_pending",
    ),
    Detail(
        "the first member of numpy's PyArrayObject is the address of the first element",
        "`__array_interface__` builds a dictionary and a list to say it: 1 us for each operand",
        "numpy 1.0",
        "core/implementation_details/python_api.py: address_of",
        "tests/core/test_implementation_details.py::test_the_address_of_an_array",
    ),
    Detail(
        "the first member of a capsule is its pointer",
        "a numpy array is lent to a call with the struct in its capsule; to ask "
        "`PyCapsule_GetPointer` takes three times as long",
        "CPython 3.11",
        "core/implementation_details/python_api.py: address_in",
        "tests/core/test_implementation_details.py::test_the_address_in_a_capsule",
    ),
    Detail(
        "a callback's exception handler sees the frame that the signal interrupted, with its "
        "arguments",
        "a Ctrl-C that arrives while C runs is raised at the first instruction of the callback, "
        "which then cannot report it to C",
        "CPython 3.11, cffi 2.0",
        "core/implementation_details/handlers.py: c_callback",
        "tests/core/test_implementation_details.py::"
        "test_an_interrupted_callback_is_run_again_with_its_arguments",
    ),
    Detail(
        "a signal that came before a call is noticed at RESUME",
        "a deleter of `from_blob` that has not begun is called again, and no other",
        "CPython 3.11",
        "interop/blobs.py: _release",
        "tests/core/test_implementation_details.py::test_a_function_that_was_cut_at_its_entry",
    ),
    Detail(
        "a function without a call and without a loop runs to its end, whatever signals come; "
        "one that a signal meets at its first instruction has not begun",
        "deleters that C calls late change their tables in one step, once",
        "CPython 3.11, cffi 2.0",
        "ffi/_lib.py: destructor",
        "tests/ffi/test_interrupts.py::test_an_interruption_leaves_nothing_behind",
    ),
    Detail(
        "the frame of a generator that never ran has no caller, and a code object may be given "
        "another file and name",
        "backtraces of C++ are shown as lines of a Python traceback",
        "CPython 3.11",
        "ffi/errors.py: traceback_of",
        "tests/ffi/test_errors.py::test_backtrace_of_cpp_is_in_the_traceback",
    ),
    Detail(
        "the class of a function object may be replaced by one with the same slots",
        "a function takes keywords if its metadata names them",
        "CPython 3.11",
        "ffi/functions.py: described",
        "tests/ffi/test_functions.py::test_keywords_where_the_metadata_names_them",
    ),
    Detail(
        "`PyThreadState_SetAsyncExc` takes a class, and raises what calling the class returns",
        "the exception of a signal handler is raised after C has returned, as the same object",
        "CPython 3.11",
        "core/implementation_details/handlers.py: raise_when_dropped",
        "tests/core/test_implementation_details.py::"
        "test_an_interrupted_callback_is_run_again_with_its_arguments",
    ),
    Detail(
        "the class of an instance may be replaced by one with the same slots",
        "each use of an expired tensor raises, through all references to it",
        "CPython 3.11",
        "core/tensor/array_tensor.py: expirer",
        "tests/core/moves/test_edges.py::test_the_tensor_of_an_ended_view_says_so",
    ),
    Detail(
        "`sys.getrefcount` of a carrier counts the arrays and capsules made from it",
        "a host view refuses to end while something still uses its memory",
        "CPython 3.11",
        "core/moves/host_views.py: HostView",
        "tests/core/test_implementation_details.py::"
        "test_references_of_an_array_are_counted_at_once",
    ),
    Detail(
        "the base of an array that numpy has imported is a capsule, whose destructor calls the "
        "deleter of the struct with the GIL held and with a pending exception set aside",
        "capsules with this destructor own the structs that we import: C++ may drop them in a "
        "destructor, where cffi must not release the GIL",
        "numpy 2.1",
        "core/dlpack/capsules.py: _owner_of",
        "tests/core/test_implementation_details.py::"
        "test_the_owner_of_an_imported_struct_keeps_the_pending_exception",
    ),
    Detail(
        "`sys._current_frames` shows each ``__del__`` that runs in another thread, and "
        "``__del__`` may be replaced by a method of C",
        "no thread may be in a ``__del__`` of ours when Python ends: CPython before 3.14 ends "
        "the thread there, which aborts the process if a destructor of C++ is below",
        "CPython 3.11",
        "core/implementation_details/ends.py: end_finalizers",
        "tests/core/test_implementation_details.py::test_finalizers_end_before_the_process_does",
    ),
)


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


def has_test(test):
    """Whether ``"tests/core/test_x.py::test_y"`` names a test."""
    file, name = test.split("::")
    path = ROOT / file
    return path.is_file() and bool(re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE))


@pytest.mark.parametrize("detail", DETAILS, ids=lambda detail: detail.what[:50])
def test_each_detail_has_its_place_and_its_test(detail):
    assert place_exists(detail.where), f"there is no {detail.where}"
    assert has_test(detail.test), f"there is no {detail.test}"
    assert all(detail), "each says what, why and since when"


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
    tensor.__tensor_export__ = lambda **keywords: called.append(keywords) or method(**keywords)
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
    with handled(ItsOwn):
        yield


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
    alone = sys.getrefcount(view)  # 1 less since CPython 3.14, where the argument is borrowed
    capsule = view.__dlpack__()
    assert sys.getrefcount(view) == alone + 1
    del capsule, view
    assert sys.getrefcount(array) == before


@pytest.fixture
def handler():
    """SIGUSR1 raises `Alarm`."""
    if not hasattr(signal, "SIGUSR1"):
        pytest.fail("this test needs POSIX signals")
    with handled(Alarm, signal.SIGUSR1):
        yield


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
    with pytest.raises(Alarm):  # noqa: PT012 - as the comment says
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


def test_words_of_memory():
    words = np.array([5, -6, 7])
    first = words.ctypes.data >> 3
    assert [memory[first + word_at(offset)] for offset in (0, 8, 16)] == [5, -6, 7]
    assert memory[first + word_at(0) : first + word_at(24)].tolist() == [5, -6, 7]


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
    monkeypatch.setattr(ends, "_LONGEST_WAIT", 1000)
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


class Injected(Exception):
    """One that can be watched."""


def test_a_callback_leaves_an_exception_pending():
    """And nothing of it is left afterwards."""

    @our_ffi.callback("int(int)")
    def call_back(number):
        return failure_status(Injected(number)) if number else 3

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


def test_a_lock_is_freed_for_a_child():
    lock, held = shared_lock(), threading.Event()

    def hold():
        with lock:
            held.set()
            done.wait()

    done = threading.Event()
    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    held.wait()
    assert not lock.acquire(blocking=False)
    lock._at_fork_reinit()
    assert lock.acquire(blocking=False)
    lock.release()
