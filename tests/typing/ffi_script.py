"""A user's script that calls compiled functions. Read by type checkers, and run by the tests too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import dlbridge as bridge
from dlbridge import ffi

if not TYPE_CHECKING:  # where it is a builtin

    def reveal_type(_thing: object) -> None: ...


# Functions. What one returns only the one who wrote it knows: no type is claimed for it.
same = ffi.convert_func(lambda x: x)
reveal_type(same)  # dlbridge.ffi.Function
number: int = same(1)
tensor: bridge.Tensor = same(np.ones(3))
reveal_type(same.bind(1))  # dlbridge.ffi.BoundCall
reveal_type(same.like("numpy")(np.ones(3)))  # numpy.ndarray
reveal_type(same.like(np.ndarray)(np.ones(3)))  # numpy.ndarray
reveal_type(same.like(bridge.Tensor)(np.ones(3)))  # dlbridge.Tensor
reveal_type(ffi.get_global_func("ffi.Array"))  # dlbridge.ffi.Function


def of_a_module(path: str) -> None:
    """Never run here: there is no such file."""
    module = ffi.load_module(path)
    reveal_type(module)  # dlbridge.ffi.Module
    reveal_type(module.axpy)  # dlbridge.ffi.Function
    reveal_type(module["axpy"])  # dlbridge.ffi.Function
    reveal_type(module.axpy.like("numpy")(2.0))  # numpy.ndarray
    reveal_type(module.imports)  # list[Module]
    reveal_type(module.kind)  # str


# Containers: elements that come back as they went have their type.
a = ffi.Array([1, 2])
reveal_type(a)  # Array[int]
reveal_type(a[0])  # int
reveal_type(a[:1])  # list[int]
reveal_type(list(a))  # list[int]
reveal_type(ffi.Array(["x"]).index("x"))  # int
reveal_type(ffi.Array([[1]]))  # Array[Any]
reveal_type(ffi.Array([np.ones(3)]))  # Array[Any]
longer = a + [3]  # noqa: RUF005  # an Array again
reveal_type(longer)  # Array[Any]
lines: ffi.List[str] = ffi.List()
lines.append("x")
reveal_type(lines.pop())  # str
m = ffi.Map({"a": 1})
reveal_type(m)  # Map[str, int]
reveal_type(m["a"])  # int
reveal_type(m.get("b"))  # int | None
reveal_type(dict(m))  # dict[str, int]
reveal_type(ffi.Map({"a": [1]}))  # Map[Any, Any]
d: ffi.Dict[str, ffi.Shape] = ffi.Dict()
d["k"] = ffi.Shape((2, 3))
reveal_type(d.pop("k"))  # dlbridge.ffi.Shape
reveal_type(ffi.Shape((2, 3))[0])  # int

reveal_type(ffi.from_dlpack(np.ones(3)))  # dlbridge.Tensor
reveal_type(ffi.library_path)  # str
