"""Exceptions of signal handlers at any instruction: nothing is lost, nothing is freed twice."""

from __future__ import annotations

import sys

import pytest
from peers import peer
from scripts import run_script

# Signals after many different times; the work must leave nothing behind.
PRELUDE = """
import gc, signal, sys, time
import numpy as np
import dlbridge as bridge
class Alarm(Exception): pass
Raised = {{"KeyboardInterrupt": KeyboardInterrupt, "Alarm": Alarm}}[{exception!r}]
def handler(*_):
    raise Raised
signal.signal(signal.SIGALRM, handler)
def turn(work, delay):
    signal.setitimer(signal.ITIMER_REAL, delay)
    limit = time.monotonic() + 0.02
    while time.monotonic() < limit:  # one that a destructor meets, Python only prints
        work()
    signal.setitimer(signal.ITIMER_REAL, 0)
    time.sleep(0)  # a signal that came just before is raised here
def storm(work, seconds):
    heard, end, delay = 0, time.monotonic() + seconds, 0
    while time.monotonic() < end:
        delay = (delay + 7) % 1999
        try:  # around a call: CPython 3.13 leaves out the jump of a loop inside the block
            turn(work, 20e-6 + delay * 1e-6)
        except Raised:
            heard += 1
    return heard
"""


@pytest.mark.parametrize("exception", ["KeyboardInterrupt", "Alarm"])
def test_imports_delete_the_struct_once(exception):  # C10
    """An interrupt after the owner was made and before it was stored deleted the struct twice."""
    out = run_script(
        PRELUDE.format(exception=exception)
        + """
from raw_producer import Producer, deleted_twice
producers, importing = [], False
class Prebuilt:
    # With a capsule that was made before: only our own steps are interrupted.
    def __init__(self, capsule): self.capsule = capsule
    def __dlpack__(self, **keywords): return self.capsule
    def __dlpack_device__(self): return (1, 0)
def careful(*_):
    if importing:
        raise Raised
    signal.setitimer(signal.ITIMER_REAL, 150e-6)
signal.signal(signal.SIGALRM, careful)
def work():
    global importing
    producer = Producer(dtype=(4, 16, 1))
    producers.append(producer)
    ready = Prebuilt(producer.capsule())
    importing = True
    try:
        kept = bridge.from_dlpack(ready)  # its deleter is Python, and is not to be interrupted
    finally:
        importing = False
heard = storm(work, 6)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
gc.collect()
alive = sum(bool(p.alive) for p in producers)
print(heard > 100, len(deleted_twice), alive)
"""
    )
    assert out == "True 0 0\n"


@pytest.mark.parametrize("exception", ["KeyboardInterrupt", "Alarm"])
def test_the_exchange_table_hands_the_exception_on(exception):  # X9
    """An exception of a handler became SystemError, or a struct stayed lent for ever."""
    peer("tvm_ffi")
    out = run_script(
        PRELUDE.format(exception=exception)
        + """
import tvm_ffi
from dlbridge.core.outgoing import own_table as table
nop = tvm_ffi.get_global_func("testing.nop")
tensor = bridge.from_dlpack(np.arange(4, dtype="f4"))
def work():
    nop(tensor, tensor, tensor)
heard = storm(work, 5)
gc.collect()
print(heard > 100, len(table._lent))
"""
    )
    assert out == "True 0\n"


@pytest.mark.parametrize("device", ["cpu", "ext_dev:0"])
def test_memory_is_never_without_an_owner(device):
    """The memory that a backend had allocated was lost before its owner existed."""
    out = run_script(
        PRELUDE.format(exception="KeyboardInterrupt")
        + f"""
plugin = bridge.backend({device.partition(":")[0]!r})
bridge.empty(3, "bfloat16", {device!r})
before = plugin.live_allocations()
def work():
    bridge.empty(3, "bfloat16", {device!r})
heard = storm(work, 5)
gc.collect()
print(heard, plugin.live_allocations() - before)
"""
    )
    heard, lost = map(int, out.split())
    assert heard > 100
    # CPython 3.10 also raises between instructions where later ones do not: an open
    # defect (3.10.13: 12 lost after 1,036 signals).
    most = 0.05 * heard if sys.version_info < (3, 11) else 0
    assert lost <= most, "the backend had it, and nobody else"
