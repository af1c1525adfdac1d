"""Loading, exit, threads and races: what can only be seen in a process of its own."""

from __future__ import annotations

import pytest

from dlbridge import ffi

BARE = ""  # no prelude


def test_import_is_light(run_script):
    code, output = run_script(
        """
        import sys
        import dlbridge.ffi
        heavy = {"numpy", "torch", "jax", "tvm_ffi", "_cffi_backend", "importlib.metadata"}
        slow = {"dataclasses", "inspect", "pathlib"}
        print(sorted((heavy | slow) & set(sys.modules)))
        dlbridge.ffi.get_global_func("ffi.String")("text")
        heavy.discard("_cffi_backend")
        print(sorted((heavy | slow) & set(sys.modules)))
        print([name for name in sys.modules if name.startswith("dlbridge_")])
        """,
        prelude=BARE,
    )
    assert (code, output) == (0, "[]\n[]\n[]\n")


def test_chosen_library(run_script, tmp_path):
    code, output = run_script(
        """
        from dlbridge import LibraryUnavailable, ffi
        try:
            ffi.version
        except LibraryUnavailable as exc:
            print(exc)
        """,
        prelude=BARE,
        env={"DLBRIDGE_TVM_FFI_LIB": str(tmp_path / "libnothing.so")},
    )
    assert code == 0
    assert "$DLBRIDGE_TVM_FFI_LIB" in output
    assert "libnothing.so" in output


def test_library_without_the_symbols_is_refused_by_name(run_script):
    code, output = run_script(
        """
        from dlbridge import LibraryUnavailable, ffi
        try:
            ffi.version
        except LibraryUnavailable as exc:
            print(exc)
        """,
        prelude=BARE,
        env={"DLBRIDGE_TVM_FFI_LIB": "libc.so.6"},
    )
    assert code == 0
    assert "lacks TVMFFIObjectIncRef" in output


def test_failure_to_load_can_be_mended(run_script):
    code, output = run_script(
        """
        import os
        from dlbridge import LibraryUnavailable, ffi
        good = os.environ.pop("DLBRIDGE_TVM_FFI_LIB", None)
        for path in ("/no/such/library.so", good):
            if path:
                os.environ["DLBRIDGE_TVM_FFI_LIB"] = path
            else:
                del os.environ["DLBRIDGE_TVM_FFI_LIB"]
            try:
                print(ffi.get_global_func("ffi.String")("loaded"))
            except LibraryUnavailable:
                print("unavailable")
        """,
        prelude=BARE,
    )
    assert (code, output) == (0, "unavailable\nloaded\n")


def test_faulthandler_still_works(run_script):  # 4.11
    code, output = run_script("""
        ffi.version
        import ctypes
        ctypes.string_at(0)
    """)
    assert code == "SIGSEGV"
    assert "Fatal Python error: Segmentation fault" in output
    assert "string_at" in output


@pytest.mark.parametrize("target", ["function", "raise", "global", "opaque", "error", "bound"])
def test_exit_with_things_left_behind(run_script, target):  # 4.8
    code, output = run_script(f"""
        class Thing:
            def __del__(self):
                pass
        thing = Thing()
        target = {target!r}
        if target == "function":
            kept = ffi.convert_func(lambda: thing)
            kept()
        elif target == "raise":
            def fail():
                raise ValueError("left")
            try:
                testing("apply")(fail)
            except ValueError as exc:
                kept = exc
        elif target == "global":
            ffi.register_global_func("dlbridge.left", lambda: thing)
        elif target == "opaque":
            kept = testing("echo").bind(thing)
            ffi.register_global_func("dlbridge.left", lambda: thing)
        elif target == "error":
            kept = ffi.Error("ValueError", "kept")
        elif target == "bound":
            kept = ffi.convert_func(lambda x: x).bind(thing)
            kept()
        import sys
        sys.kept = kept if target != "global" else None
    """)
    assert (code, output) == (0, "")


@pytest.mark.parametrize("turn", range(3))
def test_daemon_thread_in_a_callback_at_exit(run_script, turn):  # 4.8c: tvm_ffi aborts
    code, output = run_script("""
        import threading, time
        f = ffi.convert_func(lambda: time.sleep(0.003))
        def loop():
            while True:
                f()
        for _ in range(3):
            threading.Thread(target=loop, daemon=True).start()
        time.sleep(0.1)
    """)
    assert (code, output) == (0, "")


@pytest.mark.parametrize("turns", [16, pytest.param(100, marks=pytest.mark.stress)])
def test_exit_while_daemon_threads_free_objects(run_script, turns):
    """Without `_end_destructors` about one exit of four ends by SIGABRT."""
    script = """
        import sys, threading, time
        import numpy as np
        sys.setswitchinterval(1e-6)
        keep = ffi.get_global_func("ffi.Array")
        class Thing:
            pass
        def work():
            while True:
                keep(np.ones(3)), keep(Thing()), keep(lambda: 1), keep(ffi.readonly(np.ones(3)))
        for _ in range(6):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.02)
    """
    assert [run_script(script) for _ in range(turns)] == [(0, "")] * turns


RACE = """
import gc, random, sys, threading, time
echo, apply, fail = testing("echo"), testing("apply"), testing("test_raise_error")
stop = time.monotonic() + {seconds}
turns, problems = [0] * 4, []

class Mine(Exception):
    pass

def work(me):
    random.seed(me)
    while not turns[me] or time.monotonic() < stop:
        name = f"race.{{me}}.{{random.randrange(50)}}"
        shared = f"race.shared.{{random.randrange(20)}}"
        ffi.register_global_func(name, lambda x: x * 2, override=True)
        ffi.register_global_func(shared, lambda x: x + 1, override=True)
        f = ffi.get_global_func(name)
        if f(21) != 42:
            problems.append("wrong result")
        other = ffi.get_global_func(shared, allow_missing=True)
        if other is not None and other(1) != 2:
            problems.append("wrong shared result")
        if random.random() < 0.3:
            ffi.remove_global_func(shared)
        if random.random() < 0.05:
            ffi.list_global_func_names()
        def raising(x):
            raise Mine(me, x)
        try:
            apply(raising, name)
            problems.append("no error")
        except Mine as exc:
            if exc.args != (me, name):
                problems.append("somebody else's error")
        try:
            fail("ValueError", name)
        except ValueError as exc:
            if exc.args != (name,):
                problems.append("somebody else's message")
        text = name * 5
        if echo(text) != text:
            problems.append("somebody else's text")
        turns[me] += 1
        if turns[me] % 200 == 0:
            gc.collect()

threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(problems[:3], min(turns) > 0)
"""


def test_race(run_script):  # 4.2: through cffi alone the registry crashes within 4 s
    code, output = run_script(RACE.format(seconds=5))
    assert (code, output) == (0, "[] True\n")


@pytest.mark.stress
def test_race_for_a_minute(run_script):
    code, output = run_script(RACE.format(seconds=60))
    assert (code, output) == (0, "[] True\n")


def test_one_wrapper_per_object_in_threads(run_script):
    code, output = run_script("""
        import threading, weakref
        echo = testing("echo")
        problems = []
        slot = [ffi.Error("ValueError", "shared")]
        def look():
            for _ in range(20000):
                error = slot[0]
                if echo(error) is not error:
                    problems.append("two wrappers")
        def change():
            for i in range(20000):
                slot[0] = ffi.Error("ValueError", str(i))
        threads = [threading.Thread(target=f) for f in (look, look, change, look)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        from dlbridge.ffi import objects
        slot.clear()
        print(problems[:3], len(objects._wrappers) < 50)
    """)
    assert (code, output) == (0, "[] True\n")


def test_garbage_in_a_cycle_with_a_finalizer(run_script):
    # A finalizer in a cycle may still use an object that is garbage with it.
    code, output = run_script("""
        import gc
        echo = testing("echo")
        class Owner:
            def __init__(self):
                self.me = self
                self.error = ffi.Error("ValueError", "still there")
                self.function = ffi.convert_func(lambda: 7)
            def __del__(self):
                seen.append((self.error.message, self.function(), echo(self.error) is self.error))
                kept.append(self.error)
        seen, kept = [], []
        Owner()
        gc.collect()
        print(seen, kept[0].message)
    """)
    assert code == 0
    assert output.startswith("[('still there', 7, ")
    assert output.endswith("still there\n")


def test_threads_under_a_tracer(run_script):
    # A Python trace function lets other threads in between any two lines.
    code, output = run_script("""
        import sys, threading, time
        f = ffi.convert_func(lambda x: [x])
        echo = testing("echo")
        step = ffi.convert_func(lambda: ffi.Error("ValueError", "a new one")).bind()
        problems, results = [], []
        def trace(frame, event, argument):
            if frame.f_code.co_name in ("call", "__call__"):
                time.sleep(1e-5)  # gives the GIL away
                return trace
        def work(me):
            sys.settrace(trace)
            for i in range(60):
                text = f"thread {me}, turn {i}"
                if echo(text) != text or list(f(text)) != [text]:
                    problems.append(text)
                results.append(step())
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(problems[:3], len(set(map(id, results))))
    """)
    assert (code, output) == (0, "[] 240\n")


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ffi.nothing


# --- Everything alive at the end: notes, 4.8 ------------------------------------------

ALIVE = """
import threading, time
import numpy as np

class Thing:
    def __init__(self, holder):
        self.holder = holder
    def __del__(self):
        list(self.holder)

shared = ffi.List()
shared[:] = [Thing(shared), lambda: shared, np.arange(3), shared]
table = ffi.Dict({"shared": shared, "function": len})
array = ffi.Array([ffi.Map({"table": table}), Thing(shared)])
testing("nop")
holder = ffi.object_class("testing.TestDeepCopyEdges")(array, shared)
holder.v_any = [holder, Thing(shared)]
key, shape, moved = ffi.StructuralKey([1]), ffi.Shape((1, 2)), ffi.List([1])._move()

@ffi.register_object("testing.TestIntPair")
class Pair(ffi.Object):
    pass

pair = Pair(1, 2)
ffi.register_global_func("test.alive", lambda: (shared, table, array, pair))
module = ffi.load_module(ffi.library_path.replace("libtvm_ffi.", "libtvm_ffi_testing."))
function = module.testing_dll_schema_id_int

def work():
    while True:
        table["again"] = 1
        list(table.items()), repr(array), holder.v_obj, list(ffi.Array(["a longer text"] * 5))
        shared.append(pair)
        shared.pop()

for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
print("end")
"""


@pytest.mark.parametrize("turn", range(3))
def test_exit_with_everything_alive(run_script, turn):
    assert run_script(ALIVE) == (0, "end\n")
