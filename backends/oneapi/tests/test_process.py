"""Processes that import, end, and fork; and machines that lack something."""

import sys

import pytest

from backends.oneapi.tests.late import late_copy
from dlbridge.errors import ExchangeError
from dlbridge.protocol import Span
from tests.support.scripts import run_script

START = "import os, sys, gc\nimport numpy as np, dlbridge as bridge\n"


def script(code, **environment):
    """What *code* prints in a process of its own, which ends without noise."""
    return run_script(START + code, env=environment, silent=True)


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
from backends.oneapi.tests.late import late_copy
from tests.support.scripts import run_script
queue = dpctl.SyclQueue(bridge.backend('oneapi').devices[0], property='in_order')
tensor = bridge.to_device(np.arange(1000, dtype='u4'), 'oneapi:0', copy=True)
with bridge.use_stream('oneapi:0', queue):
    work = late_copy(queue)
    copied = bridge.to_device(tensor, 'oneapi:0', copy=True)
"""

EXITS = {
    "work is queued": "",
    "work is queued on memory that was freed": "del tensor, work, copied",
    "the queue is gone": "del queue",
}


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("scene", EXITS)
def test_exits(oneapi, scene, turn):
    script(LATE + EXITS[scene])


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

    def backend(*listed):
        monkeypatch.setattr(dpctl, "get_devices", lambda: [each or real for each in listed])
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


def test_info(oneapi):
    info = oneapi.device_info(0)
    assert info["memory"] > 0
    assert info["filter"] == oneapi.devices[0].filter_string
