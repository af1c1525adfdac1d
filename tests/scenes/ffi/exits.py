"""What is alive, and what runs, when the process ends."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dlbridge import ffi
from dlbridge.ffi.errors import set_raised

from .scene import daemons, raised, testing


class Thing:
    def __del__(self) -> None:
        pass


def fail() -> None:
    raise ValueError("left")


KEPT: dict[str, Any] = vars(sys)
"""What a name of `sys` holds is dropped late, after the modules."""

LEFT: dict[str, Callable[[Any], Any]] = {
    "function": lambda thing: ffi.convert_func(lambda: thing),
    "raise": lambda _: raised(ValueError, testing("apply"), fail),
    "global": lambda thing: ffi.register_global_func("dlbridge.left", lambda: thing),
    "opaque": lambda thing: testing("echo").bind(thing),
    "error": lambda _: ffi.Error("ValueError", "kept"),
    "bound": lambda thing: ffi.convert_func(lambda x: x).bind(thing),
}


def left_behind(kind: Any) -> None:
    KEPT["kept"] = LEFT[kind](Thing())
    if callable(KEPT["kept"]) and kind != "global":
        KEPT["kept"]()


def error_of_the_thread() -> None:
    """Without draining it, SIGSEGV."""

    class Carried(Exception):
        pass

    set_raised(Carried("left behind"))


def system_exit() -> None:
    testing("apply")(lambda: sys.exit(7))


def fault() -> None:
    """libtvm_ffi would replace the handlers of faulthandler."""
    assert ffi.version
    ctypes.string_at(0)


def daemons_in_callbacks() -> None:
    """tvm_ffi aborts."""
    f = ffi.convert_func(lambda: time.sleep(0.003))

    def work() -> None:
        while True:
            f()

    daemons(3, work)
    time.sleep(0.1)


def daemons_that_free_objects() -> None:
    """Without `_end_destructors` about one exit of four ends by SIGABRT."""
    sys.setswitchinterval(1e-6)
    keep = ffi.get_global_func("ffi.Array")

    def work() -> None:
        while True:
            keep(np.ones(3)), keep(Thing()), keep(lambda: 1), keep(ffi.readonly(np.ones(3)))

    daemons(6, work)
    time.sleep(0.02)


def ignored_failures_in_daemons(library: Any) -> None:
    ignores = ffi.load_module(library).ignores

    def work() -> None:
        ignores(fail)
        while True:
            time.sleep(0.0005)

    daemons(4, work)
    ignores(fail)
    time.sleep(0.1)


def tensors() -> None:
    """Lent tensors that callees have kept."""
    keep = ffi.get_global_func("ffi.Array")
    KEPT["again"] = ffi.Array([keep(np.ones(3), np.zeros(2))])
    ffi.register_global_func("test.kept", lambda: KEPT["again"])

    def work() -> None:
        while True:
            keep(np.ones(3))

    daemons(2, work)
    time.sleep(0.1)


def everything() -> None:
    class Lists:
        def __init__(self, holder: Any) -> None:
            self.holder = holder

        def __del__(self) -> None:
            list(self.holder)

    shared = ffi.List()
    shared[:] = [Lists(shared), lambda: shared, np.arange(3), shared]
    table = ffi.Dict({"shared": shared, "function": len})
    array = ffi.Array([ffi.Map({"table": table}), Lists(shared)])
    testing("nop")
    holder = ffi.object_class("testing.TestDeepCopyEdges")(array, shared)
    holder.v_any = [holder, Lists(shared)]

    @ffi.register_object("testing.TestIntPair")
    class Pair(ffi.Object):
        pass

    pair = Pair(1, 2)
    ffi.register_global_func("test.alive", lambda: (shared, table, array, pair))
    module = ffi.load_module(ffi.library_path.replace("libtvm_ffi.", "libtvm_ffi_testing."))
    KEPT["kept"] = (
        *(ffi.StructuralKey([1]), ffi.Shape((1, 2)), ffi.List([1])._move()),
        *(module, module.testing_dll_schema_id_int, holder),
    )

    def work() -> None:
        while True:
            table["again"] = 1
            list(table.items()), repr(array), holder.v_obj, list(ffi.Array(["a longer text"] * 5))
            shared.append(pair)
            shared.pop()

    daemons(3, work)
    time.sleep(0.2)
    assert threading.active_count() == 4
