"""Memory for other drivers: how it is allocated, its file descriptor, and what is refused."""

import gc
import os

import pytest
from dlbridge_vulkan import devices
from dlbridge_vulkan.library import constant

from backends.vulkan.tests.held_buffers import allocate, free, write
from dlbridge.errors import DeviceError, ExchangeError


@pytest.fixture
def buffer(exporting):
    data = allocate(exporting, 0, 5000, 256, 0)
    yield data
    free(exporting, 0, data, 0)


def test_the_file_of_a_buffer(exporting, buffer):
    """Each export is a new file descriptor, for the whole block; the caller closes it."""
    first, second = (exporting.export_memory(0, buffer) for _ in range(2))
    allocation = exporting.devices.buffer(buffer)
    assert first.fd != second.fd
    assert first[1:4] == second[1:4] == (allocation.block.size, allocation.start, "")
    for memory in (first, second):
        os.fstat(memory.fd)
        del memory
    assert exporting.memory_export_refusal(0, buffer) == ""


def test_buffers_of_one_block(exporting, buffer):
    """They share a file, and lie apart in it."""
    other = allocate(exporting, 0, 5000, 256, 0)
    exported = [exporting.export_memory(0, data) for data in (buffer, other)]
    begin, end = sorted(memory.offset for memory in exported)
    assert end - begin >= 5000
    assert exported[0].nbytes == exported[1].nbytes
    free(exporting, 0, other, 0)


def test_the_file_is_the_memory(exporting, buffer):
    """lavapipe's is a memfd, with the memory's bytes in it."""
    if "llvmpipe" not in exporting.device_info(0)["name"]:
        pytest.skip("what an opaque file descriptor is, each driver knows for itself")
    marker = os.urandom(64)
    write(exporting, buffer, marker, 100)
    exporting.synchronize(0, 0)
    memory = exporting.export_memory(0, buffer)
    try:
        header = os.fstat(memory.fd).st_size - memory.nbytes
        content = os.pread(memory.fd, header + 8192, memory.offset)
    finally:
        del memory
    assert marker in content


def test_memory_that_was_not_allocated_for_it(vulkan):
    """By default nothing is, and the refusal says how to have it."""
    data = allocate(vulkan, 0, 64, 4, 0)
    refusal = vulkan.memory_export_refusal(0, data)
    assert "set DLBRIDGE_VULKAN_EXPORT=1 before the first use of Vulkan" in refusal
    with pytest.raises(ExchangeError, match="DLBRIDGE_VULKAN_EXPORT=1"):
        vulkan.export_memory(0, data)
    free(vulkan, 0, data, 0)


def test_memory_that_is_somebody_elses(exporting):
    wrapped = exporting.wrap_buffer(0, 7, 8, 64)
    assert "wrapped, or host memory in place" in exporting.memory_export_refusal(0, wrapped.data)
    del wrapped
    gc.collect()


def test_memory_that_was_freed(exporting):
    data = allocate(exporting, 0, 64, 4, 0)
    free(exporting, 0, data, 0)
    for ask in (exporting.memory_export_refusal, exporting.export_memory):
        with pytest.raises(DeviceError, match="not a live Vulkan buffer"):
            ask(0, data)


@pytest.mark.parametrize(
    ("features", "says"),
    [
        (0, "does not export the memory of buffers"),
        (3, "exports only memory that belongs to one buffer alone"),
        (6, ""),
    ],
)
def test_what_a_driver_says_of_such_buffers(exporting, monkeypatch, features, says):
    """VkExternalMemoryFeatureFlags: exportable, and not for dedicated memory only."""
    assert constant("VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT") == 2

    class Driver:
        def vkGetPhysicalDeviceExternalBufferProperties(self, _pointer, _info, properties):
            properties.externalMemoryProperties.externalMemoryFeatures = features

    monkeypatch.setattr(devices, "load", Driver)
    refusal = devices.device_refusal(exporting.devices[0].physical)
    assert says in refusal
    assert bool(says) == bool(refusal)


@pytest.mark.usefixtures("vulkan")
def test_the_environment_asks_for_it(run_python):
    code = """
import dlbridge as bridge
from backends.vulkan.tests.held_buffers import allocate, allocate_exportable, free
vulkan = bridge.backend("vulkan")
data = allocate(vulkan, 0, 64, 4, 0)
print(vulkan.memory_export_refusal(0, data))
free(vulkan, 0, data, 0)
"""
    asked, plain = run_python(code, DLBRIDGE_VULKAN_EXPORT="1"), run_python(code)
    assert "not allocated for other drivers" in plain.stdout, plain.stderr
    assert "not allocated for other drivers" not in asked.stdout, asked.stderr
