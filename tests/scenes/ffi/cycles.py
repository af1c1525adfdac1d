"""Objects of libtvm_ffi in cycles of Python: a finalizer there may still use them."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

import dlbridge as bridge
from dlbridge import ffi

from .scene import testing


class Node:
    """In a cycle with itself. Its finalizer makes something new, and then looks at what it has."""

    def __init__(self, look: Any) -> None:
        self.itself, self.look = self, look

    def __del__(self) -> None:
        # New things in memory that was freed too early.
        made = [ffi.Array([[i], ffi.Shape((7, 7, 7))]) for i in range(50)]
        results.append(self.look())
        del made


results: list[Any] = []


def objects() -> None:
    """The garbage collector ran the finalizer of the reference first, then the user's."""
    echo = testing("echo")

    def make() -> None:
        tensor, array = bridge.from_dlpack(np.ones(3)), ffi.Array([1, 2, 3])
        echo(tensor)  # the tensor keeps its object of libtvm_ffi
        function, error = ffi.convert_func(lambda x: x + 1), ffi.Error("ValueError", "still there")
        Node(lambda: (list(array), function(1), error, echo(error).message, echo(tensor)))

    gc.disable()
    for _ in range(20):
        make()
    gc.collect()
    assert len(results) == 20
    for numbers, result, error, message, tensor in results:
        assert (numbers, result, error.message, message) == ([1, 2, 3], 2, *["still there"] * 2)
        assert tensor.tolist() == [1, 1, 1]


def bound_calls() -> None:
    """The collector took the packed arguments from the call before the finalizer made it."""
    array = ffi.get_global_func("ffi.Array")
    gc.disable()
    for _ in range(20):
        Node(array.bind([1, 2, 3], ffi.Shape((2, 3, 4)), "a long text of the call"))
        Node(ffi.convert_func(lambda *values: values).bind([1, 2, 3]))
        replaced = array.bind(1)
        replaced.replace(0, {"key": [1]})
        Node(replaced)
        del replaced
    gc.collect()
    assert len(results) == 60
    expected = "[(1, 2, 3), Shape((2, 3, 4)), 'a long text of the call']"
    for first, second, third in zip(*[iter(results)] * 3, strict=True):
        assert repr(list(first)) == expected
        assert list(second[0]) == [1, 2, 3]
        assert list(third[0]["key"]) == [1]


def shapes() -> None:
    """The collector freed the object of the Shape before the finalizer passed it."""
    array = ffi.get_global_func("ffi.Array")

    def make(shape: Any) -> None:
        shape.node = Node(lambda: tuple(array(shape)[0]))

    gc.disable()
    for _ in range(20):
        passed = ffi.Shape((2, 3, 4))
        array(passed)
        make(passed)
        make(array(ffi.Shape((2, 3, 4)))[0])  # one that came back
        del passed
        gc.collect()
    assert results == [(2, 3, 4)] * 40
