"""`bridge.trim`: which backends are asked, about which devices, and what their errors become."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from counting_backend import NAME, Counting, counting
from expected import backend_or_skip
from scripts import run_script

import dlbridge as bridge
from dlbridge.errors import BackendError, DeviceError, DeviceLost


class Keeping(Counting):
    """A device that notes what it was asked to give back, and fails as it is told."""

    def __init__(self):
        super().__init__()
        self.trimmed = []
        self.raises = {}

    def trim(self, device_id):
        self.check_device(device_id)
        self.trimmed.append(device_id)
        if device_id in self.raises:
            raise self.raises[device_id]


@pytest.fixture
def keeping():
    with counting(Keeping) as backend:
        yield backend


def test_a_device_is_trimmed_by_its_backend(keeping):
    assert bridge.trim(f"{NAME}:1") is None
    bridge.trim(bridge.device(NAME))
    assert keeping.trimmed == [1, 0]


def test_without_a_device_all_loaded_backends_are_asked(keeping):
    bridge.trim()
    assert keeping.trimmed == [0, 1]


def test_a_backend_that_keeps_nothing_has_nothing_to_do():
    bridge.trim("cpu")
    bridge.trim("ext_dev:1")


def test_no_backend_is_loaded_for_it():
    code = """
        import sys, dlbridge
        dlbridge.trim()
        print([name for name in sys.modules if name.startswith("dlbridge_") or name == "numpy"])
    """
    assert run_script(code) == "[]\n"


@pytest.mark.parametrize("device", ["ext_dev:7", "nothing:0"])
def test_a_device_that_there_is_not(device):
    with pytest.raises((bridge.Error, ValueError), match=device.partition(":")[0]):
        bridge.trim(device)


def test_one_failure_does_not_spare_the_others(keeping):
    keeping.raises = {0: DeviceError("busy")}
    with pytest.raises(DeviceError, match="busy"):
        bridge.trim()
    assert keeping.trimmed == [0, 1]


def test_a_lost_device_keeps_nothing(keeping):
    keeping.raises = {0: DeviceLost("gone")}
    bridge.trim()
    with pytest.raises(DeviceLost):
        bridge.trim(f"{NAME}:0")


def test_other_exceptions_name_the_backend(keeping):
    keeping.raises = {1: RuntimeError("oops")}
    with pytest.raises(BackendError, match=f"'{NAME}' failed in trim: RuntimeError: oops"):
        bridge.trim(f"{NAME}:1")
    with pytest.raises(BackendError, match=f"'{NAME}' failed in trim"):
        bridge.trim()


def test_tensors_in_use_stay_as_they_are():
    backend_or_skip("opencl")
    t = bridge.to_device(np.arange(1 << 20), "opencl:0", copy=True)
    bridge.to_device(t, "opencl:0", copy=True)  # and is dropped
    bridge.trim()
    assert (bridge.to_device(t, "cpu").numpy() == np.arange(1 << 20)).all()


RSS = """
    import resource
    import numpy as np
    import dlbridge as bridge

    def rss():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize() >> 20

    device = DEVICE
    bridge.trim(device)  # before it was used
    bridge.to_device(np.ones(1000, "u1"), device, copy=True)
    before = rss()
    t = bridge.empty(128 << 20, "u1", device=device)
    bridge.copy_(t, np.ones(128 << 20, "u1"))
    del t
    kept = rss() - before
    bridge.trim(device)
    print(kept, rss() - before)
"""


def rss_kept_and_left(device, env):
    code = RSS.replace("DEVICE", repr(device))
    return map(int, run_script(code, env=env).split())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("device", ["vulkan:0"])
def test_the_system_gets_what_was_kept(device):
    """On drivers of the CPU, whose devices' memory is the process's."""
    backend_or_skip(device.partition(":")[0])
    kept, left = rss_kept_and_left(device, {})
    assert kept > 100, "nothing was kept, and the test shows nothing"
    assert left < 40


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("device", ["vulkan:0"])
def test_a_limit_keeps_less(device):
    backend_or_skip(device.partition(":")[0])
    kept, _ = rss_kept_and_left(device, {"DLBRIDGE_POOL_LIMIT": str(64 << 20)})
    assert kept < 80


@pytest.mark.parametrize(("name", "limit"), [("vulkan", "64MiB"), ("vulkan", ""), ("vulkan", "-1")])
def test_a_limit_that_is_no_number(name, limit):
    backend_or_skip(name)
    code = f"""
        import dlbridge as bridge
        try:
            bridge.zeros(1, device="{name}:0")
        except bridge.Error as exc:
            print(exc)
        else:
            print("accepted")
    """
    said = run_script(code, env={"DLBRIDGE_POOL_LIMIT": limit})
    if limit:
        assert "DLBRIDGE_POOL_LIMIT" in said
        assert repr(limit) in said
        assert "bytes" in said
    else:
        assert said == "accepted\n"  # as not set


def test_a_forked_child_is_told():
    backend_or_skip("opencl")
    code = """
        import os, sys
        import dlbridge as bridge
        t = bridge.zeros(10, device="opencl:0")
        child = os.fork()
        if not child:
            try:
                bridge.trim("opencl:0")
            except bridge.DeviceError as exc:
                os._exit(7 if "fork" in str(exc) else 8)
            os._exit(9)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run_script(code) == "7\n"
