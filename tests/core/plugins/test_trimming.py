"""`bridge.trim`: which backends are asked, about which devices, and what their errors become."""

from __future__ import annotations

import sys

import pytest

import dlbridge as bridge
from dlbridge.errors import BackendError, DeviceError, DeviceLost
from tests.support.counting_backend import NAME, Counting, counting
from tests.support.expected_parts import backend_or_skip
from tests.support.scripts import run_scene, run_script


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


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_system_gets_what_was_kept():
    """On drivers of the CPU, whose devices' memory is the process's."""
    backend_or_skip("vulkan")
    kept, left = map(int, run_scene("backends.kept_and_left", "vulkan:0").split())
    assert kept > 100, "nothing was kept, and the test shows nothing"
    assert left < 40


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_limit_keeps_less():
    backend_or_skip("vulkan")
    limit = {"DLBRIDGE_POOL_LIMIT": str(64 << 20)}
    assert int(run_scene("backends.kept_and_left", "vulkan:0", env=limit).split()[0]) < 80


@pytest.mark.parametrize("limit", ["64MiB", "", "-1"])
def test_a_limit_that_is_no_number(limit):
    backend_or_skip("vulkan")
    said = run_script(
        """
        import dlbridge as bridge
        try:
            bridge.zeros(1, device="vulkan:0")
        except bridge.Error as exc:
            print(exc)
        """,
        env={"DLBRIDGE_POOL_LIMIT": limit},
    )
    if limit:
        for part in ("DLBRIDGE_POOL_LIMIT", repr(limit), "bytes"):
            assert part in said
    else:
        assert said == ""  # as not set
