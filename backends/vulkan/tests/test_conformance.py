"""The conformance kit: on mapped memory, on a second device, on staged memory."""

from typing import ClassVar

import pytest
from dlbridge_vulkan import Vulkan
from dlbridge_vulkan.library import load

from backends.vulkan.tests.held_buffers import allocate, free
from dlbridge.testing import BackendTests


class VulkanTests(BackendTests):
    name = "vulkan"
    delay = None
    without_driver: ClassVar = {"VK_DRIVER_FILES": "/nowhere.json", "VK_INSTANCE_LAYERS": ""}
    refuses_writes = False  # Vulkan has no such right, and imports such memory on CPUs only
    # The validation layer looks at each of thousands of regions, and machines may be busy.
    patience = 300

    @pytest.fixture(autouse=True)
    def delayed(self, delay):
        type(self).delay = staticmethod(delay)

    @pytest.fixture(autouse=True)
    def idle(self, backend):
        """Let the validation layer forget all ranges that were used, which each submission walks.

        It does so at this call only: after a test with 70,000 runs, later ones took minutes.
        """
        yield
        assert load().vkDeviceWaitIdle(backend.devices[self.device_id].pointer) == 0

    def slow_work(self, backend, device_id, stream):
        """A shader that begins when somebody waits for the queue."""
        data = allocate(backend, device_id, 4, 4, 0)
        value = self.delay(backend, data, device_id)
        free(backend, device_id, data, stream)  # deferred until the shader is done
        return value

    def is_done(self, backend, device_id, stream, work):
        return backend.devices[device_id].queue.done(work)


class TestMapped(VulkanTests):
    """As the driver offers it: lavapipe's memory is all mapped."""


class TestSecondDevice(VulkanTests):
    """The same, on another driver: what the driver itself does, memory and work."""

    device_id = 1
    nightly = ("contract", "refusals", "native", "threads", "leaks")
    child_setup = None  # it was chosen for this process

    @pytest.fixture
    def backend(self, vulkan, second):
        return vulkan


class TestStaged(VulkanTests):
    """As on a discrete GPU: everything goes through the staging ring.

    So it does on the simulated one, which shows that by the whole kit, without processes of its own.
    """

    nightly = ("contract", "memory", "copy", "refusals", "order", "native", "leaks")
    child_setup = "import os; os.environ['DLBRIDGE_VULKAN_STAGED'] = '1'"

    @pytest.fixture
    def backend(self, staged):
        return staged


class TestSimulatedDiscrete(VulkanTests):
    """A discrete GPU as the specification allows it; see tests/simulated/README.md."""

    child_setup = None  # its driver is loaded in this process only

    @pytest.fixture
    def backend(self, discrete):
        return discrete


def test_the_simulated_gpu_is_the_one_that_is_meant(discrete):
    """A window of 256 MiB, 256-byte alignment, 128 MiB ranges, no import, memory not coherent."""
    device, mib = discrete.devices[0], 1 << 20
    info = discrete.device_info(0)
    assert device.physical.kind == "discrete"
    assert device.physical.limits["min_storage_buffer_offset_alignment"] == 256
    assert device.physical.limits["max_storage_buffer_range"] == 128 * mib
    assert "no VK_EXT_external_memory_host" in discrete.host_import_refusal(0, 0, 4096, True)
    visible, coherent = 2, 4  # VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT, ..._HOST_COHERENT_BIT
    types = device.physical.memory_types
    local = [(flags, size) for flags, _, size in types if flags & 1 and flags & visible]
    assert [size for flags, size in local if flags & coherent] == [256 * mib]
    assert [size for flags, size in local if not flags & coherent] == [info["memory"]]
    data = allocate(discrete, 0, 64, 256, 0)
    assert not discrete.devices.buffer(data).mapped
    free(discrete, 0, data, 0)
    changed = set(vars(TestSimulatedDiscrete)) | set(vars(VulkanTests))
    assert not [name for name in changed if name.startswith("test_")]  # the whole kit, unchanged


class TestSimulatedIntegrated(VulkanTests):
    """An APU with a small carve-out: tensors in the host's cached memory, and imports.

    It differs from `TestMapped` in where memory comes from, and in which of it the host reaches.
    """

    nightly = ("contract", "refusals", "order", "native", "threads")
    child_setup = None  # its driver is loaded in this process only

    @pytest.fixture
    def backend(self, integrated):
        return integrated


def test_staged_by_the_environment(vulkan, monkeypatch):
    monkeypatch.setenv("DLBRIDGE_VULKAN_STAGED", "1")
    assert Vulkan().devices.staged
    monkeypatch.setenv("DLBRIDGE_VULKAN_STAGED", "0")
    assert not Vulkan().devices.staged
