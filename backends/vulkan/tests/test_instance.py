"""Devices: which are taken, in what order, under which names; and what is said where none is."""

import dataclasses

import pytest
from dlbridge_vulkan import instance as instances, library
from dlbridge_vulkan.instance import KINDS

from backends.vulkan.tests.held_buffers import Loader, allocate, free
from dlbridge.errors import BackendUnavailable, DeviceError, DeviceMemoryError


def test_no_loader(monkeypatch):
    """Every name that was tried, and what to install."""
    monkeypatch.setattr(library, "_library", None)
    monkeypatch.setattr(library, "names", lambda *_: ("libnone-a.so", "libnone-b.so"))
    with pytest.raises(BackendUnavailable, match=r"libnone-a\.so .*libnone-b\.so .*apt install"):
        library.load()


def test_an_old_loader(vulkan, monkeypatch):
    def old(version):
        version[0] = 1 << 22 | 1 << 12
        return 0

    monkeypatch.setattr(instances, "load", lambda: Loader(vkEnumerateInstanceVersion=old))
    with pytest.raises(BackendUnavailable, match=r"loader speaks 1\.1\.0; 1\.2 or newer"):
        instances.create_instance()


def test_an_old_device_is_asked_nothing_new(vulkan, monkeypatch):
    """On a 1.1 driver only 1.0 functions are called: newer ones would crash it."""
    table = vulkan.devices

    def old(pointer, properties):
        library.load().vkGetPhysicalDeviceProperties(pointer, properties)
        properties.apiVersion = 1 << 22 | 1 << 12

    def never(*arguments):
        raise AssertionError("called on a device of Vulkan 1.1")

    changed = Loader(
        vkGetPhysicalDeviceProperties=old,
        vkGetPhysicalDeviceProperties2=never,
        vkGetPhysicalDeviceFeatures2=never,
    )
    monkeypatch.setattr(instances, "load", lambda: changed)
    with pytest.raises(BackendUnavailable, match=r"speaks Vulkan 1\.1\.0, 1\.2 is needed"):
        instances.physical_devices(table.instance, instances.NEEDED)


def test_tvms_order(vulkan, monkeypatch):
    """discrete, integrated, virtual, cpu, other; as listed within a kind."""
    listed = ["cpu", "other", "discrete", "virtual", "cpu", "integrated", "discrete"]
    real = vulkan.devices._entries[0].physical
    made = [
        dataclasses.replace(real, kind=kind, name=f"{kind} {i}") for i, kind in enumerate(listed)
    ]
    monkeypatch.setattr(instances, "array", lambda *_: made)
    monkeypatch.setattr(instances, "describe", lambda pointer, version: pointer)
    names = [d.name for d in instances.physical_devices(None, instances.NEEDED)]
    assert names == [
        "discrete 2", "discrete 6", "integrated 5", "virtual 3", "cpu 0", "cpu 4", "other 1",
    ]  # fmt: skip
    assert set(listed) == set(KINDS)


def test_a_device_that_cannot_be_opened_leaves_nothing(vulkan, monkeypatch):
    """The VkDevice is destroyed again, and with it (the layer looks) all in it."""
    from dlbridge_vulkan import Vulkan, device

    def full(*arguments):
        raise DeviceMemoryError("full")

    own = Vulkan()
    monkeypatch.setattr(device.MemoryType, "for_staging", full)
    with pytest.raises(DeviceMemoryError, match="full"):
        allocate(own, 0, 16, 16, 0)
    monkeypatch.undo()
    free(own, 0, allocate(own, 0, 16, 16, 0), 0)  # the next call tries again
    own.close_device(0)


@pytest.mark.parametrize(
    ("result", "name"),
    [(-3, "VK_ERROR_INITIALIZATION_FAILED"), (-1, "VK_ERROR_OUT_OF_HOST_MEMORY")],
)
def test_a_driver_that_cannot_start(vulkan, monkeypatch, result, name):
    """A machine without Vulkan, not a broken backend, whatever the reason."""
    changed = Loader(
        vkEnumeratePhysicalDevices=lambda *_: result, vkCreateInstance=lambda *_: result
    )
    monkeypatch.setattr(instances, "load", lambda: changed)
    with pytest.raises(BackendUnavailable, match=name):
        instances.physical_devices(vulkan.devices.instance, instances.NEEDED)
    with pytest.raises(BackendUnavailable, match=name):
        instances.create_instance()


def test_a_driver_that_lists_nothing(vulkan, monkeypatch):
    changed = Loader(vkEnumeratePhysicalDevices=lambda *_: 0)
    monkeypatch.setattr(instances, "load", lambda: changed)
    with pytest.raises(BackendUnavailable, match="the loader found no driver"):
        instances.physical_devices(vulkan.devices.instance, instances.NEEDED)


@pytest.mark.parametrize("error", [DeviceError, DeviceMemoryError])
def test_the_exit_goes_on_without_the_driver(vulkan, monkeypatch, error):
    """No device is waited for that cannot be; the others are."""

    def failing():
        raise error("no answer")

    queue = vulkan.devices[0].queue
    before = len(list(vulkan.devices.pending()))  # other tests may have adopted devices
    monkeypatch.setattr(queue, "mark", failing)
    assert len(list(vulkan.devices.pending())) == before - 1


def test_every_feature_of_the_docs_is_switched_on(vulkan, monkeypatch):
    """What vkCreateDevice is asked for, and that is all that the device has of it."""
    from dlbridge_vulkan import Vulkan, devices

    seen = {}

    def create(physical, info, allocator, made):
        first = library.ffi.cast("VkPhysicalDeviceFeatures2 *", info.pNext)
        eleven = library.ffi.cast("VkPhysicalDeviceVulkan11Features *", first.pNext)
        twelve = library.ffi.cast("VkPhysicalDeviceVulkan12Features *", eleven.pNext)
        for structure, names in (
            (first.features, "robustBufferAccess shaderFloat64 shaderInt64 shaderInt16"),
            (eleven, "storageBuffer16BitAccess"),
            (twelve, "timelineSemaphore storageBuffer8BitAccess shaderFloat16 shaderInt8"),
        ):
            seen.update((name, bool(getattr(structure, name))) for name in names.split())
        return library.load().vkCreateDevice(physical, info, allocator, made)

    monkeypatch.setattr(devices, "load", lambda: Loader(vkCreateDevice=create))
    own = Vulkan()
    for index in range(own.device_count()):
        seen.clear()
        features = instances.features(own.devices._entries[index].physical.pointer)
        own.devices[index]
        available = {
            name: bool(getattr(structure, name))
            for structure in (
                features["VkPhysicalDeviceFeatures2"].features,
                features["VkPhysicalDeviceVulkan11Features"],
                features["VkPhysicalDeviceVulkan12Features"],
            )
            for name in seen
            if hasattr(structure, name)
        }
        assert seen == available
        assert seen["robustBufferAccess"]  # which every driver must have
        own.close_device(index)


def test_a_closed_device_says_so(vulkan):
    from dlbridge_vulkan import Vulkan

    own = Vulkan()
    data = allocate(own, 0, 16, 16, 0)
    with pytest.raises(DeviceError, match="1 tensors"):
        own.close_device(0)
    free(own, 0, data, 0)
    own.close_device(0)  # the validation layer would name what is left in it
    with pytest.raises(DeviceError, match="vulkan:0 has been closed"):
        allocate(own, 0, 16, 16, 0)
    free(own, 0, data, 0)  # late, and harmless
