"""What is wrong is said by name, and nothing is lost, leaked or left half done."""

from __future__ import annotations

import copy
import functools
import pickle
import threading

import pytest

import dlbridge as bridge
from dlbridge import ffi
from dlbridge.ffi.calls import bind
from dlbridge.ffi.errors import raised, untaken


@pytest.fixture(scope="module")
def plain(plain_library):
    return ffi.load_module(plain_library)


@pytest.mark.parametrize("name", [5, None, b"name", object()])
def test_names_are_text(name):
    register = functools.partial(ffi.register_global_func, f=len)
    for use in (ffi.get_global_func, ffi.remove_global_func, register):
        with pytest.raises(TypeError, match="the name of a global function is a str"):
            use(name)


def test_functions_can_be_called():
    with pytest.raises(TypeError, match="5 cannot be called"):
        ffi.register_global_func("test.no_function", 5)
    assert ffi.get_global_func("test.no_function", allow_missing=True) is None
    with pytest.raises(TypeError, match="'f' cannot be called"):
        ffi.convert_func("f")


@pytest.mark.parametrize("cls", [ffi.Object, ffi.Function])
def test_what_only_the_library_makes(cls):
    with pytest.raises(TypeError, match="its objects come from the library's functions"):
        cls()


@pytest.mark.parametrize("name", ["a\0b", 5])
def test_names_of_symbols(name):
    with pytest.raises(ValueError, match="the name of a C symbol is text without NUL"):
        ffi.register_system_lib_symbol(name, 1)


@pytest.mark.parametrize("wrong", [("Kind", 5), ("Kind", int), (5, ValueError)])
def test_errors_are_registered_by_a_name_and_a_class(wrong):
    with pytest.raises(TypeError, match="give a kind's name and an exception class"):
        ffi.register_error(*wrong)


def test_an_exception_class_whose_constructor_fails(testing):
    @ffi.register_error("test.Broken")
    class Broken(Exception):
        def __init__(self, message):
            raise OSError("the constructor is wrong")

    with pytest.raises(RuntimeError, match=r"test\.Broken: what happened"):
        testing("test_raise_error")("test.Broken", "what happened")


@pytest.mark.parametrize("index", [-1, -100, -(1 << 31)])
def test_a_result_of_an_impossible_type(plain, index):
    with pytest.raises(TypeError, match=f"the impossible TVM-FFI type index {index}:"):
        plain.nothing(index)


def test_a_result_written_before_the_failure(plain, testing):
    count = testing("object_use_count")
    array = ffi.Array([1, 2])
    before = count(array)
    bound = plain.changes_its_mind.bind(array)
    for attempt in (lambda: plain.changes_its_mind(array), bound):
        for _ in range(3):
            with pytest.raises(ValueError, match="rather not"):
                attempt()
    del attempt, bound
    assert count(array) == before


def test_copies_of_a_function_are_the_function():
    function = ffi.get_global_func("ffi.ArraySize")
    assert copy.copy(function) is function
    assert copy.deepcopy([function])[0] is function
    with pytest.raises(TypeError, match=r"a ffi\.Function can be neither copied nor pickled"):
        pickle.dumps(function)


CHANGES = {
    "append": lambda mine, value: mine.append(value),
    "insert": lambda mine, value: mine.insert(0, value),
    "extend": lambda mine, value: mine.extend([value]),
    "set": lambda mine, value: mine.__setitem__(0, value),
    "set a slice": lambda mine, value: mine.__setitem__(slice(1), [value]),
    "set in steps": lambda mine, value: mine.__setitem__(slice(0, 2, 2), [value]),
    "key of a dict": lambda mine, value: ffi.Dict({"packed": 1}).__setitem__(value, 2),
    "value of a dict": lambda mine, value: ffi.Dict({"packed": 1}).__setitem__("packed", value),
    "popped of a dict": lambda mine, value: ffi.Dict({"packed": 1}).pop(value),
}


class Waits:
    """Packs itself when another thread has changed another container."""

    def __init__(self, other):
        self.changed = None
        self._change = lambda: other.append(2)

    def __tvm_ffi_value__(self):
        thread = threading.Thread(target=self._change, daemon=True)
        thread.start()
        thread.join(100)
        self.changed = not thread.is_alive()
        return "packed"


@pytest.mark.parametrize("change", CHANGES)
def test_no_lock_is_held_while_a_value_packs_itself(change):
    value = Waits(ffi.List())
    mine = ffi.List([1])
    CHANGES[change](mine, value)
    assert value.changed
    assert "packed" in mine or change.endswith("of a dict")


# Errors that a callee ignores ----------------------------------------------------


def pending():
    """Whether libtvm_ffi has an error for this thread, which is taken by the look."""
    return "without saying why" not in str(raised())


@pytest.mark.parametrize("how", ["call", "long call", "bound", "bound and silent"])
def test_an_ignored_failure_leaves_nothing_behind(plain, how):
    def fails():
        raise ValueError("nobody looks")

    ignores = {
        "call": lambda: plain.ignores(fails),
        "long call": lambda: plain.ignores(fails, *range(9)),
        "bound": plain.ignores.bind(fails),
        "bound and silent": bind(plain.ignores._handle, [fails], silent=True),
    }[how]
    ignores()
    assert not pending()
    assert not untaken


def test_a_call_while_cleaning_up_takes_nobodys_error(plain):
    """The callee holds on to its error; a callback that calls something else leaves it alone."""

    def fails():
        raise ValueError("the first")

    with pytest.raises(ValueError, match="the first"):
        plain.cleans_up(fails, lambda: ffi.get_global_func("ffi.ArraySize")(ffi.Array([1])))
    assert not untaken


def test_text_that_is_none():
    for use in (ffi.Error, ffi.object_class):
        with pytest.raises(TypeError, match="text is needed here, not 5"):
            use(5)
    with pytest.raises(TypeError, match="a namespace is a str"):
        ffi.init_ffi_api(5)
    with pytest.raises(KeyError, match=r"no module 'nowhere' in sys\.modules"):
        ffi.init_ffi_api("nowhere")


def test_failures_in_threads_that_are_gone_slow_nobody_down(plain, foreign_call):
    """A thread of C's that failed once, and one of Python's that has ended, are not remembered."""

    def fails():
        raise ValueError("nobody looks")

    foreign_call(ffi.convert_func(fails))
    assert not untaken
    thread = threading.Thread(target=lambda: untaken.add(threading.get_ident()))
    thread.start()
    thread.join()
    assert untaken
    plain.answer()
    assert not untaken


@pytest.mark.parametrize("given", [[1.0, 2.0], 1.0, 1])
@pytest.mark.parametrize(
    "name", ["schema_tensor_view_input", "optional_tensor_view_has_value", "schema_id_tensor"]
)
def test_numbers_for_a_tensor(testing, name, given):
    function = ffi.get_global_func(f"testing.{name}")
    with pytest.raises(TypeError, match="Mismatched type on argument #0") as caught:
        function(given)
    assert "pass dlbridge.asarray(x)" in caught.value.__notes__[0]
    function(bridge.asarray(given))
