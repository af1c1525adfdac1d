"""A child of ``fork()`` calls no driver that its parent has used."""

import os

import pytest

from tests.support.scripts import run_scene, run_script

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() on this system")


@pytest.mark.parametrize("scene", ["used_before_fork", "not_used_before_fork"])
def test_a_used_backend_is_a_stub_in_the_child_and_one_that_was_not_used_works(scene):
    assert run_scene(f"backends.{scene}") == ""


# What other libraries do in the child comes first, and the collector may come with it.
COLLECTED = """
import gc, os

def of_another_library():
    gc.set_threshold(1)
    [[] for _ in range(100)]

os.register_at_fork(after_in_child=of_another_library)

import dlbridge as bridge

class Finalized:
    def __init__(self):
        self.itself, self.tensor = self, bridge.zeros(3, device="ext_dev:0")

    def __del__(self):
        try:
            made.append(bridge.zeros(3, device="ext_dev:0"))
        except bridge.DeviceError as exc:
            assert "fork()" in str(exc)
            made.append(None)

made = []
gc.set_threshold(100_000)
{before}
Finalized()
child = os.fork()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gc.isenabled() is {enabled}
else:
    assert gc.isenabled() is {enabled}
    {collect}
    assert made == [None], made
"""


def test_no_finalizer_reaches_a_driver_before_the_stub_is_there():
    code = COLLECTED.format(before="", enabled=True, collect="[[] for _ in range(10_000)]")
    assert run_script(code) == ""


def test_a_collector_that_is_off_stays_off():
    code = COLLECTED.format(before="gc.disable()", enabled=False, collect="gc.collect()")
    assert run_script(code) == ""


# A thread uses a name for the first time, and the process forks in the middle of its import.
FIRST_USE = """
import os, signal, sys, threading, time, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded")  # since CPython 3.12
import numpy
import dlbridge as bridge

def use():
    {use}

before = set(sys.modules)
thread = threading.Thread(target=use)
thread.start()
while not any(name.startswith("dlbridge.") for name in sys.modules.keys() - before):
    time.sleep(0)
time.sleep({delay})
child = os.fork()
if not child:
    signal.alarm(60)  # ends a child that hangs
    use()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
thread.join()
"""
FIRST_USES = {
    "from_dlpack": "bridge.from_dlpack(numpy.zeros(3))",
    "to_device": "bridge.to_device(numpy.zeros(3), 'cpu', copy=True)",
    "method": "repr(bridge.asarray(numpy.zeros(3)))",
    "ffi": "bridge.ffi.Array",
    "load": "bridge.load",
    "explain": "bridge.explain(numpy.zeros(3), 'cpu')",
}


@pytest.mark.parametrize("use", FIRST_USES.values(), ids=FIRST_USES)
def test_a_child_of_a_fork_in_the_middle_of_a_first_use_does_not_hang(use):
    assert run_script(FIRST_USE.format(use=use, delay=0.005), silent=True) == ""


# What our first use imports of other packages may begin behind the wait, so no import may be left.
OF_ANOTHER_PACKAGE = """
import os, signal, sys, threading, warnings
from pathlib import Path
warnings.filterwarnings("ignore", "This process .* is multi-threaded")  # since CPython 3.12
import dlbridge as bridge

sys.path.insert(0, {folder!r})
Path({folder!r}, "slow_package.py").write_text("import gate; gate.begun.set(); gate.open.wait()")
Path({folder!r}, "gate.py").write_text("import threading; begun, open = threading.Event(), threading.Event()")
import gate

thread = threading.Thread(target=__import__, args=("slow_package",))
thread.start()
gate.begun.wait()
child = os.fork()
if not child:
    signal.alarm(60)  # ends a child that hangs
    gate.open = threading.Event()
    gate.open.set()
    import slow_package
    os._exit(0)
gate.open.set()
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_child_imports_what_another_thread_was_importing(tmp_path):
    assert run_script(OF_ANOTHER_PACKAGE.format(folder=str(tmp_path)), silent=True) == ""
