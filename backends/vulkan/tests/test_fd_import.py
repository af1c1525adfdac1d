"""Memory of another driver as a Vulkan buffer: here, of another VkDevice of the same driver."""

import gc
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from dlbridge_vulkan import Vulkan, shared
from dlbridge_vulkan.memory import Block

import dlbridge as bridge
from backends.vulkan.tests.held_buffers import allocate, free, import_memory
from dlbridge.errors import Error, ExchangeError
from dlbridge.extending import LOADED
from dlbridge.protocol import ExportedMemory
from dlbridge.testing.backend_base import open_files
from tests.support.interrupted import at_each_step
from tests.support.known_backends import forget_identities, replace_backend

OTHER = "vulkan_of_another_driver"
VALUES = np.arange(3000, dtype="i4").reshape(30, 100)


@pytest.fixture
def both(vulkan, exporting, monkeypatch):
    """``OTHER`` exports, and ``vulkan`` imports."""
    replace_backend(monkeypatch, OTHER, Vulkan)
    monkeypatch.setitem(LOADED, OTHER, exporting)
    forget_identities(monkeypatch)
    yield exporting, vulkan
    gc.collect()
    assert exporting.live_allocations() == 0


def there(values=VALUES):
    return bridge.to_device(values, f"{OTHER}:0", copy=True)


def host(tensor):
    return bridge.to_device(tensor, "cpu", copy=True, like="numpy")


def test_the_bytes_are_shared(both):
    """Each device reads what the other wrote, and nothing is copied."""
    source = there()
    with bridge.trace() as trace:
        here = bridge.to_device(source, "vulkan:0", copy=False)
    assert [step.kind for step in trace.plans[0].steps] == ["memory import"]
    assert (host(here) == VALUES).all()
    bridge.copy_(here, VALUES * 2)
    bridge.synchronize("vulkan:0")
    assert (host(source) == VALUES * 2).all()
    bridge.copy_(source, VALUES * 3)
    bridge.synchronize(f"{OTHER}:0")
    assert (host(here) == VALUES * 3).all()


def test_the_place_in_the_block(both):
    """Neighbours are found at their own offsets; views stay views."""
    tensors = [there(np.full(100, k, "u1")) for k in range(4)]
    here = [bridge.to_device(each, "vulkan:0", copy=False) for each in tensors]
    bridge.copy_(here[2], np.full(100, 77, "u1"))
    bridge.synchronize("vulkan:0")
    assert [set(host(each).tolist()) for each in tensors] == [{0}, {1}, {77}, {3}]
    view = bridge.to_device(there()[3:, 1::2], "vulkan:0", copy=False)
    assert (host(view) == VALUES[3:, 1::2]).all()


def test_what_is_no_memory_is_refused(vulkan):
    """The file stays the caller's, and no other is left open."""
    before, allocations = open_files(), vulkan.devices[0].allocations
    with Path("/dev/null").open("rb") as file:
        with pytest.raises(Error, match="vkAllocateMemory of 4096 bytes of another driver's"):
            import_memory(vulkan, 0, ExportedMemory(file.fileno(), 4096, 0))
        assert file.read() == b""
    assert (open_files(), vulkan.devices[0].allocations) == (before, allocations)
    with pytest.raises(ExchangeError, match="there is no vulkan:99"):
        import_memory(vulkan, 99, ExportedMemory(0, 4, 0))


def test_a_device_without_the_extension(vulkan, monkeypatch):
    monkeypatch.setattr(vulkan.devices[0], "imports_fds", False)
    refusal = vulkan.memory_import_refusal(0)
    assert "VK_KHR_external_memory_fd" in refusal
    with pytest.raises(ExchangeError, match="VK_KHR_external_memory_fd"):
        import_memory(vulkan, 0, ExportedMemory(0, 4096, 0))


def counts(backend):
    gc.collect()
    backend.devices[0].buffers.sweep()
    return open_files(), backend.devices[0].allocations


STEPS = shared.import_fd, shared._block, shared._make_buffer, shared._bind, Block.allocate


def test_an_import_that_a_handler_interrupts(vulkan, exporting):
    """The duplicate of the caller's descriptor is closed, unless the driver has it."""
    data = allocate(exporting, 0, 5000, 256, 0)
    memory = exporting.export_memory(0, data)
    free(vulkan, 0, import_memory(vulkan, 0, memory)[0], 0)
    before = counts(vulkan)
    work = partial(vulkan.import_memory, 0, memory, 0)
    assert len(at_each_step(STEPS, work, int)) > 20
    assert counts(vulkan) == before
    del memory, work
    free(exporting, 0, data, 0)


def test_a_refused_import_that_a_handler_interrupts(vulkan):
    def work():
        with pytest.raises(Error, match="vkAllocateMemory"):
            vulkan.import_memory(0, memory, 0)

    with Path("/dev/null").open("rb") as file:
        memory = ExportedMemory(file.fileno(), 4096, 0)
        before = counts(vulkan)
        assert len(at_each_step(STEPS, work, int)) > 20
        assert counts(vulkan) == before
        assert file.read() == b""
