"""Threads that use the same things of the FFI at once."""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import time
import warnings
from typing import Any

from dlbridge import ffi
from dlbridge.ffi import objects

from .scene import at_once, raised, testing, turns


def race(seconds: Any) -> None:
    """The registry, callbacks and errors. Through cffi alone the registry crashes within 4 s."""
    echo, apply, fail = testing("echo"), testing("apply"), testing("test_raise_error")

    class Mine(Exception):
        pass

    def work(me: Any) -> None:
        chance = random.Random(me)
        for turn in turns(float(seconds)):
            name = f"race.{me}.{chance.randrange(50)}"
            shared = f"race.shared.{chance.randrange(20)}"
            ffi.register_global_func(name, lambda x: x * 2, override=True)
            ffi.register_global_func(shared, lambda x: x + 1, override=True)
            assert ffi.get_global_func(name)(21) == 42
            other = ffi.get_global_func(shared, allow_missing=True)
            assert other is None or other(1) == 2
            if chance.random() < 0.3:
                ffi.remove_global_func(shared)
            if chance.random() < 0.05:
                ffi.list_global_func_names()

            def raising(x: Any) -> None:
                raise Mine(me, x)

            assert raised(Mine, apply, raising, name).args == (me, name)
            assert raised(ValueError, fail, "ValueError", name).args == (name,)
            assert echo(name * 5) == name * 5
            if turn % 200 == 0:
                gc.collect()

    at_once(*[lambda me=me: work(me) for me in range(4)])


def one_wrapper_per_object() -> None:
    echo, slot = testing("echo"), [ffi.Error("ValueError", "shared")]

    def look() -> None:
        for _ in range(20000):
            error = slot[0]
            assert echo(error) is error

    def change() -> None:
        for i in range(20000):
            slot[0] = ffi.Error("ValueError", str(i))

    at_once(look, look, change, look)
    slot.clear()
    assert len(objects._wrappers) < 50


def traced() -> None:
    """A Python trace function lets other threads in between any two lines."""
    f, echo = ffi.convert_func(lambda x: [x]), testing("echo")
    step = ffi.convert_func(lambda: ffi.Error("ValueError", "a new one")).bind()
    results = []

    def trace(frame: Any, _event: Any, _argument: Any) -> Any:
        if frame.f_code.co_name not in ("call", "step", "__call__"):
            return None
        time.sleep(1e-5)  # gives the GIL away
        return trace

    def work(me: Any) -> None:
        sys.settrace(trace)
        for i in range(60):
            text = f"thread {me}, turn {i}"
            assert echo(text) == text
            assert list(f(text)) == [text]
            results.append(step())

    at_once(*[lambda me=me: work(me) for me in range(4)])
    assert len(set(map(id, results))) == 240


def popitem() -> None:
    sys.setswitchinterval(1e-6)
    for _ in turns(2):
        found: list[Any] = []
        table = ffi.Dict({i: -i for i in range(10)})
        start = threading.Barrier(2)

        def work(table: Any = table, found: Any = found, start: Any = start) -> None:
            start.wait()
            for _ in range(5):
                found.append(table.popitem())

        at_once(work, work)
        assert sorted(found) == [(i, -i) for i in range(10)], found


def containers() -> None:
    """The library's lists and dicts have no lock."""
    sys.setswitchinterval(1e-5)
    values, table = ffi.List(), ffi.Dict()

    def work(me: Any) -> None:
        for turn in turns(4):
            text = f"thread {me}, turn {turn}"
            values.append(text)
            table[turn % 50] = text
            assert all(x.startswith("thread") for x in values)
            for key, value in table.items():
                assert 0 <= key < 50
                assert value.startswith("thread")
            if len(values) > 60:
                values.clear()
            values[3:5] = [text, text]
            del values[::3]
            table.pop(turn % 7, None)
            repr(values), hash(values), values == ["x"]

    at_once(*[lambda me=me: work(me) for me in range(4)])


def fields() -> None:
    sys.setswitchinterval(1e-5)
    testing("nop")
    base = ffi.object_class("testing.TestObjectBase")
    holder = ffi.object_class("testing.TestObjectPtrHolder")(base())

    def work(me: Any) -> None:
        for _ in turns(3):
            holder.value = base(v_i64=me, v_str="a text that is on the heap")
            found = holder.value
            assert 0 <= found.v_i64 < 4
            assert found.v_str == "a text that is on the heap"
            repr(holder)

    at_once(*[lambda me=me: work(me) for me in range(4)])


def modules(library: Any) -> None:
    """The tables of symbols and of loaded modules have no lock."""
    symbol = testing("get_add_one_c_symbol")()

    def work(me: Any) -> None:
        for turn in turns(2):
            ffi.register_system_lib_symbol(f"threads.{me}.{turn % 20}", symbol)
            assert ffi.system_lib(f"threads.{me}.")[str(turn % 20)](1) == 2
            assert ffi.load_module(library).answer() == 42

    at_once(*[lambda me=me: work(me) for me in range(4)])


def backtraces() -> None:
    """One is read, also by forked children, while a thread updates it."""
    warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside a thread, from 3.12 on
    sys.setswitchinterval(1e-6)
    texts = ["a" * 100, "b" * 2000000, "c" * 500000]
    error = ffi.Error("ValueError", "message", texts[0])
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for text in texts:
                error.update_backtrace(text)

    thread = threading.Thread(target=write)
    thread.start()
    for _ in turns(2):
        assert error.backtrace in texts
        assert error.__reduce__()[1][2] in texts
        error.py_error()
    for _ in range(20 if hasattr(os, "fork") else 0):
        child = os.fork()
        if not child:  # the thread may be in the middle of an update
            len(error.backtrace)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    thread.join()


def forks_while_a_mapping_is_listed() -> None:
    """The children's collector is on, as the parent's is."""
    warnings.simplefilter("ignore")
    values, stop = ffi.Map({key: key for key in range(50)}), threading.Event()

    def work() -> None:
        while not stop.is_set():
            list(values)

    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(100):
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 7)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    thread.join()
    assert gc.isenabled()
    gc.disable()
    list(values)
    assert not gc.isenabled()
