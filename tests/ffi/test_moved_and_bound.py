"""Arguments that go away, or are replaced, while a call has them."""

from __future__ import annotations

import copy
import gc
import operator
import pickle
import weakref

import pytest

from dlbridge import ffi
from dlbridge.conformance.cases import in_threads


class Thing:
    """What C++ holds by reference, and Python can watch."""


def registered(thing):
    ffi.register_global_func("test.held", lambda: thing, override=True)
    assert ffi.get_global_func("test.held")() is thing


def replaced(step):
    step.replace(0, None)
    return step


# Who holds a thing: how it gets it, and how it lets go where it is not by its own end.
HOLDERS = {
    "an Array": (lambda thing: ffi.Array([thing]), None),
    "a List": (lambda thing: ffi.List([thing]), None),
    "a Map": (lambda thing: ffi.Map({"a": thing}), None),
    "a Dict": (lambda thing: ffi.Dict({"a": thing}), None),
    "a function": (lambda thing: ffi.convert_func(lambda: thing), None),
    "a bound function": (lambda thing: ffi.convert_func(lambda: thing).bind(), None),
    "a bound argument": (lambda thing: ffi.convert_func(repr).bind(thing), None),
    "a bound argument that is replaced": (
        lambda thing: ffi.convert_func(repr).bind(thing),
        replaced,
    ),
    "the registry": (registered, lambda _: ffi.remove_global_func("test.held")),
    "the function of a C symbol": (
        lambda thing: ffi.Function.__from_extern_c__(
            ffi.get_global_func("testing.get_add_one_c_symbol")(), keep_alive_object=thing
        ),
        None,
    ),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_a_thing_lives_as_long_as_its_holder(testing, name):
    assert testing("nop")  # the library is loaded
    hold, let_go = HOLDERS[name]
    thing = Thing()
    watched = weakref.ref(thing)
    holder = hold(thing)
    del thing
    gc.collect()
    assert watched() is not None
    holder = let_go(holder) if let_go else None
    gc.collect()
    assert watched() is None
    del holder


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


def test_two_threads_replace_two_arguments():
    joined = ffi.convert_func(lambda a, b: f"{a} {b}")
    for _ in range(200):
        step = joined.bind(0, 0)
        in_threads(2, lambda index, step=step: step.replace(index, 5))
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


def moved_away(value):
    ffi.convert_func(lambda _: None)(value._move())
    return value


MOVED = {
    "Function": (
        lambda: ffi.convert_func(lambda: 1),
        [lambda x: x(), lambda x: x(1), lambda x: x.bind()],
    ),
    "Error": (
        lambda: ffi.Error("ValueError", "no"),
        [
            *(operator.attrgetter(name) for name in ("kind", "message", "cause")),
            lambda x: x.update_backtrace("x"),
            lambda x: x.py_error(),
        ],
    ),
    "List": (
        lambda: ffi.List([1]),
        [len, list, hash, lambda x: x[0], lambda x: x.append(1)],
    ),
    "TestIntPair": (
        lambda: ffi.object_class("testing.TestIntPair")(1, 2),
        [operator.attrgetter("a")],
    ),
}


@pytest.mark.parametrize("name", MOVED)
def test_what_was_moved_away_says_so(testing, name):
    assert testing("nop")  # the library is loaded
    make, uses = MOVED[name]
    value = moved_away(make())
    for use in uses:
        with pytest.raises(ValueError, match=f"the {name} was moved into a call and is empty now"):
            use(value)
    assert repr(value) == f"<moved {name}>"


@pytest.mark.parametrize("again", [copy.deepcopy, pickle.dumps])
def test_objects_are_not_made_of_their_address(again):
    made = ffi.get_global_func("ffi.GetKwargsObject")()
    with pytest.raises(TypeError):
        again(made)
    with pytest.raises(TypeError, match="neither pickled nor deep-copied"):
        again(made._handle)


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


@pytest.mark.parametrize(
    ("name", "more", "error"),
    [("nop", ["\ud800"], UnicodeEncodeError), ("add_one", [], TypeError)],
)
def test_what_was_not_taken_is_known_again(testing, name, more, error):
    """A call fails before the object is taken: it goes back, and is the one wrapper again."""
    holder = ffi.List([ffi.Array([1])])
    array = holder[0]
    with pytest.raises(error):
        testing(name)(array._move(), *more)
    assert list(array) == [1]
    assert holder[0] is array
