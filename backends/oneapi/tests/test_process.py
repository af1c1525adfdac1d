"""Processes that import, end, and fork; and machines that lack something."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from late import late_copy
from scripts import run_script

import dlbridge as bridge
from dlbridge.errors import ExchangeError
from dlbridge.protocol import Span

HERE = Path(__file__).parent
START = "import os, sys, gc\nimport numpy as np, dlbridge as bridge\n"


def script(code, **environment):
    """What *code* prints in a process of its own, which ends without noise."""
    return run_script(START + code, env=environment, paths=(HERE,), silent=True)


def test_memory_of_dpctl_names_its_backend(oneapi):
    """The backend is loaded for it, although nobody has named it."""
    code = "import dpctl.memory as m; print(bridge.asarray(m.MemoryUSMDevice(10)).device)"
    assert script(code) == "oneapi:0\n"


def test_dpnp_is_not_needed(oneapi):
    code = """
sys.modules['dpnp'] = None
import dpctl.memory
memory = dpctl.memory.MemoryUSMShared(12)
tensor = bridge.asarray(memory)
bridge.copy_(tensor, np.arange(12, dtype='u1'))
native = bridge.to_device(tensor, 'oneapi:0', copy=True).to_native()
print(bytes(dpctl.memory.as_usm_memory(native).tobytes()) == bytes(range(12)))
"""
    assert script(code) == "True\n"


TURNS = [0, *(pytest.param(turn, marks=pytest.mark.exhaustive) for turn in (1, 2))]
"""Each process has its chance to meet a race of Intel's runtime: one here, two more each night."""

LATE = """
import dpctl
from late import late_copy
from scripts import run_script
queue = dpctl.SyclQueue(bridge.backend('oneapi').devices[0], property='in_order')
tensor = bridge.to_device(np.arange(1000, dtype='u4'), 'oneapi:0', copy=True)
with bridge.use_stream('oneapi:0', queue):
    work = late_copy(queue)
    copied = bridge.to_device(tensor, 'oneapi:0', copy=True)
"""

EXITS = {
    "work is queued": "",
    "work is queued on memory that was freed": "del tensor, work, copied",
    "native objects are alive": "import builtins; builtins.kept = [copied.to_native(), tensor]",
    "the queue is gone": "del queue",
    "a cycle is alive": "cycle = [copied]; cycle.append(cycle); sys.modules['kept'] = cycle",
}


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("scene", EXITS)
def test_exits(oneapi, scene, turn):
    script(LATE + EXITS[scene])


def test_a_thread_that_comes_at_the_exit_is_refused_and_keeps_no_lock(oneapi):
    """Python would stop it in the middle of a call; a finalizer that comes later wants its turn."""
    code = """
import atexit, threading, time
begin = threading.Event()
@atexit.register  # before the backend is loaded, so that it comes after the backend's own
def last():
    begin.set()
    thread.join(100)
    assert len(refused) == 2, refused
backend = bridge.backend('oneapi')
gc.disable()
import dpctl.memory
garbage = [bridge.asarray(dpctl.memory.MemoryUSMDevice(100))]  # let go after all work
garbage.append(garbage)
del garbage  # collected when Python ends
def work():
    begin.wait()
    for work in (time.sleep, backend.queue(0).wait):  # any call, and one that takes its turn
        try:
            backend.call(work, *([10] if work is time.sleep else []))
        except bridge.DeviceError:
            refused.append(work)
refused = []
thread = threading.Thread(target=work, daemon=True)
thread.start()
"""
    script(code)


@pytest.mark.parametrize("turn", TURNS)
def test_exits_with_arrays_of_dpnp(oneapi, dpnp, turn):
    code = """
import dpnp
array = dpnp.arange(100_000, dtype='f4') * 2
tensor = bridge.asarray(array)
again = bridge.to_device(bridge.to_device(tensor, 'oneapi:0', copy=True), 'oneapi:0', like='dpnp')
del array
again += 1
"""
    script(code)


def test_a_child_of_fork_drops_what_it_has(oneapi):
    """Tensors and native objects of the parent are dropped there without a call of the driver."""
    code = """
import dpctl.memory
memory = dpctl.memory.MemoryUSMDevice(100)
tensor = bridge.to_device(np.arange(1000), 'oneapi:0', copy=True)
taken, view = bridge.asarray(memory), tensor[5:]
child = os.fork()
if not child:
    for use in (lambda: bridge.zeros(3, 'u1', 'oneapi:0'), lambda: bridge.asarray(memory)):
        try:
            use()
        except bridge.DeviceError as error:
            assert 'fork()' in str(error)
            assert 'spawn' in str(error)
        else:
            os._exit(1)
    del taken, tensor, view
    gc.collect()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert (bridge.to_device(view, 'cpu').numpy() == np.arange(5, 1000)).all()
"""
    script(code)


def test_without_usm_the_reason_is_told():
    """No device, or devices without USM memory such as PoCL's."""
    code = """
try:
    bridge.backend('oneapi')
except bridge.BackendUnavailable as error:
    print(error)
"""
    said = script(code, ONEAPI_DEVICE_SELECTOR="opencl:fpga", DLBRIDGE_BACKENDS="oneapi")
    assert said.startswith("oneapi: no SYCL device of 0 has USM; install a GPU's driver, or for")
    assert f"OCL_ICD_FILENAMES={sys.prefix}/lib/libintelocl.so" in said


def test_without_dpctl_the_reason_is_told():
    code = """
sys.modules['dpctl'] = None
try:
    bridge.backend('oneapi')
except bridge.BackendUnavailable as error:
    print(error)
"""
    said = script(code, DLBRIDGE_BACKENDS="oneapi")
    assert "oneapi: no dpctl (" in said
    assert "pip install dpctl" in said


# More devices than this machine has: the same one twice, and one without USM memory.


class Device:
    """A device of dpctl with another answer about USM memory."""

    has_aspect_usm_device_allocations = False


@pytest.fixture
def devices(oneapi, monkeypatch):
    """A backend on the given devices."""
    import dpctl

    make = dpctl.get_device_cached_queue
    real = oneapi.devices[0]
    monkeypatch.setattr(
        dpctl, "get_device_cached_queue", lambda each: make(real if type(each) is Device else each)
    )

    def backend(*found):
        monkeypatch.setattr(dpctl, "get_devices", lambda: [each or real for each in found])
        return type(oneapi)()

    return backend


def test_copies_between_two_devices(devices):
    backend = devices(None, None)
    queue = backend.queue(0)
    held = [backend.allocate(device_id, 4000, 256, 0) for device_id in (0, 1)]
    first, second = (each.data for each in held)
    backend.fill(Span(0, first, 0, 4000), 7, 0)
    work = late_copy(queue)
    backend.copy(Span(1, second, 10, 3000), Span(0, first, 500, 3000), 0)
    into = bytearray(3020)
    backend.copy_to_host(Span(1, second, 0, 3020), memoryview(into), 0)
    backend.synchronize(1, 0)
    assert into[10:3010] == b"\x07" * 3000
    del held, work


def test_devices_without_usm_keep_their_number(devices):
    """The numbers are dpctl's; the devices behind the last usable one are not counted."""
    backend = devices(Device(), None, Device(), Device())
    assert backend.device_count() == 2
    with pytest.raises(ExchangeError, match="oneapi:0 has no USM memory; use another device"):
        backend.allocate(0, 100, 256, 0)
    assert backend.allocate(1, 100, 256, 0).data
    with pytest.raises(ExchangeError, match="there is no oneapi:2: 2 devices here"):
        backend.allocate(2, 100, 256, 0)


def test_info_and_names(oneapi, monkeypatch):
    info = oneapi.device_info(0)
    assert info["memory"] > 0
    assert info["filter"] == oneapi.devices[0].filter_string
    word = info["name"].split()[0]
    assert str(bridge.zeros(1, "u1", f"oneapi:{word}").device) == "oneapi:0"
    monkeypatch.setenv("DLBRIDGE_BACKENDS", "cpu,oneapi")
    command = [sys.executable, "-m", "dlbridge", "info"]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"^oneapi:0 +{re.escape(info['name'])}", report, re.MULTILINE)


@pytest.mark.parametrize("turn", TURNS)
def test_threads_on_the_queue_that_keeps_no_order(oneapi, turn):
    """Intel's CPU runtime crashed where two threads were in it."""
    code = """
from threads import in_threads
def work(number):
    x = np.arange(1000, dtype='u4')
    for _ in range(150):
        tensor = bridge.to_device(x, 'oneapi:0', copy=True)
        assert (bridge.to_device(tensor, 'cpu').numpy() == x).all()
        bridge.zeros(100, 'u4', 'oneapi:0')
assert in_threads(work, 8) == []
"""
    script(code)


def test_a_call_on_such_a_queue_waits_for_its_turn(oneapi):
    entered, done = threading.Event(), []

    def other():
        entered.set()
        oneapi.synchronize(0, 0)
        done.append("other")

    thread = threading.Thread(target=other)
    with oneapi.lock:
        oneapi.synchronize(0, 0)  # a finalizer of the same thread may come
        thread.start()
        entered.wait()
        thread.join(0.1)  # no verdict: who does not wait may come later, unseen
        done.append("first")
    thread.join()
    assert done == ["first", "other"]
