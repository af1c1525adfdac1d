"""Host memory in place: imported where it lies well, refused with the reason elsewhere."""

import mmap

import numpy as np
import pytest
from dlbridge_vulkan import shared

from backends.vulkan.tests.held_buffers import free, import_host
from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError
from dlbridge.protocol import Span

PAGE = mmap.PAGESIZE


@pytest.fixture
def pages():
    """``pages(n)``: a float32 array on *n* fresh pages."""

    def make(n):
        return np.frombuffer(mmap.mmap(-1, n * PAGE), np.float32)

    return make


def address(array):
    return array.__array_interface__["data"][0]


def test_a_shader_writes_host_memory_in_place(vulkan, pages, scale):
    """S2: no byte is copied, the address is the same, the host sees it after the wait."""
    values = pages(4)
    values[:] = np.arange(len(values))
    data, offset = import_host(vulkan, 0, address(values), values.nbytes, False)
    assert offset == 0
    scale(vulkan, data, len(values), 2.0)
    vulkan.synchronize(0, 0)
    assert (values == 2 * np.arange(len(values))).all()
    assert vulkan.host_view(Span(0, data, 8, 4), True, 0).data == address(values) + 8
    free(vulkan, 0, data, 0)


def test_free_waits_although_a_call_has_the_buffer(vulkan, pages, delay):
    """The memory goes when its owner is dropped, whoever has looked the buffer up before.

    A kernel's bindings have it, and so has the traceback of an exception that somebody keeps. If
    that put the end off, the device would use memory that is unmapped: a segmentation fault.
    """
    values = pages(1)
    data, _ = import_host(vulkan, 0, address(values), PAGE, False)
    binding = (vulkan.devices.buffer(data), 0, PAGE)
    with pytest.raises(ExchangeError, match="outside") as kept:
        vulkan.copy(Span(0, data, 0, PAGE), Span(0, data, 4, PAGE), 0)
    value = delay(vulkan, data)
    free(vulkan, 0, data, 0)
    assert vulkan.devices[0].queue.done(value)
    assert not binding[0].cell[0]
    assert vulkan.devices.find(data) is None
    assert kept.value.__traceback__ is not None


@pytest.mark.parametrize("misaligned", [1, 4, 64, PAGE // 2])
def test_memory_inside_a_page_is_refused(vulkan, pages, misaligned):
    where = address(pages(2)) + misaligned
    refusal = vulkan.host_import_refusal(0, where, 64, True)
    assert refusal.startswith(f"pointer not page aligned: {where:#x} is not a multiple of 4096")
    with pytest.raises(ExchangeError, match="pointer not page aligned"):
        import_host(vulkan, 0, where, 64, False)


@pytest.mark.parametrize("nbytes", [4, 100, PAGE - 4, PAGE + 4])
def test_a_last_page_is_imported_whole(vulkan, pages, nbytes):
    """The tensor's end need not be a page's: the page is there."""
    values = pages(2)
    raw = values.view(np.uint8)
    raw[:] = 5
    data, _ = import_host(vulkan, 0, address(values), nbytes, False)
    vulkan.fill(Span(0, data, 0, nbytes), 9, 0)
    free(vulkan, 0, data, 0)
    assert (raw[:nbytes] == 9).all()
    assert (raw[nbytes:] == 5).all()


@pytest.mark.parametrize("nbytes", [1, 5, PAGE - 1])
def test_memory_that_ends_inside_a_word_is_refused(vulkan, pages, nbytes):
    """A shader writes whole words: the bytes up to the next one are somebody else's."""
    where = address(pages(1))
    refusal = vulkan.host_import_refusal(0, where, nbytes, True)
    assert refusal.startswith(
        f"{nbytes} bytes are not a multiple of 4: a shader writes 32-bit words"
    )
    with pytest.raises(ExchangeError, match="not a multiple of 4"):
        import_host(vulkan, 0, where, nbytes, False)


@pytest.mark.parametrize("error", [KeyboardInterrupt, DeviceMemoryError, DeviceError])
def test_memory_is_not_pulled_away_from_work(vulkan, pages, monkeypatch, error):
    """Only a device that is lost has no work left; else what cannot be waited for stays."""
    values = pages(1)
    data, _ = import_host(vulkan, 0, address(values), values.nbytes, False)
    buffer, device = vulkan.devices.buffer(data), vulkan.devices[0]
    real, destroyed = device.lib, []

    class Watching:
        def __getattr__(self, name):
            if name.startswith(("vkDestroy", "vkFree")):
                destroyed.append(name)
                return lambda *_: None
            return getattr(real, name)

    def failing(*_):
        raise error

    monkeypatch.setattr(device, "lib", Watching())
    monkeypatch.setattr(buffer, "last_use", 1 << 40)
    monkeypatch.setattr(device.queue, "done", lambda _: False)
    monkeypatch.setattr(device.queue, "wait", failing)
    handle, lost = buffer.cell[0], error is DeviceError
    if error is KeyboardInterrupt:
        with pytest.raises(error):
            device._give_back([buffer])
    else:
        assert device._give_back([buffer]) is lost
    assert destroyed == (["vkDestroyBuffer"] if lost else [])
    assert (buffer.block is None) is lost
    monkeypatch.undo()
    buffer.cell[0], buffer.last_use = handle, 0
    free(vulkan, 0, data, 0)


def test_a_driver_with_larger_pages_than_the_system(vulkan, monkeypatch):
    """Then the end of the last page might not be mapped: refused (no such driver was met)."""
    monkeypatch.setattr(shared.mmap, "PAGESIZE", 1024)
    assert "not a multiple of the 4096" in vulkan.host_import_refusal(0, 1 << 20, 100, True)
    assert vulkan.host_import_refusal(0, 1 << 20, 4096, True) == ""


def test_a_device_without_the_extension(vulkan, monkeypatch):
    monkeypatch.setattr(vulkan.devices[0], "host_pointer_properties", None)
    assert "has no VK_EXT_external_memory_host" in vulkan.host_import_refusal(
        0, 1 << 20, 4096, True
    )
