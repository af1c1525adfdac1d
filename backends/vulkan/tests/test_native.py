"""Raw handles out, and an instance, a device and buffers of the user's own in."""

import gc
import struct
import threading

import numpy as np
import pytest
from dlbridge_vulkan import Vulkan, VulkanArray
from dlbridge_vulkan.device import MAGIC
from dlbridge_vulkan.library import ffi, handle, load, struct as vk

import dlbridge as bridge
from backends.vulkan.tests.held_buffers import Loader, allocate, free, read, write
from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError
from dlbridge.protocol import Span


def lib():
    return load()


class Own:
    """What a user of the `vulkan` package has: an instance, a device, a queue, a buffer."""

    def __init__(self, version=1 << 22 | 2 << 12):
        application = vk("VkApplicationInfo", apiVersion=version)
        info = vk("VkInstanceCreateInfo", pApplicationInfo=application)
        self.instance = ffi.new("VkInstance *")
        assert lib().vkCreateInstance(info, ffi.NULL, self.instance) == 0
        count = ffi.new("uint32_t *", 1)
        self.physical = ffi.new("VkPhysicalDevice *")
        lib().vkEnumeratePhysicalDevices(self.instance[0], count, self.physical)
        priority = ffi.new("float *", 1.0)
        queue = vk("VkDeviceQueueCreateInfo", queueCount=1, pQueuePriorities=priority)
        features = vk("VkPhysicalDeviceVulkan12Features", timelineSemaphore=1)
        name = ffi.new("char[]", b"VK_EXT_external_memory_host")
        names = ffi.new("char *[]", [name])
        info = vk(
            "VkDeviceCreateInfo",
            pNext=features,
            queueCreateInfoCount=1,
            pQueueCreateInfos=queue,
            enabledExtensionCount=1,
            ppEnabledExtensionNames=names,
        )
        self.device = ffi.new("VkDevice *")
        assert lib().vkCreateDevice(self.physical[0], info, ffi.NULL, self.device) == 0
        self.queue = ffi.new("VkQueue *")
        lib().vkGetDeviceQueue(self.device[0], 0, 0, self.queue)

    def handles(self):
        return (self.instance[0], self.physical[0], self.device[0], self.queue[0], 0)

    def mappable(self, allowed):
        """The first of the *allowed* memory types that the host sees, and sees at once."""
        properties = ffi.new("VkPhysicalDeviceMemoryProperties *")
        lib().vkGetPhysicalDeviceMemoryProperties(self.physical[0], properties)
        types = properties.memoryTypes[0 : properties.memoryTypeCount]
        return next(
            index
            for index, each in enumerate(types)
            if allowed >> index & 1 and each.propertyFlags & 6 == 6
        )

    def buffer(self, nbytes):
        """A mapped buffer: its handle, its memory, its address."""
        device = self.device[0]
        info = vk("VkBufferCreateInfo", size=nbytes, usage=0x23)
        buffer = ffi.new("VkBuffer *")
        assert lib().vkCreateBuffer(device, info, ffi.NULL, buffer) == 0
        needs = ffi.new("VkMemoryRequirements *")
        lib().vkGetBufferMemoryRequirements(device, buffer[0], needs)
        memory = ffi.new("VkDeviceMemory *")
        index = self.mappable(needs.memoryTypeBits)
        info = vk("VkMemoryAllocateInfo", allocationSize=needs.size, memoryTypeIndex=index)
        assert lib().vkAllocateMemory(device, info, ffi.NULL, memory) == 0
        assert lib().vkBindBufferMemory(device, buffer[0], memory[0], 0) == 0
        address = ffi.new("void **")
        assert lib().vkMapMemory(device, memory[0], 0, needs.size, 0, address) == 0
        return buffer[0], memory[0], handle(address[0])

    def destroy(self, *made):
        for buffer, memory, _ in made:
            lib().vkDestroyBuffer(self.device[0], buffer, ffi.NULL)
            lib().vkFreeMemory(self.device[0], memory, ffi.NULL)
        lib().vkDestroyDevice(self.device[0], ffi.NULL)
        lib().vkDestroyInstance(self.instance[0], ffi.NULL)


@pytest.fixture
def own(vulkan):
    return Own()


# Out


def test_raw_handles_of_a_tensor(vulkan):
    """Enough to use the memory from C, and to wait for it."""
    tensor = bridge.to_device(np.arange(6, dtype=np.float32).reshape(2, 3), "vulkan:0", copy=True)
    array = tensor[1:].to_native()
    assert isinstance(array, VulkanArray)
    device = vulkan.devices[0]
    assert array.device == handle(device.pointer)
    assert array.queue == vulkan.current_stream(0)
    assert (array.offset, array.dtype, array.shape) == (12, "float32", (1, 3))
    assert array.buffer_size == 24
    again = bridge.asarray(array)
    assert again.device == tensor.device
    assert bridge.to_device(again, "cpu").tolist() == [[3, 4, 5]]
    if not vulkan.host_view_refusal(0, again.data_ptr()):
        assert np.from_dlpack(again.host_view()).tolist() == [[3, 4, 5]]


def test_the_descriptor_behind_data(vulkan):
    """TVM's three words, our magic, and the rest: what docs/vulkan.md promises to C users."""
    tensor = bridge.empty(1000, "uint8", "vulkan:0")
    array = tensor.to_native()
    seen = ffi.cast("DlbridgeVulkanBuffer *", tensor.data_ptr())
    assert seen.magic == MAGIC
    assert MAGIC.to_bytes(8, "little") == b"bridgeVk"
    got = (handle(seen.device), seen.buffer, seen.memory, handle(seen.queue), handle(seen.mapped))
    assert got == (array.device, array.buffer, array.memory, array.queue, array.mapped)
    # Of several buffers in one memory no two begin at the same offset.
    other = bridge.empty(1000, "uint8", "vulkan:0").to_native()
    assert other.memory_offset != array.memory_offset or other.memory != array.memory
    assert array.memory_offset == vulkan.devices.buffer(array.data).start
    assert (seen.size, seen.offset, seen.version) == (1000, array.memory_offset, 1)
    assert handle(seen.instance) == array.instance
    assert handle(seen.physical_device) == array.physical_device


def test_anothers_submission_to_our_queue(vulkan):
    """A user's own command on the shared queue: dlbridge's next copy comes after it."""
    tensor = bridge.zeros(1 << 20, "uint8", "vulkan:0")
    array = tensor.to_native()
    pool, commands = ffi.new("VkCommandPool *"), ffi.new("VkCommandBuffer[1]")
    device = ffi.cast("VkDevice", array.device)
    info = vk("VkCommandPoolCreateInfo", queueFamilyIndex=array.queue_family)
    assert lib().vkCreateCommandPool(device, info, ffi.NULL, pool) == 0
    info = vk("VkCommandBufferAllocateInfo", commandPool=pool[0], commandBufferCount=1)
    assert lib().vkAllocateCommandBuffers(device, info, commands) == 0
    assert lib().vkBeginCommandBuffer(commands[0], vk("VkCommandBufferBeginInfo")) == 0
    before = vk("VkMemoryBarrier", srcAccessMask=0x10000, dstAccessMask=0x10000)
    lib().vkCmdPipelineBarrier(
        commands[0], 0x10000, 0x10000, 0, 1, before, 0, ffi.NULL, 0, ffi.NULL
    )
    lib().vkCmdFillBuffer(commands[0], array.buffer, 0, 1 << 20, 0x07070707)
    assert lib().vkEndCommandBuffer(commands[0]) == 0
    submission = vk("VkSubmitInfo", commandBufferCount=1, pCommandBuffers=commands)
    with array.lock:
        queue = ffi.cast("VkQueue", array.queue)
        assert lib().vkQueueSubmit(queue, 1, submission, 0) == 0
    assert (bridge.to_device(tensor, "cpu", like="numpy", copy=True) == 7).all()
    vulkan.synchronize(0, 0)
    lib().vkDestroyCommandPool(device, pool[0], ffi.NULL)


def test_the_timeline_of_an_array(vulkan, delay):
    """*semaphore* reaches *value* when dlbridge's work on the tensor is done."""
    tensor = bridge.to_device(np.ones(4, np.float32), "vulkan:0", copy=True)
    delay(vulkan, tensor.data_ptr())
    array = tensor.to_native()
    counter = ffi.new("uint64_t *")
    device = ffi.cast("VkDevice", array.device)
    assert lib().vkGetSemaphoreCounterValue(device, array.semaphore, counter) == 0
    assert counter[0] < array.value
    vulkan.synchronize(0, 0)
    assert lib().vkGetSemaphoreCounterValue(device, array.semaphore, counter) == 0
    assert counter[0] >= array.value


# In


def test_a_device_of_the_users_own(own, scale_spirv):
    """Adopt it, use tensors and kernels on it, close it; then the user destroys it."""
    backend = Vulkan()
    count = backend.device_count()
    lock = threading.RLock()
    index = backend.adopt_device(*own.handles(), lock=lock, host_import=True)
    assert index == count
    assert backend.device_count() == count + 1
    assert backend.device_info(index)["name"] == backend.device_info(0)["name"]
    assert backend.devices[index].queue.lock is lock
    data = allocate(backend, index, 400, 16, 0)
    values = np.arange(100, dtype=np.float32)
    write(backend, data, values, device_id=index)
    kernel = backend.kernel(scale_spirv, buffers=1, push_nbytes=12, device_id=index)
    kernel.run([(backend.devices.buffer(data), 0, 400)], (2,), struct.pack("=IIf", 100, 1, 3.0))
    got = np.empty_like(values)
    backend.copy_to_host(Span(index, data, 0, memoryview(got).nbytes), memoryview(got).cast("B"), 0)
    assert (got == 3 * values).all()
    assert backend.host_import_refusal(index, 1 << 20, 4096, True) == ""
    other = allocate(backend, 0, 400, 16, 0)  # the same GPU, another VkDevice
    backend.copy(Span(0, other, 0, 400), Span(index, data, 0, 400), 0)
    backend.copy_to_host(Span(0, other, 0, memoryview(got).nbytes), memoryview(got).cast("B"), 0)
    assert (got == 3 * values).all()
    free(backend, 0, other, 0)
    with pytest.raises(DeviceError, match="still has 1 tensors"):
        backend.close_device(index)
    free(backend, index, data, 0)
    backend.close_device(index)
    with pytest.raises(DeviceError, match="has been closed"):
        allocate(backend, index, 4, 4, 0)
    own.destroy()  # the validation layer would name what is left of ours


def test_a_buffer_of_the_users_own(own):
    """In place: dlbridge reads and writes it, and destroys nothing."""
    backend = Vulkan()
    index = backend.adopt_device(*own.handles())
    made = own.buffer(4096)
    buffer, memory, address = made
    owner = type("Owner", (), {})()
    array = backend.wrap_buffer(
        index, buffer, memory, 4096, mapped=address, dtype="float32", shape=(32, 32), owner=owner
    )
    values = np.random.default_rng(0).random((32, 32), np.float32)
    write(backend, array.data, values, device_id=index)
    assert bytes(ffi.buffer(ffi.cast("char *", address), 4096)) == values.tobytes()
    described = backend.from_native(array)
    assert described.owner is array
    assert array.owner is owner
    assert backend.host_view(Span(index, array.data, 4, 4), False, 0).data == address + 4
    data = array.data
    del array, described
    gc.collect()
    assert backend.devices.find(data) is None
    backend.close_device(index)
    own.destroy(made)


def test_a_buffer_that_the_host_cannot_address(own):
    """Without *mapped* its bytes go through the staging ring."""
    backend = Vulkan()
    index = backend.adopt_device(*own.handles())
    made = own.buffer(1000)
    array = backend.wrap_buffer(index, made[0], made[1], 1000)
    assert (array.dtype, array.shape) == ("uint8", (1000,))
    assert "cannot address" in backend.host_view_refusal(index, array.data)
    content = bytes(range(250)) * 4
    write(backend, array.data, content, device_id=index)
    got = read(backend, array.data, 1000, device_id=index)
    assert got == content
    del array
    gc.collect()
    backend.close_device(index)
    own.destroy(made)


@pytest.mark.parametrize(
    ("dtype", "shape", "needed"),
    [
        ("float32", (1000,), 4000),
        ("float32", None, 128),
        ("bfloat16", (17,), 34),
        ("bool", (33,), 33),
        ("float8_e4m3fn", (3, 11), 33),
        ("float4_e2m1fn", (65,), 33),
        ("float32x4", (3,), 48),
    ],
)
def test_more_elements_than_the_buffer_holds(vulkan, dtype, shape, needed):
    with pytest.raises(ValueError, match=f"{dtype} takes {needed} bytes; the buffer has 32"):
        vulkan.wrap_buffer(0, 5, 1, 32, dtype=dtype, shape=shape)


def test_an_adoption_that_fails_leaves_nothing(vulkan, own, monkeypatch):
    """The validation layer would name a semaphore or a pool that is left in the device."""
    from dlbridge_vulkan import device

    def full(*arguments):
        raise DeviceMemoryError("full")

    count = vulkan.device_count()
    monkeypatch.setattr(device.MemoryType, "for_staging", full)
    with pytest.raises(DeviceMemoryError, match="full"):
        vulkan.adopt_device(*own.handles())
    assert vulkan.device_count() == count
    own.destroy()


def test_handles_that_are_none(vulkan, own):
    with pytest.raises(ValueError, match="one of them is 0"):
        vulkan.adopt_device(*own.handles()[:3], 0, 0)
    with pytest.raises(TypeError, match="not a Vulkan handle"):
        vulkan.adopt_device(*own.handles()[:3], "queue", 0)
    with pytest.raises(ValueError, match="is not valid"):
        vulkan.wrap_buffer(0, 0, 1, 100)
    with pytest.raises(ValueError, match="is not valid"):
        vulkan.wrap_buffer(0, 5, 1, 0)
    own.destroy()


def test_a_device_that_is_too_old(vulkan, own, monkeypatch):
    """Its own version is what counts, not the driver's."""
    from dlbridge_vulkan import devices

    old = Loader(vkGetDeviceProcAddr=lambda *_: ffi.NULL)
    monkeypatch.setattr(devices, "load", lambda: old)
    with pytest.raises(DeviceError, match=r"created for a Vulkan older than 1\.2"):
        vulkan.adopt_device(*own.handles())
    monkeypatch.setattr(devices, "describe", lambda *_: "it has no compute queue")
    with pytest.raises(DeviceError, match="cannot be adopted: it has no compute queue"):
        vulkan.adopt_device(*own.handles())
    monkeypatch.undo()
    own.destroy()


# Foreign tensors


def test_a_descriptor_with_the_magic_that_is_not_ours(vulkan):
    """Anybody can write the magic: only the table of live allocations counts."""
    fake = ffi.new("DlbridgeVulkanBuffer *", {"magic": MAGIC})
    with pytest.raises(ExchangeError, match="not one of dlbridge_vulkan's descriptors"):
        vulkan.import_data(0, handle(fake), "someone")


def test_a_lock_that_is_not_reentrant_is_refused(vulkan, own):
    """A finalizer would wait for ever for the lock that its own thread holds."""
    with pytest.raises(ValueError, match=r"is not reentrant.*threading\.RLock"):
        vulkan.adopt_device(*own.handles(), lock=threading.Lock())
    own.destroy()


def test_numpy_is_told_the_way_to_the_elements():
    array = bridge.ones(3, device="vulkan:0").to_native()
    with pytest.raises(TypeError, match=r"to_device\(x, 'cpu', like='numpy'\)"):
        np.asarray(array)
    assert bridge.to_device(array, "cpu", like="numpy").tolist() == [1, 1, 1]
