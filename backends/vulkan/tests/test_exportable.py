"""Memory for other processes: an allocation of its own, its limits, and what fails."""

import gc

import pytest
from dlbridge_vulkan import Vulkan
from dlbridge_vulkan.devices import ADOPTED

from backends.vulkan.tests.held_buffers import allocate, allocate_exportable, free, import_memory
from dlbridge.errors import DeviceMemoryError, Error, ExchangeError
from dlbridge.protocol import Span
from dlbridge.testing.backend_base import open_files


@pytest.fixture
def sharing(vulkan):
    """The backend as users get it, without ``exportable=True``."""
    refusal = vulkan.memory_export_refusal(0, 0)
    if refusal:
        pytest.skip(refusal)
    yield vulkan
    gc.collect()


def counts(backend):
    return backend.live_allocations(), backend.devices[0].allocations, open_files()


def test_each_is_an_allocation_of_its_own(sharing):
    """Whole pages, whose size the export says; other tensors' memory is not exported."""
    before = sharing.devices[0].allocations
    made = [allocate_exportable(sharing, 0, nbytes, 0) for nbytes in (1, 4096, 5000)]
    assert sharing.devices[0].allocations == before + 3
    exported = [sharing.export_memory(0, data) for data in made]
    assert [memory[1:4] for memory in exported] == [(4096, 0, ""), (4096, 0, ""), (8192, 0, "")]
    assert len({sharing.devices.buffer(data).memory for data in made}) == 3
    other = allocate(sharing, 0, 5000, 256, 0)
    assert "not allocated for other drivers" in sharing.memory_export_refusal(0, other)
    free(sharing, 0, other, 0)
    held = sharing.devices[0].allocations
    for data in made:
        free(sharing, 0, data, 0)
    assert sharing.devices[0].allocations == held - 3


def test_a_whole_buffer_is_seen(sharing, scale):
    """A kernel reaches each word; bytes outside the memory are refused."""
    data = allocate_exportable(sharing, 0, 4 * 1000, 0)
    ones = memoryview(bytes(3)).cast("B")
    sharing.copy_from_host(Span(0, data, 3997, 3), ones, 0)
    scale(sharing, data, 1000, 2.0)
    sharing.synchronize(0, 0)
    with pytest.raises(ExchangeError, match="outside a Vulkan buffer"):
        sharing.copy_from_host(Span(0, data, 4094, 3), ones, 0)
    free(sharing, 0, data, 0)


def test_too_much_at_once(sharing):
    before = counts(sharing)
    with pytest.raises(DeviceMemoryError, match="move a large tensor in slices"):
        allocate_exportable(sharing, 0, 1 << 50, 0)
    assert counts(sharing) == before


def test_too_many_allocations(sharing, monkeypatch):
    before = counts(sharing)
    device = sharing.devices[0]
    monkeypatch.setattr(device, "most_allocations", device.allocations)
    with pytest.raises(DeviceMemoryError, match="share one large tensor, and send its parts"):
        allocate_exportable(sharing, 0, 100, 0)
    assert counts(sharing) == before


def test_a_device_that_exports_nothing(vulkan, monkeypatch):
    monkeypatch.setattr(vulkan.devices[0], "sharing_refusal", "it has no such thing")
    assert vulkan.memory_export_refusal(0, 0) == "it has no such thing"
    with pytest.raises(ExchangeError, match="no memory for other processes: it has no such thing"):
        allocate_exportable(vulkan, 0, 100, 0)


def test_a_device_that_was_adopted(vulkan):
    """Its extensions are not known."""
    own = vulkan.devices[0]
    backend = Vulkan()  # a device that was adopted stays in the list of devices
    index = backend.adopt_device(
        own.instance, own.physical.pointer, own.pointer, own.queue.handle, own.queue.family
    )
    assert backend.memory_export_refusal(index, 0) == ADOPTED
    backend.close_device(index)


@pytest.mark.parametrize("call", ["vkAllocateMemory", "vkCreateBuffer"])
def test_a_driver_that_refuses(simulate, monkeypatch, call):
    """No memory and no file is left."""
    backend = simulate()
    free(backend, 0, allocate_exportable(backend, 0, 100, 0), 0)
    before = counts(backend)
    monkeypatch.setenv("SIMULATED_REFUSE", f"{call}:0:9:-13")
    with pytest.raises(Error, match=call):
        allocate_exportable(backend, 0, 5000, 0)
    monkeypatch.delenv("SIMULATED_REFUSE")
    assert counts(backend) == before
    free(backend, 0, allocate_exportable(backend, 0, 5000, 0), 0)


def test_kept_memory_makes_room(simulate):
    """Blocks that nothing uses go back to the driver before it is asked a second time."""
    mib = 1 << 20
    backend = simulate(HEAPS=f"{100 * mib}:1,{100 * mib}:0", TYPES="1:0,6:1,1:0,6:1,1:0")
    free(backend, 0, allocate(backend, 0, 90 * mib, 256, 0), 0)
    backend.synchronize(0, 0)
    assert backend.devices[0].allocations > 0
    data = allocate_exportable(backend, 0, 60 * mib, 0)
    with pytest.raises(DeviceMemoryError, match="for other processes"):
        allocate_exportable(backend, 0, 60 * mib, 0)
    free(backend, 0, data, 0)


def test_its_end_waits_for_the_work(sharing, delay):
    """Of this process; the memory of the other one stays."""
    data = allocate_exportable(sharing, 0, 4096, 0)
    memory = sharing.export_memory(0, data)
    imported, _ = import_memory(sharing, 0, memory)
    del memory
    value = delay(sharing, data)
    free(sharing, 0, data, 0)
    assert sharing.devices[0].queue.done(value)
    free(sharing, 0, imported, 0)
