"""Several threads at one tensor: every step that claims something is atomic."""

from __future__ import annotations

import os

import pytest

import dlbridge as bridge
from dlbridge.core.plugins import registry
from tests.support.peers import peer
from tests.support.scripts import run_script

SWITCHING = "import sys; sys.setswitchinterval(1e-6)\n"
OURS = ("-torch", "numpy", "dlbridge.abi", "tvm_ffi")


def test_the_first_exports_of_one_tensor_in_threads():  # X5
    """Each thread built structs of its own, and the last one freed those of the others."""
    peer("tvm_ffi")
    out = run_script(
        SWITCHING
        + """
import threading, numpy as np, tvm_ffi, dlbridge
from tests.support.threads import in_threads
def convert(number):
    barrier.wait()
    assert tuple(tvm_ffi.convert(tensor).shape) == (3, 5)
for turn in range(400):
    tensor = dlbridge.from_dlpack(np.ones((3, 5), "f4"))
    barrier = threading.Barrier(4)
    wrong = in_threads(convert, 4)
    assert wrong == [], wrong[:3]
""",
        imported=OURS,
    )
    assert out == ""


def test_a_capsule_is_consumed_once():  # C23
    """Two threads found it unused, both owned its struct, and it was deleted twice."""
    out = run_script(
        SWITCHING
        + """
import threading, dlbridge
from tests.support.raw_producer import Producer, deleted_twice
from tests.support.threads import in_threads
producer = Producer((4,), device=(17, 0))
def consume(number):
    barrier.wait()
    try:
        taken.append(dlbridge.from_dlpack(capsule))
    except dlbridge.ExchangeError as error:
        assert "is used" in str(error)
for turn in range(1000):
    capsule, taken, barrier = producer.capsule(), [], threading.Barrier(2)
    assert in_threads(consume, 2) == []
    assert len(taken) == 1
    taken.clear()
    assert producer.alive == 0 and not deleted_twice
""",
        imported=OURS,
    )
    assert out == ""


def test_one_struct_is_lent_once():  # X5
    """Two threads found the same struct free, and the second deletion was a KeyError."""
    peer("tvm_ffi")
    out = run_script(
        SWITCHING
        + """
import time, numpy as np, tvm_ffi, dlbridge
from tests.support.threads import in_threads
from dlbridge.core.interfaces import own_table as table
tensor = dlbridge.from_dlpack(np.ones((3, 5), "f4"))
tvm_ffi.from_dlpack(tensor)
end = time.monotonic() + 4
def work(number):
    while time.monotonic() < end:
        kept = [tvm_ffi.from_dlpack(tensor) for _ in range(3)]
        for one in kept:
            assert one.shape == (3, 5)
assert in_threads(work, 4) == []
print(len(table._lent))
""",
        imported=OURS,
    )
    assert out == "0\n"


def test_one_struct_is_lent_once_to_threads_that_pause(monkeypatch):  # X5
    """The claim is one step, whatever runs between looking for a struct and taking it."""
    from dlbridge.core.interfaces import own_table

    tensor = bridge.zeros(3)
    lend = own_table._pool_of(tensor).lend  # what every function of the table calls
    first, _ = lend(tensor)
    own_table._lent.pop(first)
    given = []
    new_handle = own_table.ffi.new_handle

    class Pausing:
        """cffi, whose new_handle lets another export come in between."""

        def __getattr__(self, name):
            return getattr(own_table.cffi, name)

        def new_handle(self, thing):
            if not given:
                given.append(None)
                given.append(lend(tensor)[0])
            return new_handle(thing)

    monkeypatch.setattr(own_table, "cffi", own_table.ffi, raising=False)
    monkeypatch.setattr(own_table, "ffi", Pausing())
    mine, _ = lend(tensor)
    monkeypatch.undo()
    assert mine != given[1]
    for address in (mine, given[1]):
        own_table._lent.pop(address)


def test_loading_while_another_thread_looks(monkeypatch):
    """The registry's tables are read in one step: they may grow meanwhile."""

    class Growing(dict):
        """A table that another thread adds to as soon as somebody iterates over it."""

        def items(self):
            for item in super().items():
                yield item
                self[f"new{len(self)}"] = item[1]

        values = items

    monkeypatch.setattr(registry, "LOADED", Growing(registry.LOADED))
    monkeypatch.setattr(registry, "_sharing", {})
    bridge.zeros(1)
    assert registry.sharing(1) == ["cpu"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_fork_while_another_thread_loads_a_backend():
    """The child inherited the lock of a thread that it does not have, and waited for ever."""
    out = run_script(
        """
import os, threading, time
import dlbridge as bridge
parent, loading, forked = os.getpid(), threading.Event(), threading.Event()
class Slow:
    api, device_type = 2, 12
    def __init__(self):
        if os.getpid() == parent:
            loading.set()
            forked.wait()
    def device_count(self): return 5
for name in ("allocate", "copy_from_host", "copy_to_host", "current_stream"):
    setattr(Slow, name, lambda *_: 0)
bridge.register_backend("slow", Slow)
threading.Thread(target=bridge.backend, args=("slow",), daemon=True).start()
loading.wait()
child = os.fork()
if not child:
    os._exit(bridge.backend("slow").device_count())
end = time.monotonic() + 100
while (found := os.waitpid(child, os.WNOHANG)) == (0, 0):
    if time.monotonic() > end:
        os.kill(child, 9)
    time.sleep(0.01)
forked.set()
print(os.waitstatus_to_exitcode(found[1]))
""",
        imported=OURS,
    )
    assert out == "5\n"  # a child that fails ends with 1
