"""50,000 blobs: each deleter is called once, whatever comes in between.

Each case runs in a process of its own, which counts: a fork of one that has imported everything.
"""

from __future__ import annotations

import os

import pytest

from tests.support import harness
from tests.support.peers import peer
from tests.support.scripts import run_script

BEGIN = """
import collections, ctypes, gc, os, random, signal, sys, threading
import numpy as np
import dlbridge as bridge

MEMORY = (ctypes.c_char * 4096)()
AT = (ctypes.addressof(MEMORY) + 63) // 64 * 64
COUNT = 50_000
called = collections.Counter()
chance = random.Random(7)

def blob(number, delete=None):
    deleter = delete or (lambda data, number=number: called.update([number]))
    return bridge.from_blob(AT, 16, "float32", deleter=deleter)

TAKE = [lambda t: t, np.from_dlpack, lambda t: t[1:], lambda t: t.__dlpack__(max_version=(1, 0)),
        lambda t: t.__dlpack__(), np.asarray, lambda t: t.view("int32"), lambda t: t.operand()]

def check():
    gc.collect()
    assert len(called) == COUNT, len(called)
    assert set(called.values()) == {1}
    from dlbridge.interop import blobs
    assert (len(blobs._blobs), len(blobs._blobs.ended)) == (0, 0)
"""

IN_ORDER = """
order, expected, failed = [], [], []
sys.unraisablehook = lambda said: failed.append(int(str(said.exc_value)))
held = []
for number in range(COUNT):
    def delete(data, number=number):
        order.append(number)
        called[number] += 1
        if number % 10 == 0:
            raise ValueError(number)
    held.append((number, chance.choice(TAKE)(blob(number, delete))))
    if number % 1000 == 0:
        gc.collect()
    while len(held) > 200:
        number, array = held.pop(chance.randrange(len(held)))
        expected.append(number)
        del array
while held:
    number, array = held.pop(chance.randrange(len(held)))
    expected.append(number)
    del array
assert order == expected
assert failed == [number for number in expected if number % 10 == 0]
check()
"""

THREADS = """
import queue
places = [queue.SimpleQueue() for _ in range(4)]

def work(mine, numbers):
    rest = list(numbers)
    other = places[(mine + 1) % 4]
    while rest:
        number = rest.pop()
        other.put(chance.choice(TAKE)(blob(number)))
        if number % 3 == 0:
            try:
                places[mine].get_nowait()
            except queue.Empty:
                pass
        if number % 5000 == 0:
            gc.collect()

threads = [threading.Thread(target=work, args=(n, range(n, COUNT, 4))) for n in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
while any(not place.empty() for place in places):
    for place in places:
        if not place.empty():
            place.get()
check()
"""

SIGNALS = """
import itertools
from tests.support.interrupted import Alarm, interrupted

lost = []
sys.unraisablehook = lambda said: lost.append(type(said.exc_value))
calls, taken, numbers = [], set(), itertools.count()

def work():
    number = next(numbers)
    t = blob(number, lambda data: calls.append(number))
    taken.add(number)
    array = TAKE[number % len(TAKE)](t)
    del t
    del array

work()  # imports modules, and Python's own imports make other exceptions of ours
kind, rounds = KeyboardInterrupt if sys.argv[1] == "Ctrl-C" else Alarm, 0
while rounds < 40:
    rounds += 1
    try:
        interrupted(work, kind, 50, spread=0.25)
    except kind:
        pass  # one that came in a deleter, and is raised when that has ended
for _ in range(COUNT):
    work()
gc.collect()
bridge.from_blob(AT, 1, "uint8")  # what a signal has cut off is done now
assert len(calls) == len(set(calls))
assert not taken - set(calls)
assert set(lost) <= {Alarm, KeyboardInterrupt}
from dlbridge.interop import blobs
assert (len(blobs._blobs), len(blobs._blobs.ended)) == (0, 0)
print(len(calls), "calls,", len(lost), "exceptions within finalizers")
"""

FORKS = """
held = collections.deque()
statuses = []
for number in range(COUNT):
    held.append(chance.choice(TAKE)(blob(number)))
    if len(held) > 500:
        held.popleft()
    if number % 5000 == 2500:
        child = os.fork()
        if not child:
            before = len(called)
            held.clear()
            gc.collect()
            assert len(called) == before  # the memory is the parent's
            calls = []
            bridge.from_blob(AT, 3, "uint8", deleter=calls.append)
            assert calls == [AT]  # and this one its own
            os._exit(0 if number % 10000 == 2500 else sys.exit(0))
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
held.clear()
assert statuses == [0] * len(statuses) and statuses
check()
"""

CASES = {
    "in order": IN_ORDER,
    "threads": THREADS,
    "Ctrl-C": SIGNALS,
    "a handler's exception": SIGNALS,
    "forks": FORKS,
}


OURS = ("numpy", "dlbridge.abi", "tests.support.raw_producer")


def run(code, *arguments, libraries=()):
    return run_script(
        BEGIN + code,
        *arguments,
        env={"JAX_PLATFORMS": "cpu"},
        imported=(*OURS, *libraries),
        silent=True,
    )


@pytest.mark.parametrize("case", CASES)
def test_each_deleter_is_called_once(case):
    if case == "forks" and not hasattr(os, "fork"):
        pytest.skip("no fork() on this system")
    print(run(CASES[case], case))


EXIT = """
import atexit, importlib

def delete(data):
    os.write(1, b"deleted\\n")

take = {
    "a tensor": lambda t: t,
    "a view": lambda t: t[1:],
    "a capsule": lambda t: t.__dlpack__(),
    "numpy": np.from_dlpack,
    "torch": lambda t: importlib.import_module("torch").from_dlpack(t),
    "tvm_ffi": lambda t: importlib.import_module("tvm_ffi").from_dlpack(t),
    "jax": lambda t: importlib.import_module("jax").dlpack.from_dlpack(t),
}

def blobs():
    return [take[name](bridge.from_blob(AT, 16, "float32", deleter=delete)) for name in sys.argv[1:]]

class Cycle: pass
held, cycle = blobs(), Cycle()
cycle.itself, cycle.held = cycle, blobs()
sys.modules["made_up"] = cycle
threading.Thread(target=lambda x: threading.Event().wait(), args=(blobs(),), daemon=True).start()
"""

EARLY = """
atexit.register(held.clear)  # it runs before dlbridge ends
"""


def test_no_deleter_is_called_after_the_end():
    libraries = ["torch", "tvm_ffi", "jax"]
    for library in libraries:
        peer(library)
    takers = ["a tensor", "a view", "a capsule", "numpy", *libraries]
    assert run(EXIT, *takers, libraries=libraries) == ""
    assert run(EXIT + EARLY, *takers, libraries=libraries) == "deleted\n" * len(takers)


DAEMON = """
def work():
    while True:
        array = np.from_dlpack(bridge.from_blob(AT, 16, "float32", deleter=lambda data: None))
        del array

for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
import time
time.sleep(0.05)  # no verdict: the threads may not have begun
"""


def test_threads_that_go_on_until_the_end():
    for _ in range(5):
        run(DAEMON)


C_THREADS = """
from tests.support import harness
from tests.support.raw_producer import address, immortal, set_name, struct_in
library = harness.load()

def given(number):
    capsule = blob(number).__dlpack__(max_version=(1, 3))
    managed = struct_in(capsule)
    set_name(capsule, immortal(b"used_dltensor_versioned"))
    return address(managed)

for number in range(200):
    at = given(number)
    gc.collect()
    assert number not in called
    assert library.harness_delete_in_thread(at) == 0
    assert called[number] == 1
keeping = harness.load(keep_gil=True)
for number in range(200, 400):
    try:
        keeping.harness_delete_with_error(given(number))
    except ValueError as error:
        assert str(error) == "the consumer's own"
    else:
        raise AssertionError(number)
    assert called[number] == 1
"""


def test_released_by_threads_that_python_does_not_know():
    harness.path()
    run(C_THREADS)
