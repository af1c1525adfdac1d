"""Functions: registry, calls of every shape, bound calls, metadata, C symbols."""

from __future__ import annotations

import gc
import inspect
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from dlbridge import ffi
from dlbridge.conformance.cases import in_threads
from dlbridge.ffi._calls import call_many
from tests.support.scripts import ROOT, finished


@pytest.fixture
def name(request):
    """A global name that is free before and after the test."""
    name = f"dlbridge.test.{request.node.name}"
    yield name
    if ffi.get_global_func(name, allow_missing=True) is not None:
        ffi.remove_global_func(name)


# --- The registry -------------------------------------------------------------


def test_missing_function():  # 1.1 FunctionGetGlobal: NULL with rc 0
    assert ffi.get_global_func("no.such", allow_missing=True) is None
    with pytest.raises(ValueError, match=r"no\.such"):
        ffi.get_global_func("no.such")


def test_register_get_call_remove(name):
    ffi.register_global_func(name, lambda a, b: a * 10 + b)
    f = ffi.get_global_func(name)
    assert f(1, 2) == 12
    assert name in ffi.list_global_func_names()
    ffi.remove_global_func(name)
    assert ffi.get_global_func(name, allow_missing=True) is None
    assert name not in ffi.list_global_func_names()
    assert f(3, 4) == 34  # what was got keeps working


def test_register_twice(name):
    ffi.register_global_func(name, lambda: 1)
    with pytest.raises(RuntimeError, match="already registered"):
        ffi.register_global_func(name, lambda: 2)
    assert ffi.get_global_func(name)() == 1
    ffi.register_global_func(name, lambda: 2, override=True)
    assert ffi.get_global_func(name)() == 2


def test_register_as_decorator(name):
    @ffi.register_global_func(name)
    def named():
        return "named"

    assert named() == "named"
    assert ffi.get_global_func(name)() == "named"

    @ffi.register_global_func
    def dlbridge_test_bare():
        return "bare"

    assert ffi.get_global_func("dlbridge_test_bare")() == "bare"
    ffi.remove_global_func("dlbridge_test_bare")


# --- Calls ----------------------------------------------------------------------


@pytest.mark.parametrize("count", [*range(10), 40, 300])
def test_number_of_arguments(apply, count):
    seen = []

    def collect(*args):
        seen.append(args)
        return len(args)

    f = ffi.convert_func(collect)
    arguments = tuple(range(count))
    assert f(*arguments) == count
    assert seen == [arguments]


@pytest.mark.parametrize("big", [2**63, -(2**64), 2**100])
@pytest.mark.parametrize("place", range(8))
def test_big_int_at_every_place(big, place):
    arguments = [0, 1.5, "text", None, 4, b"123456789", 6, True]
    arguments[place] = big
    assert ffi.convert_func(lambda *args: list(args) == arguments)(*arguments) is True


def test_result_of_one_call_does_not_show_in_the_next(testing, echo):
    # testing.nop leaves the result alone: what is there already comes back.
    nop = testing("nop")
    for value in (5, 1.5, "small", "a longer string", echo, None):
        echo(value)
        assert nop() is None
        assert nop(1) is None
        assert nop(*range(20)) is None


def test_recursion_keeps_its_arguments_apart(apply):  # 4.3 re-entrancy
    def fib(n):
        return n if n < 2 else again(n - 1) + again(n - 2)

    again = ffi.convert_func(fib)
    assert again(15) == 610

    def deep(n, text):
        return text if n == 0 else f(n - 1, text + "x")

    f = ffi.convert_func(deep)
    assert f(50, "") == "x" * 50


def test_arguments_that_call_while_they_are_packed(echo):  # 4.3
    class Nested:
        def __tvm_ffi_value__(self):
            return echo("value of the inner call")

    f = ffi.convert_func(lambda *args: "|".join(map(str, args)))
    assert f(1, Nested(), 3, Nested()) == "1|value of the inner call|3|value of the inner call"


def test_threads_keep_their_arguments_and_results_apart(echo):
    step = ffi.convert_func(object).bind()

    def work(me):
        for turn in range(3000):
            text = f"thread {me}, turn {turn}, long enough for the heap"
            assert echo(text) == text
        return [step() for _ in range(2000)]

    results = [result for found in in_threads(4, work) for result in found]
    assert len(set(map(id, results))) == 8000


# --- Bound calls ----------------------------------------------------------------


def test_bind(echo, testing):
    step = testing("add_one").bind(41)
    assert [step(), step()] == [42, 42]
    step.replace(0, 1)
    assert step() == 2
    with pytest.raises(IndexError):
        step.replace(1, 5)
    assert step() == 2
    for value in ("a longer string", echo, None, 2**70):
        bound = echo.bind(value)
        assert bound() == value
        assert bound() == value


def test_bound_call_inside_itself():
    depth = []

    def inner():
        depth.append(None)
        return len(depth) if len(depth) == 5 else step() + 100

    step = ffi.convert_func(inner).bind()
    assert step() == 405
    depth.clear()
    assert step() == 405


def test_replaced_object_lives_as_long_as_a_call_that_uses_it(testing):
    seen = []

    def look(error):
        step.replace(0, None)
        gc.collect()
        seen.append(error.message)
        return use_count(error)

    use_count = ffi.get_global_func("testing.object_use_count")
    step = ffi.convert_func(look).bind(ffi.Error("ValueError", "an object"))
    assert step() >= 1
    assert seen == ["an object"]


def test_replace_while_the_call_runs():
    seen = []

    def look(value):
        if value == "first":
            step.replace(0, "second")
            seen.append(step())
        return [value]  # an object of its own

    step = ffi.convert_func(look).bind("first")
    results = [list(step()), list(step())]
    assert [list(value) for value in seen] == [["second"]]
    assert results == [["first"], ["second"]]


def test_bound_function_that_returns_nothing(testing):
    step = testing("schema_no_return").bind(5)
    assert step() is None
    step.replace(0, "text")
    with pytest.raises(TypeError):
        step()
    step.replace(0, 6)
    assert step() is None
    others = [testing("schema_no_return").bind(i) for i in range(50)]
    for _ in range(20):  # the place for the result is the call's own
        assert [other() for other in others] == [None] * 50


# --- Metadata -------------------------------------------------------------------


def test_metadata(testing):
    metadata = testing("schema_id_int").metadata
    assert (metadata["bool_attr"], metadata["int_attr"]) == (True, 1)
    assert metadata["str_attr"] == "hello"
    assert ffi.get_global_func_metadata("testing.schema_id_int") == metadata
    assert testing("nop").metadata == {"type_schema": '{"type":"ffi.Function"}'}


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("nop", "(*args)"),
        ("schema_no_args", "() -> 'int'"),
        ("schema_no_return", "(arg0: 'int', /) -> 'None'"),
        ("schema_id_opt_str", "(arg0: 'str | None', /) -> 'str | None'"),
        ("schema_id_dltensor", "(arg0: 'Tensor', /) -> 'Tensor'"),
        ("schema_id_dtype", "(arg0: 'dtype', /) -> 'dtype'"),
        (
            "schema_arr_map_opt",
            (
                "(arg0: 'Array[int | None]', arg1: 'Map[str, Array[int]]', arg2: 'str | None', /)"
                " -> 'Map[str, Array[int]]'"
            ),
        ),
        (
            "schema_id_func_typed",
            (
                "(arg0: 'Callable[[int, float, Callable], None]', /)"
                " -> 'Callable[[int, float, Callable], None]'"
            ),
        ),
    ],
)
def test_signature(testing, name, signature):
    assert str(inspect.signature(testing(name))) == signature


@pytest.fixture
def published(name):
    """A function whose metadata names its parameters."""

    @ffi.register_global_func(name)
    def function(a, b, c=3):
        """Documented."""
        return f"{a},{b},{c}"

    return ffi.get_global_func(name)


def test_keywords_where_the_metadata_names_them(published):
    assert published(1, 2) == published(b=2, a=1) == "1,2,3"
    assert published(1, c=5, b=2) == "1,2,5"
    assert published.like("numpy")(b=2, a=1) == "1,2,3"
    step = published.bind(b=2, a=1)
    step.replace(1, 4)
    assert step() == "1,4,3"
    # A default that only the function knows.
    assert str(inspect.signature(published)) == "(a, b, c=...)"


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((), {"a": 1}, "missing a required argument: 'b'"),
        ((1, 2), {"w": 4}, "unexpected keyword argument 'w'"),
        ((1,), {"c": 5}, "missing a required argument: 'b'"),
    ],
)
def test_keywords_that_do_not_fit(published, arguments, keywords, message):
    for call in (published, published.bind):
        with pytest.raises(TypeError, match=message):
            call(*arguments, **keywords)


def test_keywords_that_leave_a_gap(name):
    ffi.register_global_func(name, lambda a, b=1, c=2: f"{a},{b},{c}")
    found = ffi.get_global_func(name)
    assert found(9, b=4) == "9,4,2"
    assert found(c=3, b=2, a=1) == "1,2,3"
    with pytest.raises(TypeError, match="'b' must be given if 'c' is"):
        found(9, c=5)


def test_keywords_are_refused_where_nothing_names_them(echo):
    with pytest.raises(TypeError, match=r"takes its arguments by position.*keyword argument 'x'"):
        echo(x=1)


# --- C symbols ------------------------------------------------------------------


def test_from_c_symbol(testing):  # 3 Function.__from_extern_c__
    symbol = testing("get_add_one_c_symbol")()
    assert ffi.Function.__from_extern_c__(symbol)(41) == 42


def test_an_error_on_the_way_to_an_mlir_symbol(testing, monkeypatch):
    """What goes wrong before C is reached crosses C, as Ctrl-C would."""
    from dlbridge.ffi import functions

    f = ffi.Function.__from_mlir_packed_safe_call__(testing("get_mlir_add_one_c_symbol")())
    no_memory = MemoryError("no room for the arguments")

    class Full:
        NULL = functions.ffi.NULL

        def new(self, *_arguments):
            raise no_memory

    with monkeypatch.context() as patch:
        patch.setattr(functions, "ffi", Full())
        with pytest.raises(MemoryError) as caught:
            f(41)
    assert caught.value is no_memory
    assert f(41) == 42


def test_a_function_that_is_removed_while_it_is_looked_up(monkeypatch):
    """Another thread takes the name away after the function was found: it is ours all the same."""
    from dlbridge.ffi import functions

    ffi.register_global_func("test.fleeting", lambda x: x + 1, override=True)
    call = functions.ask

    def after_the_removal(handle, *arguments):
        if arguments == ("test.fleeting",):
            monkeypatch.setattr(functions, "ask", call)
            ffi.remove_global_func("test.fleeting")
        return call(handle, *arguments)

    monkeypatch.setattr(functions, "ask", after_the_removal)
    assert ffi.get_global_func("test.fleeting")(1) == 2
    assert ffi.get_global_func("test.fleeting", allow_missing=True) is None


# --- The fast forms of a call beside the slow one ------------------------------------

ARGUMENTS = [
    (),
    (1, 2.5, "text", None, True, 2**70),
    ("a text that is longer", b"bytes", [1, [2]], {"a": 1}, ffi.Shape((1,))),
    (np.arange(3.0), ffi.from_dlpack(np.arange(4)), np.float32(1), range(3)),
    tuple(range(5)),
    tuple(range(6)),
    tuple(range(7)),
]


def seen(*arguments):
    """What a callee gets, and how a result of each kind comes back."""
    return [repr(value) for value in arguments] + list(arguments[:1])


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=len)
def test_all_forms_of_a_call_do_the_same(arguments):
    f = ffi.convert_func(seen)
    slow = repr(call_many(f, *arguments))
    for _ in range(3):  # a frame is used again
        assert repr(f(*arguments)) == slow
    step = f.bind(*arguments)
    assert repr(step()) == repr(step()) == slow


@pytest.mark.parametrize("arguments", [(object(), ""), ("KeyError", "text")])
def test_all_forms_of_a_call_fail_alike(testing, arguments):
    f = testing("test_raise_error")
    found = []
    for step in [lambda: call_many(f, *arguments), lambda: f(*arguments), f.bind(*arguments)] * 2:
        with pytest.raises((KeyError, TypeError)) as caught:
            step()
        found.append((type(caught.value), str(caught.value)))
    assert len(set(found)) == 1


def test_the_calls_are_as_the_generator_writes_them():
    done = finished(Path("cdefs/ffi_calls.py"), "--check", cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_an_edit_of_the_calls_by_hand_is_seen(tmp_path):
    for name in ("cdefs/ffi_calls.py", "dlbridge/ffi/_calls.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    edited = (tmp_path / "dlbridge/ffi/_calls.py").read_text().replace("used += 1", "used += 2", 1)
    (tmp_path / "dlbridge/ffi/_calls.py").write_text(edited)
    done = finished(Path("cdefs/ffi_calls.py"), "--check", cwd=tmp_path)
    assert done.returncode == 1
    assert re.search(r"^- +used \+= 2$", done.stdout, re.MULTILINE), done.stdout
