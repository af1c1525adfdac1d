"""The conformance kit: on mapped memory, on a second device, on staged memory."""

import struct
from pathlib import Path

import pytest
from dlbridge_vulkan import Vulkan

from dlbridge.testing import BackendTests

SCALE = Path(__file__).parent / "shaders" / "scale.spv"


class VulkanTests(BackendTests):
    name = "vulkan"

    def slow_work(self, backend, device_id, stream):
        """A shader that multiplies by 1 for 100 ms or more."""
        kernel = backend.kernel(SCALE.read_bytes(), buffers=1, push_nbytes=12, device_id=device_id)
        data = backend.allocate(device_id, 4, 4, 0)
        kernel.run([(backend.live.get(data), 0, 4)], (1, 30), struct.pack("=IIf", 1, 60_000, 1.0))
        backend.free(device_id, data, stream)  # deferred until the shader is done
        return kernel


class TestMapped(VulkanTests):
    """As the driver offers it: lavapipe's memory is all mapped."""


class TestSecondDevice(VulkanTests):
    """The same, on another driver."""

    device_id = 1

    @pytest.fixture
    def backend(self, vulkan, second):
        return vulkan


class TestStaged(VulkanTests):
    """As on a discrete GPU: everything goes through the staging ring."""

    @pytest.fixture
    def backend(self, staged):
        return staged


class TestSimulatedDiscrete(VulkanTests):
    """A discrete GPU as the specification allows it; see tests/simulated/README.md."""

    @pytest.fixture
    def backend(self, discrete):
        return discrete


class TestSimulatedIntegrated(VulkanTests):
    """An APU with a small carve-out: tensors in the host's cached memory, and imports."""

    @pytest.fixture
    def backend(self, integrated):
        return integrated


def test_staged_by_the_environment(vulkan, monkeypatch):
    monkeypatch.setenv("DLBRIDGE_VULKAN_STAGED", "1")
    assert Vulkan().devices.staged
    monkeypatch.setenv("DLBRIDGE_VULKAN_STAGED", "0")
    assert not Vulkan().devices.staged
