"""Exceptions at any instruction, of signal handlers, for want of memory or of a trace function: nothing is lost, nothing is freed twice."""

from __future__ import annotations

import os
import sys

import pytest

from tests.support.peers import peer
from tests.support.scripts import run_scene, run_script

BEGIN = """
import gc, signal
import numpy as np
import dlbridge as bridge
from tests.support.interrupted import Alarm, interrupted
for name in bridge.__all__:  # typing turns an exception while a module loads into a TypeError
    getattr(bridge, name)
may = lambda: True
"""
END = """
# The work is short: signals within 0.5 ms come at every moment of it.
interrupted(work, EXCEPTION, 2000, may=may, spread=0.25)
gc.collect()
print(*left())
"""

# What is interrupted -> the program's `work`, and what is `left` behind.
WORK = {
    # An interrupt after the owner was made and before it was stored deleted the struct twice.
    "an import": """  # C10
from tests.support.foreign_arrays import OneCapsule
from tests.support.raw_producer import Producer, deleted_twice
producers, importing = [], False
def work():
    global importing
    producer = Producer(dtype=(4, 16, 1))
    producers.append(producer)
    ready = OneCapsule(producer.capsule())  # made before: only our own steps are interrupted
    importing = True
    try:
        kept = bridge.from_dlpack(ready)  # its deleter is Python, and is not to be interrupted
    finally:
        importing = False
may = lambda: importing
left = lambda: (len(deleted_twice), sum(bool(p.alive) for p in producers))
""",
    # An exception of a handler became SystemError, or a struct stayed lent for ever.
    "an export by the table": """  # X9
import tvm_ffi
from tests.support.held_by_c import structs_of_the_table
nop = tvm_ffi.get_global_func("testing.nop")
tensor = bridge.from_dlpack(np.arange(4, dtype="f4"))
work = lambda: nop(tensor, tensor, tensor)
left = lambda: [structs_of_the_table()]
""",
    # An interrupt after the struct was entered and before the capsule was made kept it for ever.
    "a capsule": """  # P47
from tests.support.held_by_c import structs_in_capsules
t = bridge.empty(3, "bfloat16")
def work():
    for _ in range(10):
        t.__dlpack__(max_version=(1, 3))
        t.__dlpack__()
work()
left = lambda: [structs_in_capsules()]
""",
    # The memory that a backend had allocated was lost before its owner existed.
    "an allocation": """
plugin = bridge.backend("cpu")
work = lambda: bridge.empty(3, "bfloat16")
work()
before = plugin.live_allocations()
left = lambda: [plugin.live_allocations() - before]
""",
}


def run(code, **environment):
    """What *code* prints in a fork of a process that has imported what it needs, and not torch."""
    imported = ("-torch", "numpy", "dlbridge.abi", "tests.support.raw_producer", "tvm_ffi")
    return run_script(code, env=environment, imported=imported)


@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("exception", ["KeyboardInterrupt", "Alarm"])
def test_an_interruption_leaves_nothing_behind(name, exception):
    if "table" in name:
        peer("tvm_ffi")
    out = run(f"{BEGIN}EXCEPTION = {exception}{WORK[name]}{END}")
    assert set(out.split()) == {"0"}


@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 14),
    reason="CPython 3.12 and 3.13 themselves crash where a generator gets no memory: docs/safety.md",
)
def test_each_allocation_fails_once():
    """The tensor of a capsule was lost; and a MemoryError arrived as an ArgumentError of ctypes."""
    pytest.importorskip("_testcapi", reason="CPython's own tests are not installed")
    assert run_scene("cut_off.cut_off", "allocations", 500) == ""


def half_made_classes():
    from dlbridge.abi import Received
    from dlbridge.extending import Memory
    from dlbridge.kit.resources import AllocationOwner, Owner

    return [Memory, Owner, AllocationOwner, Received]


@pytest.mark.parametrize("number", range(4))
def test_a_destructor_expects_a_half_made_object(number, monkeypatch):
    """A handler raised at the first instruction of __init__; then __del__ was an AttributeError."""
    cls = half_made_classes()[number]
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", lambda given: printed.append(repr(given.exc_value)))
    cls.__new__(cls)
    assert printed == []


def test_a_host_view_is_given_back_though_a_handler_raises():
    """At the first instruction of its destructor."""
    out = run(
        """
import os
import sys
import dlbridge as bridge
t = bridge.zeros(9, "float32", "ext_dev:0")
plugin = bridge.backend("ext_dev")
before, cut = plugin.live_allocations(), []
view = bridge.from_dlpack(t.host_view())
def trace(frame, event, _argument):
    if frame.f_code.co_name == "__del__" and not cut and event == "call":
        cut.append(frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else "")
        raise KeyboardInterrupt
sys.settrace(trace)
del view
sys.settrace(None)
print(len(cut), plugin.live_allocations() - before)
""",
        DLBRIDGE_FAKE_SHARED="1",
    )
    assert out == "1 0\n"


def test_an_import_that_is_cut_off_is_given_back():
    """Right after the backend has given it, and before there is a tensor."""
    out = run(
        """
import dlbridge as bridge
from dlbridge.core.moves import transfer
memory = bridge.zeros(4096, "uint8").numpy()
plugin = bridge.backend("ext_dev")
def cut(*_arguments):
    assert plugin.live_allocations() == 1
    raise KeyboardInterrupt
transfer._same_layout = cut
try:
    bridge.to_device(memory, "ext_dev:0", copy=False)
except KeyboardInterrupt:
    print("raised")
print(plugin.live_allocations())
""",
        DLBRIDGE_FAKE_SHARED="1",
    )
    assert out == "raised\n0\n"


def test_the_first_loan_of_a_tensor_is_taken_back():  # X9
    """A handler raised when the struct was lent, and before C had it: it stayed lent."""
    peer("tvm_ffi")
    out = run(
        """
import tvm_ffi
import dlbridge as bridge
from dlbridge.core.interfaces import own_table as table
class Raising:
    raised = 0
    def __getattr__(self, name):
        return getattr(cffi, name)
    def cast(self, kind, value):
        found = cffi.cast(kind, value)
        if kind is table._MANAGED and not Raising.raised:
            Raising.raised += 1
            raise KeyboardInterrupt
        return found
cffi, table.ffi = table.ffi, Raising()
t = bridge.zeros(3)
try:
    tvm_ffi.from_dlpack(t)
except KeyboardInterrupt:
    print("raised")
print(Raising.raised, len(table._lent))
"""
    )
    assert out == "raised\n1 0\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_fork_while_another_thread_exports():
    """The child inherited the lock of a thread that it does not have, and waited for ever."""
    peer("tvm_ffi")
    out = run(
        """
import os, threading, time
import tvm_ffi
import dlbridge as bridge
from dlbridge.core.interfaces import own_table as table
t, inside = bridge.zeros(3), threading.Event()
def hold():
    with table._sharing:
        inside.set()
        threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
inside.wait()
child = os.fork()
if not child:
    os._exit(len(tvm_ffi.from_dlpack(t).shape))
end = time.monotonic() + 100
while (found := os.waitpid(child, os.WNOHANG)) == (0, 0):
    if time.monotonic() > end:
        os.kill(child, 9)
    time.sleep(0.01)
print(os.waitstatus_to_exitcode(found[1]))
"""
    )
    assert out == "1\n"
