"""Arguments that go away, or are replaced, while a call has them."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref

import pytest

from dlbridge import ffi


class Thing:
    """What C++ holds by reference, and Python can watch."""


def test_an_argument_lives_until_the_call_ends():
    thing = Thing()
    watched = weakref.ref(thing)
    array = ffi.Array([thing])
    del thing
    take = ffi.convert_func(lambda value: None)

    def look(value):
        take(value._move())
        gc.collect()
        return watched() is not None

    assert ffi.convert_func(look)(array)
    gc.collect()
    assert watched() is None
    with pytest.raises(ValueError, match="moved into a call"):
        take(array)


def test_keywords_that_leave_a_gap():
    @ffi.register_global_func("test.gap")
    def gap(a, b=1, c=2):
        return f"{a},{b},{c}"

    try:
        found = ffi.get_global_func("test.gap")
        assert found(9, b=4) == "9,4,2"
        assert found(c=3, b=2, a=1) == "1,2,3"
        with pytest.raises(TypeError, match="'b' must be given if 'c' is"):
            found(9, c=5)
    finally:
        ffi.remove_global_func("test.gap")


def test_two_threads_replace_two_arguments():
    joined = ffi.convert_func(lambda a, b: f"{a} {b}")
    for _ in range(200):
        step = joined.bind(0, 0)
        both = threading.Barrier(2)

        def replace(index, both=both, step=step):
            both.wait()
            step.replace(index, 5)

        threads = [threading.Thread(target=replace, args=(i,)) for i in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert step() == "5 5"


def test_a_value_that_replaces_while_it_is_bound():
    step = ffi.convert_func(lambda a, b: f"{a} {b}").bind(1, 2)

    class Replaces:
        def __tvm_ffi_value__(self):
            step.replace(1, 22)
            return 11

    with pytest.raises(RuntimeError, match="cannot be replaced by the value being bound"):
        step.replace(0, Replaces())
    assert step() == "1 2"
    step.replace(0, 3)
    assert step() == "3 2"


@pytest.mark.parametrize("again", [copy.deepcopy, pickle.dumps])
def test_objects_are_not_made_of_their_address(again):
    made = ffi.get_global_func("ffi.GetKwargsObject")()
    with pytest.raises(TypeError):
        again(made)


def test_an_opaque_object_that_C_holds_twice():
    """Each holder has its own: the first to let go takes it from nobody else."""
    thing = Thing()
    watched = weakref.ref(thing)
    first, second = ffi.Array([thing]), ffi.Array([thing])
    assert first[0] is thing
    del thing, first
    gc.collect()
    assert watched() is not None
    assert second[0] is watched()
    del second
    gc.collect()
    assert watched() is None


def test_every_cause_of_a_chain_crosses(apply):
    def fail():
        try:
            try:
                raise KeyError("first")
            except KeyError as first:
                raise ValueError("second") from first
        except ValueError as second:
            raise TypeError("third") from second

    with pytest.raises(TypeError) as caught:
        apply(fail)
    error = ffi.get_global_func("testing.echo")(caught.value)
    kinds = []
    while error is not None:
        kinds.append(error.kind)
        error = error.cause
    assert kinds == ["TypeError", "ValueError", "KeyError"]


def test_what_was_not_taken_is_known_again(testing):
    """A call fails before the object is taken: it goes back, and is the one wrapper again."""
    holder = ffi.List([ffi.Array([1])])
    array = holder[0]
    with pytest.raises(UnicodeEncodeError):
        testing("nop")(array._move(), "\ud800")
    assert list(array) == [1]
    assert holder[0] is array
