"""Containers, objects, modules and running threads at the end of the process. Notes, 4.8."""

from __future__ import annotations

import pytest

SCRIPT = """
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
    assert run_script(SCRIPT) == (0, "end\n")
