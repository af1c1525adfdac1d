"""What `watch` promises beside its verdicts: lines, limits, threads, and that it hinders nobody."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import subprocess
import sys
import threading
import tracemalloc
import weakref
from importlib.util import find_spec

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.packages import install
from tests.support.peers import peer
from tests.support.scripts import environment, run_script

MONITORING = sys.version_info >= (3, 12)


def take(x):
    """An exchange: numpy -> dlbridge, shared."""
    return bridge.asarray(x)


def copied(x):
    """An exchange that copies."""
    return bridge.asarray(x).tolist()


def caught(x):
    """A copy, or "caught" where the watch forbids it."""
    try:
        made = np.array(x)
    except bridge.ExchangeError:
        return "caught"
    return made


def places(exchanges):
    return {(row.function, row.target, row.result, row.calls) for row in exchanges.rows}


def test_rows_are_summed_by_line_and_varying_extents_are_left_open():
    with bridge.watch() as exchanges:
        for extent in (3, 4, 5):
            take(np.zeros((2, extent), "float32"))
    (row,) = exchanges.rows
    assert (row.shape, row.calls, row.dtype, row.nbytes) == ((2, None), 3, "float32", 0)
    assert row.line == take.__code__.co_firstlineno + 2
    assert row.file == __file__
    assert "float32 (2, .)" in str(exchanges)


def test_the_table_as_text_json_and_html():
    with bridge.watch() as exchanges:
        copied(np.zeros(3))
    assert json.loads(json.dumps(exchanges.as_dict()))["copies"] == 1
    assert "test_watch.py" in exchanges.summary()
    assert "24 B copied" in str(exchanges)
    assert "<td>list</td>" in exchanges._repr_html_()
    assert (exchanges.copies, exchanges.moves, exchanges.nbytes) == (1, 0, 24)
    assert len(exchanges) == 2
    assert {row.target for row in exchanges} == {"dlbridge.Tensor", "list"}


def test_shapes_are_plain_tuples():
    torch = peer("torch")
    t = torch.zeros(2, 3)
    with bridge.watch() as exchanges:
        a = t.numpy()
    assert type(exchanges.rows[0].shape) is tuple
    assert exchanges.rows[0].shape == a.shape


def test_nothing_is_seen_before_and_after():
    take(np.zeros(3))
    with bridge.watch() as exchanges:
        pass
    take(np.zeros(3))
    assert exchanges.rows == []
    assert exchanges.summary() == "nothing was copied or moved"


@pytest.mark.parametrize(
    ("wrong", "said"), [({"threads": "mine"}, "threads="), ({"fail_on": "copies"}, "host copy")]
)
def test_wrong_arguments(wrong, said):
    with pytest.raises(ValueError, match=said):
        bridge.watch(**wrong)


def test_fail_on_raises_at_the_line_that_copies():
    def program():
        take(np.zeros(3))
        return bridge.to_device(np.zeros(3), "cpu", copy=True)

    with bridge.watch(fail_on="host copy"), pytest.raises(bridge.ExchangeError) as caught:
        program()
    assert "in test_fail_on_raises_at_the_line_that_copies.<locals>.program" in str(caught.value)
    assert "24 bytes copied to dlbridge.Tensor" in str(caught.value)
    assert program.__code__ in [entry.frame.code.raw for entry in caught.traceback]
    with bridge.watch(fail_on="move"):
        program()


def test_fail_on_at_a_function_of_c():
    torch = peer("torch")
    a = np.zeros(3)
    with bridge.watch(fail_on=("copy",)), pytest.raises(bridge.ExchangeError, match=r"tensor of"):
        torch.tensor(a)


def test_fail_on_where_the_result_goes_into_a_call_of_no_interest():
    torch = peer("torch")
    a = np.zeros(3)
    with bridge.watch(fail_on="copy"), pytest.raises(bridge.ExchangeError, match=r"tensor of"):
        len(torch.tensor(a))


def test_fail_on_is_caught_by_the_program_where_the_description_says_the_result():
    with bridge.watch(fail_on="copy"):
        assert caught(bridge.zeros(3)) == "caught"


@pytest.mark.skipif(MONITORING, reason="sys.monitoring goes on behind an error")
def test_fail_on_ends_the_watch_of_a_thread_on_311():
    """CPython takes the profile function away that raises; the table does not blame the program."""
    t = bridge.zeros(3)
    with bridge.watch(fail_on="copy") as exchanges:
        for _ in range(2):
            with contextlib.suppress(bridge.ExchangeError):
                made = np.array(t)  # noqa: F841
    assert sum(row.calls for row in exchanges) == 1
    assert "an error in it (fail_on, or the recursion limit) has ended" in str(exchanges)


def test_fail_on_inside_of_another_watch():
    t = bridge.zeros(3)
    with bridge.watch() as outer:
        caught(t)
        with bridge.watch(fail_on="copy"):
            assert caught(t) == "caught"
        if MONITORING:  # on 3.11 an error ends the watch of its thread
            assert len(caught(t)) == 3
            assert sum(row.calls for row in outer) == 3


@pytest.mark.parametrize("where", ["with", "finally", "loop"])
@pytest.mark.parametrize("call", ["np.array(t)", "np.asarray(t, dtype='float64')"])
def test_fail_on_leaves_out_no_end_of_a_block(call, where):
    """An error behind the call, where the result is read, comes at the end of the watch."""
    body = {
        "with": f"    with lock:\n        made = {call}\n",
        "finally": f"    lock.acquire()\n    try:\n        made = {call}\n"
        "    finally:\n        lock.release()\n",
        "loop": f"    for _ in range(2):\n        with lock:\n            made = {call}\n",
    }[where]
    lock = threading.Lock()
    scope = {"np": np, "t": bridge.zeros(3, "float32"), "lock": lock}
    exec(compile(f"def program():\n{body}", "program.py", "exec"), scope)
    with (
        pytest.raises(bridge.ExchangeError, match=r"program\.py:\d, in program"),
        bridge.watch(fail_on="copy"),
    ):
        scope["program"]()
    assert not lock.locked()


def test_our_own_moves_have_the_reason_of_their_plan(device):
    with bridge.watch() as exchanges:
        bridge.to_device(np.zeros(3), device)
    (row,) = exchanges.rows
    plan = bridge.plan(np.zeros(3), device)
    assert (row.result == "shared") == (plan.nbytes == 0)
    if row.result != "shared":  # where it is, nobody asks why
        assert row.note == plan.steps[-1].reason


@pytest.mark.skipif(not MONITORING, reason="CPython 3.11 does not see this result")
def test_a_result_that_goes_into_a_method_of_another_array():
    """It is not taken for that array; what a function of a module gets is seen."""
    torch = peer("torch")
    a, t = np.zeros(3, "float32"), torch.zeros(3)

    def program():
        t.add_(torch.as_tensor(a))
        torch.neg(torch.as_tensor(a))
        torch.as_tensor(a).neg()

    with bridge.watch() as exchanges:
        program()
    assert [row.result for row in sorted(exchanges, key=lambda row: row.line)] == [
        *("not seen", "shared", "shared"),
    ]


@pytest.mark.skipif(not MONITORING, reason="sys.monitoring came with CPython 3.12")
def test_a_method_in_a_local_variable_that_is_another_one_in_the_next_call():
    class Task:
        def __init__(self, function):
            self.function = function

    def run(task):
        function = task.function
        return function(np.zeros(3))

    with bridge.watch() as exchanges:
        for function in (len, bridge.asarray, np.shape, bridge.from_dlpack):
            run(Task(function))
    assert sum(row.calls for row in exchanges) == 2


# What it must not do ------------------------------------------------------------------------


def test_no_array_is_kept():
    torch = peer("torch")

    def program():
        a = np.zeros(1000)
        t = torch.as_tensor(a)
        b = np.asarray(t)
        seen = weakref.ref(a), weakref.ref(t), weakref.ref(b)
        del a, t, b
        gc.collect()
        return [each() is not None for each in seen]

    with bridge.watch() as exchanges:
        # CPython 3.11 keeps the variables of a running function for each sys.setprofile.
        alive = program() if MONITORING else [False]
    assert not any(alive)
    assert len(exchanges.rows) == 2 * MONITORING


def test_memory_does_not_grow():
    a = np.zeros(4)
    with bridge.watch() as exchanges:
        for _ in range(100):
            take(a)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(20_000):
                take(a)
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
    assert sum(row.calls for row in exchanges) == 20_100
    assert grown < 20_000


def test_memory_does_not_grow_with_code_that_is_compiled_anew():
    def evaluated(n):
        for _ in range(n):
            scope = {"function": bridge.asarray, "x": np.zeros(1)}
            exec(compile("made = function(x)", "same.py", "exec"), scope)

    with bridge.watch() as exchanges:
        evaluated(50)
        gc.collect()
        tracemalloc.start()
        try:
            evaluated(500)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    (row,) = exchanges.rows
    assert row.calls == 550
    assert grown < 50_000


def test_exceptions_of_descriptions_do_not_reach_the_program(monkeypatch):
    from dlbridge.watching import exchanges as module

    def wrong(_kind, _x):
        raise OSError("an exception in the table's own code")

    monkeypatch.setattr(module, "what_of", wrong)
    with bridge.watch() as exchanges:
        assert take(np.zeros(3)).shape == (3,)
    assert exchanges.rows == []
    assert "OSError: an exception in the table's own code" in str(exchanges)


def test_an_array_that_does_not_answer_where_others_of_its_class_did(monkeypatch):
    from dlbridge.watching import arrays

    def refused(_x):
        raise RuntimeError("a sparse tensor has no nbytes")

    with bridge.watch() as exchanges:
        for turn in range(5):
            kind = arrays.kinds.get(np.ndarray)
            if turn in {2, 4}:
                monkeypatch.setattr(kind, "look" if turn == 2 else "address", refused)
            take(np.zeros(3))
            monkeypatch.undo()
    assert sum(row.calls for row in exchanges) == 5
    assert "sparse" not in str(exchanges)


def test_exceptions_of_the_program_pass():
    with bridge.watch() as exchanges:
        for _ in range(3):
            with pytest.raises(TypeError, match="is not a tensor"):
                take(object())
        take(np.zeros(2))
    assert sum(row.calls for row in exchanges) == 1


class Unhashable:
    __hash__ = None

    def __call__(self, x):
        return take(x)


class Lies:
    """A callable whose hash and comparison raise."""

    def __hash__(self):
        raise RuntimeError("no hash")

    def __eq__(self, other):
        raise RuntimeError("not to be compared")

    def __call__(self, x):
        return take(x)


class Proxy:
    """A callable that stands for another one, and raises when it is asked for anything else."""

    def __getattribute__(self, name):
        raise RuntimeError(f"asked for {name}")

    def __hash__(self):
        raise SystemExit("asked for its hash")

    def __call__(self, x):
        return take(x)


class Meta(type):
    def __eq__(cls, other):
        raise RuntimeError("a class is compared")

    def __hash__(cls):
        raise SystemExit("a class is asked for its hash")


class OfMeta(metaclass=Meta):
    def __call__(self, x):
        return take(x)


@pytest.mark.parametrize("name", ["Unhashable", "Lies", "Proxy", "OfMeta"])
def test_callables_are_not_asked_for_anything(name):
    """Neither hash nor class nor name: that would run code of the program."""
    callee = globals()[name]()

    def both(function, x):
        function(x)
        return function(np.asarray(bridge.asarray(x)))

    with bridge.watch() as exchanges:
        for function in (len, callee, np.shape):
            function(np.zeros(3))
        both(callee, np.zeros(3))
    made = [row for row in exchanges if row.function == "take"]
    assert [(row.target, row.result, row.calls) for row in made] == [
        ("dlbridge.Tensor", "shared", 3)
    ]
    given = [row for row in exchanges if row.target == "numpy.ndarray"]
    assert [row.result for row in given] == ["shared" if MONITORING else "not seen"]
    assert "could not be read" not in str(exchanges)


def test_a_callable_that_says_it_is_another_one():
    class Equal:
        def __hash__(self):
            return hash(np.asarray)

        def __eq__(self, other):
            return True

        def __call__(self, x):
            return x.tolist()

    with bridge.watch() as exchanges:
        for function in (len, Equal()):
            function(bridge.zeros(3))
    assert [row.target for row in exchanges] == ["list"]


def test_a_method_of_a_parent_class():
    """CPython tells of `super()` at an instruction that is no call."""

    class Parent:
        def wrap(self, x):
            return bridge.asarray(x)

    class Child(Parent):
        def wrap(self, x):
            return super().wrap(x)

    with bridge.watch() as exchanges:
        for _ in range(3):
            Child().wrap(np.zeros(3))
    assert [(row.calls, row.result) for row in exchanges] == [(3, "shared")]
    assert "could not be read" not in str(exchanges)


def test_one_place_that_calls_several_functions():
    with bridge.watch() as exchanges:
        for function in (len, bridge.asarray, np.shape, bridge.from_dlpack):
            function(np.zeros(3))
    (row,) = exchanges.rows
    assert row.calls == 2


def test_a_variable_that_calls_something_else_later():
    """The place is not switched off at its first callee, which is of no interest."""

    def apply(function, x):
        return function(x)

    with bridge.watch() as exchanges:
        for _ in range(300):
            apply(len, [])
        apply(bridge.asarray, np.zeros(3))
    (row,) = exchanges.rows
    assert (row.calls, row.function.rpartition(".")[2]) == (1, "apply")


def test_a_parameter_that_calls_something_else_later():
    """Its place is switched off in a loop, and looked at again where its function starts."""

    def loop(function, x, turns):
        for _ in range(turns):
            made = function(x)
        return made

    def both(function, other):
        for _ in range(300):
            other(())
            if function is bridge.asarray:
                function(np.zeros(3))
        if function is len:
            both(bridge.asarray, len)

    with bridge.watch() as exchanges:
        for function in (len, bridge.asarray, len, bridge.from_dlpack):
            loop(function, np.zeros(2), 300)
        both(len, len)
    counted = {(row.function.rpartition(".")[2], row.calls) for row in exchanges}
    assert counted == {("loop", 600), ("both", 300)}


@pytest.mark.skipif(not MONITORING, reason="sys.monitoring came with CPython 3.12")
def test_a_result_that_goes_into_the_call_of_a_parameter():
    """Its call was switched off, and is asked for again when an exchange ends there."""

    def go(function, x):
        return function(np.asarray(x))

    with bridge.watch() as exchanges:
        for _ in range(150):
            go(len, np.zeros(3))
        for _ in range(5):
            go(len, bridge.zeros(3))
    assert [row.calls for row in exchanges] == [5]


def test_an_array_of_ours_that_numpy_takes_counts_once():
    """numpy calls a method of the Tensor meanwhile."""
    t = bridge.zeros(3)
    with bridge.watch() as exchanges:
        for _ in range(4):
            y = np.asarray(t)
    assert [(row.calls, len(y)) for row in exchanges] == [(4, 3)]


def test_a_copy_of_what_is_in_no_variable():
    """On CPython 3.11 the array is not seen at the call, but at a method that numpy calls."""
    t = bridge.zeros(3)
    with bridge.watch() as exchanges:
        made = np.array(t[:2])
    assert len(made) == 2
    assert [row.result for row in exchanges] == ["copied" if MONITORING else "not seen"]


def test_a_parameter_of_a_function_that_runs_twice_at_once():
    """What it calls in the outer call is seen, though the inner one calls something else."""

    def loop(function, turns, inner=None):
        if inner is not None:
            inner()
        for _ in range(turns):
            function(np.zeros(2))

    with bridge.watch() as exchanges:
        loop(bridge.asarray, 5, lambda: loop(len, 300))
    (row,) = exchanges.rows
    assert row.calls == 5


class Steps:
    def one(self, x):
        return x


@pytest.mark.skipif(not MONITORING, reason="sys.monitoring came with CPython 3.12")
@pytest.mark.parametrize(
    "callee", [abs, {}.get, Steps().one, Steps().one.__call__, str, functools.partial(abs)]
)
def test_a_tight_loop_makes_few_events(monkeypatch, callee):
    """Costs: a tight loop of plain Python calls, whose callee is a parameter, too."""
    from dlbridge.watching import monitoring

    seen, original = [], monitoring.Monitor._call_event

    def counting(self):
        on_call = original(self)

        def counted(code, *arguments):
            seen.append(code.co_name)
            return on_call(code, *arguments)

        return counted

    def loop(function):
        for _ in range(10_000):
            function(1)

    monkeypatch.setattr(monitoring.Monitor, "_call_event", counting)
    monkeypatch.delitem(sys.modules, "greenlet", raising=False)
    with bridge.watch():
        for _ in range(3):
            loop(callee)
    assert seen.count("loop") < 500


# Where it is ------------------------------------------------------------------------------


def test_generators_and_coroutines_keep_their_line():
    def generator():
        yield take(np.zeros(1))

    async def coroutine():
        await asyncio.sleep(0)
        return bridge.asarray(np.zeros(1))

    async def main():
        return await asyncio.gather(coroutine(), coroutine())

    with bridge.watch() as exchanges:
        list(generator())
        asyncio.run(main())
    counted = {(row.function.rpartition(".")[2], row.calls) for row in exchanges}
    assert counted == {("take", 1), ("coroutine", 2)}


def test_threads():
    def work():
        for _ in range(50):
            take(np.zeros(3))

    with bridge.watch() as every, bridge.watch(threads="this") as own:
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
    assert (sum(row.calls for row in every), sum(row.calls for row in own)) == (450, 50)


def test_nested_watches():
    with bridge.watch() as outer:
        take(np.zeros(3))
        with bridge.watch() as inner:
            take(np.zeros(3))
        take(np.zeros(3))
    assert (outer.rows[0].calls, inner.rows[0].calls) == (3, 1)


def test_a_table_goes_on_where_it_is_entered_again():
    exchanges = bridge.watch()
    for _ in range(2):
        with exchanges:
            take(np.zeros(3))
    assert exchanges.rows[0].calls == 2


def test_a_library_that_is_imported_while_it_is_watched(tmp_path):
    """Its description comes by the entry point that there is."""
    (tmp_path / "toylib.py").write_text(
        "class Array:\n    def __init__(self, x): self.x = x\n"
        "    def __dlpack_device__(self): return (1, 0)\n"
        "    def __dlpack__(self, **keywords): return self.x.__dlpack__(**keywords)\n"
        "def wrap(x): return Array(x)\n"
    )
    (tmp_path / "toylib_bridge.py").write_text(
        "from dlbridge.libraries import Exchange, Library\n"
        'LIBRARY = Library("toylib", ("toylib.Array",), exchanges=(Exchange("wrap", "toylib.Array"),))'
    )
    install(tmp_path, "toylib", "[dlbridge.libraries]\ntoylib = toylib_bridge:LIBRARY")
    run_script(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import dlbridge as bridge
        with bridge.watch() as exchanges:
            import numpy, toylib
            made = toylib.wrap(numpy.zeros(3))
        (row,) = exchanges.rows
        assert (row.source, row.target, row.result) == ("numpy.ndarray", "toylib.Array", "shared"), row
        """
    )


def test_arrays_of_a_device_whose_address_is_not_known(tmp_path):
    """They are not said to be copied: jax does not tell an address of a GPU without a wait."""
    for name, address in (("toya", 0), ("toyb", 4096)):
        (tmp_path / f"{name}.py").write_text(
            "class Array: pass\ndef take(x):\n    made = Array()\n    return made\n"
        )
        (tmp_path / f"{name}_bridge.py").write_text(
            "from dlbridge.libraries import Exchange, Library\n"
            f'LIBRARY = Library("{name}", ("{name}.Array",), exchanges=(Exchange("take", "{name}.Array"),),\n'
            f'    look=(lambda x: ("gpu:0", "float32", (3,), 12), lambda x: {address}))\n'
        )
        install(tmp_path, name, f"[dlbridge.libraries]\n{name} = {name}_bridge:LIBRARY")
    run_script(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import numpy, toya, toyb
        import dlbridge as bridge
        with bridge.watch() as exchanges:
            made = toyb.take(toya.Array())
        assert [(row.result, row.nbytes) for row in exchanges] == [("not seen", 0)], exchanges
        """
    )


def test_a_thread_that_imports_a_library_whose_description_imports_it(tmp_path):
    """Nothing waits for another thread's import, and no import for the watch."""
    (tmp_path / "gate.py").write_text("import threading\nclosed = threading.Lock()\n")
    (tmp_path / "toylib.py").write_text(
        "import gate\n"
        "with gate.closed: pass\n"  # no event: what comes next is its first call
        "len(())\n"
        "class Array(list): pass\n"
        "def wrap(x): return Array(x)\n"
    )
    (tmp_path / "toylib_bridge.py").write_text(
        "import gate\n"
        "if gate.closed.locked(): gate.closed.release()\n"
        "import toylib\n"
        "from dlbridge.libraries import Exchange, Library\n"
        'LIBRARY = Library("toylib", ("toylib.Array",), exchanges=(Exchange("wrap", "toylib.Array"),))'
    )
    install(tmp_path, "toylib", "[dlbridge.libraries]\ntoylib = toylib_bridge:LIBRARY")
    run_script(
        f"""
        import sys, threading, time
        sys.path.insert(0, {str(tmp_path)!r})
        import numpy, gate
        import dlbridge as bridge

        def work():
            len(())
            if gate.closed.locked():
                gate.closed.release()

        gate.closed.acquire()
        with bridge.watch() as exchanges:
            first = threading.Thread(target=__import__, args=("toylib",), daemon=True)
            first.start()
            while "toylib" not in sys.modules:
                time.sleep(0.001)
            second = threading.Thread(target=work, daemon=True)
            second.start()
            for each in (first, second):
                each.join(20)  # no verdict: it ends at once
                assert not each.is_alive()
            toylib = sys.modules["toylib"]
            toylib.wrap(numpy.zeros(3))
        assert [row.target for row in exchanges] == ["toylib.Array"], exchanges
        """
    )


def test_import_dlbridge_does_not_load_it():
    run_script(
        """
        import sys, dlbridge
        assert not [name for name in sys.modules if name.startswith("dlbridge.watching")]
        """
    )


# Others that watch, and ends ---------------------------------------------------------------


PROGRAM = """
import os, sys, threading
import numpy as np
import dlbridge as bridge

def take(n=1):
    for _ in range(n):
        made = bridge.asarray(np.zeros(3))
    return made
"""


def program(text, **keywords):
    return run_script(PROGRAM + text, **keywords)


@pytest.mark.skipif(not MONITORING, reason="sys.monitoring came with CPython 3.12")
def test_tool_ids_of_others():
    program(
        """
for tool in (3, 4):
    sys.monitoring.use_tool_id(tool, f"other {tool}")
with bridge.watch() as exchanges:
    take()
assert len(exchanges) == 1
sys.monitoring.use_tool_id(5, "an optimizer")
sys.monitoring.use_tool_id(2, "a profiler")
try:
    with bridge.watch():
        take()
except bridge.Error as error:
    assert "2: a profiler, 3: other 3, 4: other 4, 5: an optimizer" in str(error), error
else:
    raise AssertionError
sys.monitoring.free_tool_id(4)
with bridge.watch() as exchanges:
    take()
assert len(exchanges) == 1
assert sys.monitoring.get_tool(4) is None
        """
    )


@pytest.mark.skipif(not MONITORING, reason="sys.monitoring came with CPython 3.12")
@pytest.mark.parametrize("then", ["", "sys.monitoring.use_tool_id(4, 'its own')"])
def test_a_program_that_frees_the_tool_id(then):
    """The table says so, the id is left to the program, and the next watch works."""
    program(
        f"""
with bridge.watch() as exchanges:
    take()
    sys.monitoring.free_tool_id(4)
    {then}
    take()
assert exchanges.rows[0].calls >= 1, exchanges
assert "the program has freed the tool id" in str(exchanges), exchanges
assert sys.monitoring.get_tool(4) == ({then!r} and "its own" or None)
with bridge.watch() as exchanges:
    take(3)
assert exchanges.rows[0].calls == 3, exchanges
        """
    )


def test_programs_that_set_a_profile_function():
    program(
        """
seen = []
def profile(frame, event, arg): seen.append(event)
with bridge.watch() as exchanges:
    take()
    sys.setprofile(profile)
    take()
    sys.setprofile(None)
assert seen
if sys.version_info >= (3, 12):
    assert exchanges.rows[0].calls == 2
else:
    assert exchanges.rows[0].calls == 1
    assert "the program has called sys.setprofile" in str(exchanges), exchanges
    sys.setprofile(profile)
    try:
        bridge.watch().__enter__()
    except bridge.Error as error:
        assert "profile" in str(error)
    else:
        raise AssertionError
        """
    )


def test_a_trace_function_beside_it():
    program(
        """
lines = []
def trace(frame, event, arg):
    if frame.f_code is take.__code__:
        lines.append(frame.f_locals.get("n"))
    return trace
sys.settrace(trace)
with bridge.watch() as exchanges:
    take(3)
sys.settrace(None)
assert exchanges.rows[0].calls == 3
assert lines.count(3) > 3
        """
    )


def test_a_fork_while_it_watches():
    program(
        """
with bridge.watch() as exchanges:
    take()
    child = os.fork()
    take(2)
    if not child:
        os._exit(sum(row.calls for row in exchanges))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
take()
assert exchanges.rows[0].calls == 3
        """
    )


def test_an_exit_at_once_while_it_watches():
    program("bridge.watch().__enter__()\ntake()\nos._exit(0)\n")


def test_the_end_of_the_process_while_it_watches():
    program(
        """
bridge.watch().__enter__()
threading.Thread(target=take, args=(20_000,), daemon=True).start()
take()
        """
    )


def test_a_thousand_threads():
    out = program(
        """
threading.stack_size(1 << 18)
barrier = threading.Barrier(1000)
def work():
    barrier.wait()
    take(5)
with bridge.watch() as exchanges:
    threads = [threading.Thread(target=work) for _ in range(1000)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
print(sum(row.calls for row in exchanges), len(exchanges))
        """
    )
    assert out.split() == ["5000", "1"]


def test_watches_of_several_threads_at_once():
    program(
        """
found = []
def work():
    for _ in range(20):
        with bridge.watch(threads="this") as exchanges:
            take(3)
        found.append(sum(row.calls for row in exchanges))
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
if sys.version_info >= (3, 12):
    assert found == [3] * 160, found
        """
    )


def test_an_exception_of_a_signal_handler_passes():
    program(
        """
import signal
class Alarm(Exception): pass
def handler(*_): raise Alarm
signal.signal(signal.SIGALRM, handler)
caught = 0
with bridge.watch() as exchanges:
    take()  # CPython's imports lose exceptions of handlers, in a callback of a weak reference
    for _ in range(200):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
            while True:
                take()
        except Alarm:
            caught += 1
assert caught == 200
assert "could not be read" not in str(exchanges), exchanges
        """
    )


def test_an_exception_of_a_signal_handler_passes_where_a_class_is_looked_up():
    program(
        """
import signal
from dlbridge.watching import arrays
class Alarm(Exception): pass
def handler(*_): raise Alarm
signal.signal(signal.SIGALRM, handler)
arrays.library_of = lambda cls: signal.raise_signal(signal.SIGALRM)
with bridge.watch() as exchanges:
    try:
        take()
    except Alarm:
        pass
    else:
        raise AssertionError
        """
    )


def test_destructors_of_the_program_run_while_no_lock_is_held():
    program(
        """
import gc
from dlbridge.watching import table

program_lock, collecting = threading.Lock(), threading.Event()

class Waits:
    def __del__(self):
        collecting.set()
        if not program_lock.acquire(timeout=20):  # no verdict: the destructor would wait for ever
            os._exit(1)
        program_lock.release()

def work():
    with program_lock:
        assert collecting.wait(20)  # no verdict: it comes at once
        take()

common = table._common
def collected(*shapes):
    if not collecting.is_set():
        made = Waits()
        del made
    return common(*shapes)
table._common = collected
with bridge.watch() as exchanges:
    thread = threading.Thread(target=work)
    thread.start()
    while not program_lock.locked():
        pass
    for extent in (1, 2):
        made = bridge.asarray(np.zeros(extent))
    thread.join()
assert sum(row.calls for row in exchanges) == 3
        """
    )


def test_a_million_exchanges_take_no_memory():
    """Costs: no growth of memory over a million exchanges."""
    program(
        """
import gc

def exchange(a, n):
    for _ in range(n):
        made = a.tolist()

def held():
    gc.collect()
    return sys.getallocatedblocks(), int(open("/proc/self/statm").read().split()[1])

with bridge.watch() as exchanges:
    exchange(np.zeros(1), 20_000)
    held()  # the first call imports, and keeps what it needs
    blocks, pages = held()
    exchange(np.zeros(1), 1_000_000)
    now = held()
assert exchanges.rows[0].calls == 1_020_000
assert now[0] - blocks < 100 and now[1] - pages < 256, (blocks, pages, now)
        """
    )


def test_coverage_beside_it(tmp_path):
    if not find_spec("coverage"):
        pytest.skip("coverage is not installed here")
    (tmp_path / "mine.py").write_text(
        PROGRAM
        + "with bridge.watch() as exchanges:\n    take(300)\n"
        + "print(sum(row.calls for row in exchanges))\n"
        + "if exchanges is None:\n    take()\n"
    )
    variables = environment() | {"COVERAGE_CORE": "sysmon" if MONITORING else "ctrace"}
    for arguments, said in ((["run", "mine.py"], "300"), (["report", "-m", "mine.py"], " 14")):
        done = subprocess.run(
            [sys.executable, "-m", "coverage", *arguments],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert said in done.stdout


def test_a_subinterpreter_beside_it():
    """Its calls are not those of the program that watches, and hinder nothing."""
    program(
        """
try:
    import _interpreters as interpreters
    run = interpreters.exec
except ImportError:
    import _xxsubinterpreters as interpreters
    run = interpreters.run_string

with bridge.watch() as exchanges:
    other = interpreters.create()
    take(2)
    assert run(other, "def f(g):\\n for _ in range(300): g(1)\\nf(abs)\\nimport json") is None
    take(2)
    interpreters.destroy(other)
    take(2)
assert exchanges.rows[0].calls == 6, exchanges
        """
    )


def test_greenlets_that_change_between_an_exchange_and_its_result():
    if not find_spec("gevent"):
        pytest.skip("gevent is not installed here")
    run_script(
        PROGRAM
        + """
import gevent
class Slow:
    def __init__(self): self.x = np.zeros(3)
    def __dlpack_device__(self): return (1, 0)
    def __dlpack__(self, **keywords):
        gevent.sleep(0)
        return self.x.__dlpack__(**keywords)
def work():
    for _ in range(20):
        made = bridge.from_dlpack(np.zeros(3))
        gevent.sleep(0)
with bridge.watch() as exchanges:
    gevent.joinall([gevent.spawn(work) for _ in range(50)])
assert sum(row.calls for row in exchanges) == 1000, exchanges
"""
    )
