"""Objects of libtvm_ffi in cycles of Python: a finalizer there may still use them."""

from __future__ import annotations


def test_a_finalizer_in_a_cycle_uses_objects(run_script):
    """The garbage collector ran the finalizer of the reference first, then the user's."""
    code, output = run_script(
        """
import gc
import numpy as np
import dlbridge as bridge
gc.disable()
seen = []
echo = testing("echo")
class Node:
    def __init__(self, array, function, tensor):
        self.itself = self
        self.array, self.function, self.tensor = array, function, tensor
    def __del__(self):
        # Something new in the memory that was freed too early.
        other = [ffi.Array([[i], [i]]) for i in range(50)]
        seen.append((list(self.array), self.function(1), self.array, echo(self.tensor)))
def make():
    tensor = bridge.from_dlpack(np.ones(3))
    echo(tensor)  # the tensor keeps its object of libtvm_ffi
    Node(ffi.Array([1, 2, 3]), ffi.convert_func(lambda x: x + 1), tensor)
for turn in range(20):
    make()
gc.collect()
assert len(seen) == 20, len(seen)
for numbers, result, array, tensor in seen:
    assert numbers == [1, 2, 3], numbers
    assert result == 2
    assert list(array) == [1, 2, 3]
    assert tensor.tolist() == [1, 1, 1]
del array, tensor
seen.clear()
gc.collect()
print("end")
"""
    )
    assert (code, output) == (0, "end\n")


def test_a_bound_call_in_a_cycle(run_script):
    """The collector took the packed arguments from the call before the finalizer made it."""
    code, output = run_script(
        """
import gc
gc.disable()
array = ffi.get_global_func("ffi.Array")
class Node:
    def __init__(self, step):
        self.itself, self.step = self, step
    def __del__(self):
        other = [ffi.Array([[i], [i]]) for i in range(50)]
        results.append(self.step())
results = []
for turn in range(20):
    Node(array.bind([1, 2, 3], ffi.Shape((2, 3, 4)), "a long text of the call"))
    Node(ffi.convert_func(lambda *values: values).bind([1, 2, 3]))
    replaced = array.bind(1)
    replaced.replace(0, {"key": [1]})
    Node(replaced)
    del replaced
gc.collect()
assert len(results) == 60, len(results)
for first, second, third in zip(*[iter(results)] * 3):
    assert repr(list(first)) == "[(1, 2, 3), Shape((2, 3, 4)), 'a long text of the call']", first
    assert list(second[0]) == [1, 2, 3], second
    assert list(third[0]["key"]) == [1], third
print("end")
"""
    )
    assert (code, output) == (0, "end\n")


def test_a_shape_in_a_cycle(run_script):
    """The collector freed the object of the Shape before the finalizer passed it."""
    code, output = run_script(
        """
import gc
gc.disable()
array = ffi.get_global_func("ffi.Array")
class Node:
    def __del__(self):
        other = [ffi.convert(ffi.Shape((7, 7, 7))) for _ in range(50)]
        for shape in other:
            array(shape)
        results.append(tuple(array(self.shape)[0]))
def make(shape):
    node = Node()
    node.shape, shape.node = shape, node
results = []
for turn in range(20):
    passed = ffi.Shape((2, 3, 4))
    array(passed)
    make(passed)
    make(array(ffi.Shape((2, 3, 4)))[0])  # one that came back
    del passed
    gc.collect()
assert results == [(2, 3, 4)] * 40, results
print("end")
"""
    )
    assert (code, output) == (0, "end\n")
