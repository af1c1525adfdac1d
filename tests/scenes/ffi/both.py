"""One process that uses tvm_ffi and dlbridge.ffi, in either order of import."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from typing import Any

import numpy as np

from dlbridge import ffi

from .scene import at_once, raised, testing_library, turns


def _import(order: Any) -> Any:
    """The package tvm_ffi, imported before or after the library was loaded for us."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # tvm_ffi would import it; not needed, and slow
    if order == "dlbridge first":
        assert ffi.version
    import tvm_ffi

    assert ffi.library_path == tvm_ffi.LIB._name
    testing_library()
    return tvm_ffi


def functions_and_objects(order: Any) -> None:
    tvm_ffi = _import(order)
    # Functions of one, called by the other.
    ffi.register_global_func("both.ours", lambda x: x + 1)
    tvm_ffi.register_global_func("both.theirs", lambda x: x * 2)
    assert tvm_ffi.get_global_func("both.ours")(41) == 42
    assert ffi.get_global_func("both.theirs")(21) == 42
    assert "both.theirs" in ffi.list_global_func_names()
    ffi.remove_global_func("both.theirs")
    assert tvm_ffi.get_global_func("both.theirs", allow_missing=True) is None

    # Objects pass through both, and Python objects stay themselves.
    thing, array = type("Thing", (), {})(), tvm_ffi.convert([1, 2, 3])
    theirs = tvm_ffi.get_global_func("testing.echo")
    ours = ffi.get_global_func("testing.echo")
    assert ours(thing) is theirs(thing) is thing
    ffi.register_global_func("both.same", lambda x: x)
    assert tvm_ffi.get_global_func("both.same")(thing) is thing
    assert tvm_ffi.get_global_func("both.same")(array).same_as(array)
    assert ours(tvm_ffi.convert(lambda x: x + 5))(1) == 6
    assert ours(theirs) is ours
    tensor = tvm_ffi.from_dlpack(np.arange(3.0))
    assert ours(tensor).tolist() == [0, 1, 2]
    assert theirs(ours(tensor)).shape == (3,)
    mine = ffi.convert_func(lambda x: x + 1)
    assert theirs(mine)(1) == 2
    assert ours(theirs(mine)) is mine
    error = ffi.Error("ValueError", "an object of ours")
    assert type(theirs(error)).__module__.startswith("tvm_ffi")
    assert theirs(error).message == "an object of ours"
    assert ours(theirs(error)) is error


def errors(order: Any) -> None:
    """They cross both ways, ours with everything."""
    tvm_ffi = _import(order)

    class Mine(Exception):
        pass

    def fail() -> None:
        raise Mine("mine")

    def theirs_fails() -> None:
        raise KeyError("theirs")

    ffi.register_global_func("both.fail", fail)
    theirs = tvm_ffi.get_global_func("both.fail")
    assert raised(Mine, ffi.get_global_func("testing.apply"), theirs).args == ("mine",)
    assert "mine" in str(raised(RuntimeError, theirs))
    function = ffi.convert(tvm_ffi.convert(theirs_fails))
    assert raised(KeyError, function).args[0].strip("'") == "theirs"


def streams(order: Any) -> None:
    """Both have one environment."""
    tvm_ffi = _import(order)
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 0x55):
        assert ffi.get_raw_stream("cuda:0") == 0x55
    with ffi.use_raw_stream("cuda:0", 0x66):
        assert tvm_ffi.get_raw_stream(tvm_ffi.device("cuda:0")) == 0x66


def ctrl_c(order: Any) -> None:
    """Both register the same pointers, so their order is no matter."""
    tvm_ffi = _import(order)
    for get in (tvm_ffi.get_global_func, ffi.get_global_func):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()  # no verdict
        raised(KeyboardInterrupt, get("testing.run_check_signal"), 600)


def race(order: Any) -> None:
    tvm_ffi = _import(order)

    def work(register: Any, get: Any, mine: Any) -> None:
        for turn in turns(3):
            register(f"race.{mine}.{turn % 100}", lambda x: x + 1, override=True)
            assert get(f"race.{mine}.{turn % 100}")(1) == 2
            other = get(f"race.{1 - mine}.{turn % 100}", allow_missing=True)
            assert other is None or other(1) == 2

    at_once(
        lambda: work(ffi.register_global_func, ffi.get_global_func, 0),
        lambda: work(tvm_ffi.register_global_func, tvm_ffi.get_global_func, 1),
    )


def containers(order: Any) -> None:
    tvm_ffi = _import(order)
    ours = ffi.convert_func(lambda x: x)
    ffi.register_global_func("both.ours", lambda x: x)
    theirs = tvm_ffi.get_global_func("both.ours")
    for name, value in (
        ("Array", [1, "a"]),
        ("List", [1, [2]]),
        ("Map", {"k": 1}),
        ("Dict", {"k": [1]}),
        ("Shape", (2, 3)),
    ):
        there, here = getattr(tvm_ffi, name)(value), getattr(ffi, name)(value)
        assert type(ours(there)) is type(here), name
        assert ours(there) == ours([there])[0] == here, name
        assert type(theirs(there)) is type(there), name
        if name != "Shape":  # a tuple, to tvm_ffi
            assert type(theirs(here)) is type(there), name
            assert theirs(here) == there, name
    # One object, seen changing from both sides.
    there = tvm_ffi.List([1])
    here = ours(there)
    here.append(2)
    assert list(there) == [1, 2]
    there.append(3)
    assert here == [1, 2, 3]
    assert ours(there) is here


def moved_container(order: Any) -> None:
    tvm_ffi = _import(order)
    array = tvm_ffi.Array([1, 2])
    tvm_ffi.get_global_func("ffi.Array")(array._move())
    for take in (ffi.convert, ffi.structural_hash):
        error = raised(ValueError, take, array)
        assert str(error) == "the Array was moved into a call and is empty now"


def types_of_python(order: Any) -> None:
    """Their fields have functions as setters (flag bit 11), and factories as defaults."""
    tvm_ffi = _import(order)
    from tvm_ffi.dataclasses import field, py_class

    class PyPoint(tvm_ffi.Object):  # type: ignore[name-defined, misc]  # its types are not read
        x: int
        y: float = 1.5
        items: list[Any] = field(default_factory=list)
        z: int = field(default=3, kw_only=True)

    PyPoint = py_class("test.PyPoint")(PyPoint)  # type: ignore[misc]  # noqa: N806 - a class

    class PyChild(PyPoint):
        w: str = "text"

    point = ffi.object_class("test.PyPoint")
    p = point(1, z=4)
    assert (p.x, p.y, p.z, list(p.items)) == (1, 1.5, 4, [])
    p.x = 5
    assert p.x == 5
    error = raised(TypeError, setattr, p, "x", "text")
    assert "field 'x' of test.PyPoint: expected int" in str(error)
    p.items.append(4)
    assert list(p.items) == [4]
    assert list(point(1).items) == []
    assert len(point.items.default) == 0
    assert pickle.loads(pickle.dumps(p)).x == 5
    child = py_class("test.PyChild")(PyChild)(7, w="other")
    found = ffi.convert_func(lambda x: x)(child)
    assert isinstance(found, point)
    assert (found.x, found.w) == (7, "other")
