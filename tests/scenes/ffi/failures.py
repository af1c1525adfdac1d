"""Allocations that fail, and trace functions that raise, one by one through all that the FFI does."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np

import dlbridge as bridge
from dlbridge import ffi
from dlbridge.ffi import any as values, functions, objects, tensors
from tests.support.cut_off_work import each_failure
from tests.support.held_by_c import structs_in_capsules

from .scene import testing

FOLDERS = (str(Path(ffi.__file__).parent),)
TEXT = "a text of more than seven bytes"


class Thing:
    """What C knows as an opaque object only."""


def _fail(*_values: Any) -> None:
    raise KeyError


def _failed(failing: Any, *arguments: Any) -> None:
    try:  # noqa: SIM105 - as short as it can be: each line is cut off
        failing(*arguments)
    except KeyError:
        pass


thing, function, memory = Thing(), lambda *_: 1, np.arange(4.0)
ours = bridge.from_dlpack(memory)
locked = memory[...]
locked.flags.writeable = False
array = ffi.get_global_func("ffi.Array")
echo, nop, add_one = testing("echo"), testing("nop"), testing("add_one")
kept = ffi.Array([thing, function])
changed, table = ffi.List([thing, TEXT]), ffi.Dict({"a": thing, 2: TEXT})
mapping, text = ffi.Map({"a": thing, "b": kept}), ffi.Array([TEXT])
same, failing = ffi.convert_func(lambda *values: values[0]), ffi.convert_func(_fail)
lent, pair = ffi.convert_func(lambda t: t.shape[0]), ffi.object_class("testing.TestObjectBase")
bound, silent = array.bind(thing, kept), nop.bind(memory, 1)
result, integer, raising = same.bind(kept), add_one.bind(1), failing.bind(kept)
error = ffi.Error("ValueError", "text")


def _move() -> None:
    moved = ffi.Array([thing])
    echo(moved._move())


def _replace() -> None:
    bound.replace(0, thing)


def _set() -> None:
    made = pair(v_i64=3)
    made.v_str = TEXT
    made.add_i64(1)


def _change() -> None:
    changed, table = ffi.List([thing, TEXT]), ffi.Dict({"a": thing, 2: TEXT})
    changed.append(kept)
    changed.pop()
    table["new"] = kept
    del table["new"]


WORK: dict[str, Any] = {
    "numbers": lambda: echo(1 << 40) + add_one(1000000),
    "large numbers": lambda: echo(2**100),
    "texts": lambda: echo(TEXT + "!" * 128),
    "opaque": lambda: echo(thing),
    "callable": lambda: echo(function),
    "convert": lambda: ffi.convert([function, thing, {"k": TEXT}]),
    "object": lambda: echo(kept),
    "array of objects": lambda: array(thing, function, kept),
    "many": lambda: array(*range(1000, 1020)),
    "element": lambda: kept[0],
    "numpy": lambda: nop(memory, memory, 1),
    "our tensor": lambda: nop(ours, ours, 1),
    "a new tensor": lambda: nop(bridge.from_dlpack(memory), 1, 1),
    "kept": lambda: array(memory)[0],
    "read-only": lambda: array(ffi.readonly(locked))[0],
    "lent to a callback": lambda: lent(memory),
    "through a callback": lambda: same(kept),
    "an object for a callback": lambda: same(ffi.Array([1]), thing),
    "a callback fails": lambda: _failed(failing, kept, thing),
    "bound": bound,
    "bound, silent": silent,
    "bound, an object": result,
    "bound, an integer": integer,
    "bound, fails": lambda: _failed(raising),
    "bind": array.bind(thing, memory),
    "replace": _replace,
    "move": _move,
    "look up": lambda: ffi.get_global_func("ffi.Array"),
    "list": lambda: list(kept),
    "map": lambda: (mapping["b"], list(mapping.items())),
    "dict": lambda: (table["a"], list(table)),
    "get": lambda: (mapping.get("no"), mapping.get("b"), table.get(2), "no" in table),
    "type keys": lambda: ffi.object_class("testing.TestObjectBase"),
    "copies": lambda: copy.copy(pair(v_i64=3)),
    "register": lambda: ffi.register_global_func("test.cut", len, override=True),
    "names": ffi.get_registered_type_keys,
    "change": _change,
    "fields": _set,
    "error": lambda: ffi.Error("ValueError", TEXT).py_error(),
    "known error": error.py_error,
    "repr": lambda: repr(text),
    "equal": lambda: ffi.structural_equal([TEXT], [TEXT]),
    "shape": lambda: echo(ffi.Shape((1, 2))),
}

HANDLES = [kept, changed, table, mapping, text, same, failing, lent, error, array, echo, nop]


def _living() -> list[int]:
    counts = [sys.getrefcount(each) for each in (thing, function, memory, locked, ours)]
    in_c = [values.use_count(each._handle) for each in HANDLES]
    tables = [functions._callables, objects._kept, objects._counts, tensors._exports]
    return [*counts, *in_c, *map(len, tables), structs_in_capsules()]


def cut_off(how: str, least: str, *names: str) -> None:
    """Do the works of these names, or all, with each failure."""
    each_failure(how, {name: WORK[name] for name in names or WORK}, _living, FOLDERS, int(least))
