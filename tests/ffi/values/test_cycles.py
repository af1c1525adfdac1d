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
