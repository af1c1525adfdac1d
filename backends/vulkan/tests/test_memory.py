"""Suballocation: blocks and their ranges, which memory type, what is freed when."""

import gc
import random
from itertools import pairwise
from types import SimpleNamespace

import pytest
from dlbridge_vulkan import Vulkan, device
from dlbridge_vulkan.memory import Block, DeviceMemory

from backends.vulkan.tests.held_buffers import Loader, allocate, free
from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError
from dlbridge.kit.resources import Resources
from dlbridge.protocol import Span

# Blocks


def block_of(size, mapped=0):
    """A block without memory."""
    block = Block(Resources(DeviceMemory.free), DeviceMemory(None), size)
    block.mapped, block.free = mapped, [(0, size)]
    return block


def range_of():
    """What a buffer has of its range."""
    return SimpleNamespace(block=None, start=0, end=0)


def test_ranges_never_overlap_and_join_again():
    """A thousand random takes and gives, against a set of bytes."""
    pick = random.Random(1)
    block = block_of(4096, 64 * 7)
    used, taken = set(), []
    for _ in range(1000):
        if taken and pick.random() < 0.5:
            buffer = taken.pop(pick.randrange(len(taken)))
            block.put_back(buffer)
            assert buffer.block is None
            used -= set(range(buffer.start, buffer.end))
        else:
            size, alignment = pick.randrange(1, 300), 1 << pick.randrange(9)
            fit = block.fit(size, alignment, 16)
            if fit is None:
                continue
            assert (block.mapped + fit[1]) % alignment == 0
            buffer = range_of()
            assert block.take(buffer, fit[1], size)
            assert not block.take(range_of(), fit[1], size)  # it is taken
            span = set(range(buffer.start, buffer.end))
            assert len(span) == size
            assert not used & span
            used |= span
            taken.append(buffer)
        free_bytes = {i for low, high in block.free for i in range(low, high)}
        assert free_bytes == set(range(4096)) - used
        assert all(a[1] < b[0] for a, b in pairwise(block.free))
    for buffer in taken:
        assert not block.retire()
        block.put_back(buffer)
    assert block.is_empty
    assert block.retire()
    assert block.fit(1, 1, 1) is None  # nobody takes any of it


@pytest.mark.parametrize("threshold", range(1, 30))
def test_a_change_that_a_collection_interrupts(threshold):
    """Wherever the collector runs a finalizer that takes a range: no byte is given out twice."""
    block, buffer, other, once = block_of(1000), range_of(), range_of(), [1]

    def finalizer(phase, _):
        if phase == "start" and once:
            once.pop()
            block.take(other, block.fit(10, 1, 1)[1], 10)

    unused = [tuple([i] * 4) for i in range(3000)]  # CPython keeps that many and counts them not
    before = gc.get_threshold()
    gc.collect()
    gc.callbacks.append(finalizer)
    try:
        gc.set_threshold(threshold, 1000, 1000)
        block.take(buffer, 0, 20)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(finalizer)
    del unused
    taken = [each for each in (buffer, other) if each.block]
    assert sum(each.end - each.start for each in taken) == 1000 - sum(b - a for a, b in block.free)


# Heaps


@pytest.fixture
def own(vulkan):
    """A backend of the test's own, whose device is closed at the end."""
    backend = Vulkan()
    yield backend
    backend.close_device(0)


def test_many_tensors_take_few_allocations(own, monkeypatch):
    """The driver's count of allocations is what runs out first."""
    allocate(own, 0, 16, 16, 0)
    heap = own.devices[0].heaps[0]
    data = [allocate(own, 0, 1000, 256, 0) for _ in range(5000)]
    assert len(heap.blocks) == 1
    for one in [*data, *own.devices.table]:
        free(own, 0, one, 0)


@pytest.mark.parametrize("alignment", [1, 16, 64, 4096, 1 << 16])
def test_alignment_holds_for_the_host_address(vulkan, tensors, alignment):
    for nbytes in (1, 100, 5000):
        allocation = tensors.allocation(tensors.new(nbytes, alignment))
        assert allocation.mapped % alignment == 0


def test_empty_blocks_are_kept_up_to_a_limit(own, monkeypatch):
    monkeypatch.setattr(device, "KEEP", 100 << 20)
    heap_of = lambda: own.devices[0].heaps[0]  # noqa: E731 - the device opens at first use
    data = [allocate(own, 0, 40 << 20, 16, 0) for _ in range(4)]
    assert len(heap_of().blocks) == 4
    for one in data:
        free(own, 0, one, 0)
    assert sum(block.size for block in heap_of().blocks) <= 100 << 20
    assert len(heap_of().blocks) == 2


# The pool


def test_a_small_buffer_is_used_again(own):
    """As it is: its VkBuffer, its memory and its descriptor; for another length that fits, too."""
    first = own.allocate(0, 100_000, 256, 0)
    buffer, handle, data = own.devices.buffer(first.data), first.resource[0].buffer, first.data
    del first
    with pytest.raises(DeviceError, match="not a live Vulkan buffer"):
        own.copy_to_host(Span(0, data, 0, 4), memoryview(bytearray(4)), 0)
    again = own.allocate(0, 99_000, 256, 0)
    assert own.devices.buffer(again.data) is buffer
    assert (again.data, buffer.buffer, again.nbytes) == (data, handle, 99_000)
    assert (buffer.nbytes, buffer.descriptor.size, own.live_allocations()) == (99_000, 99_000, 1)
    with pytest.raises(ExchangeError, match="outside a Vulkan buffer of 99000 bytes"):
        own.copy_to_host(Span(0, data, 99_000, 4), memoryview(bytearray(4)), 0)
    other = own.allocate(0, 100_000, 1 << 16, 0)  # another alignment
    assert other.data != data
    del again, other


def test_no_more_is_kept_than_the_user_allows(monkeypatch, vulkan):
    """With 0 nothing: neither in the pool nor as blocks."""
    monkeypatch.setenv("DLBRIDGE_POOL_LIMIT", "0")
    backend = Vulkan()
    made = backend.allocate(0, 1000, 256, 0)
    buffer = made.resource[0]
    del made
    assert not buffer.cell[0]
    assert backend.devices[0].heaps[0].blocks == []
    backend.close_device(0)


def test_a_full_pool_is_emptied(own, monkeypatch):
    """So that what is freed leaves whole blocks, which go back: not one small buffer in each."""
    monkeypatch.setattr(device, "KEEP", 8 << 20)  # 1 MiB of it for the pool
    made = [own.allocate(0, 1 << 18, 256, 0) for _ in range(12)]
    buffers = [each.resource[0] for each in made]
    made.clear()
    kept = [each for each in buffers if each.cell[0]]
    assert 0 < sum(each.end - each.start for each in kept) <= 1 << 20
    own.trim(0)
    assert not any(each.cell[0] for each in buffers)
    assert own.devices[0].heaps[0].blocks == []


def test_too_much_says_how_much(vulkan):
    limit = vulkan.device_info(0)["max_allocation"]
    with pytest.raises(
        DeviceMemoryError, match=rf"{limit + 1} bytes: .* at most {limit} .* in slices"
    ):
        allocate(vulkan, 0, limit + 1, 16, 0)


def test_too_much_with_its_alignment_says_the_tensors_size(vulkan):
    """The block has room for the alignment, too: the number that was asked for stands first."""
    limit = vulkan.device_info(0)["max_allocation"]
    if limit > vulkan.devices[0].most:
        pytest.skip("a buffer may not have as many bytes as the memory")
    message = rf"has room for {limit} bytes: .* gives at most {limit} bytes .* in slices"
    with pytest.raises(DeviceMemoryError, match=message):
        allocate(vulkan, 0, limit, 1 << 16, 0)


def freed(buffers):
    """What was freed and has not gone back yet."""
    return [buffer for end in buffers.ended for buffer in end.resource]


def test_free_waits_for_the_device_without_blocking(vulkan, tensors, delay):
    """A buffer in use goes back when its work is done, not before."""
    data = allocate(vulkan, 0, 4, 4, 0)
    buffer = tensors.allocation(data)
    buffers, queue = buffer.device.buffers, buffer.queue
    delay(vulkan, data)
    free(vulkan, 0, data, 0)
    assert buffer in freed(buffers)
    queue.finish()
    tensors.new(4)
    assert buffer not in freed(buffers)


@pytest.mark.parametrize("result", [-1, -4])
def test_free_in_silence_where_the_driver_fails(vulkan, tensors, monkeypatch, result):
    """VK_ERROR_OUT_OF_HOST_MEMORY, VK_ERROR_DEVICE_LOST: the buffer is freed later."""
    data = allocate(vulkan, 0, 64, 4, 0)
    buffer = tensors.allocation(data)
    buffers, queue = buffer.device.buffers, buffer.queue
    vulkan.copy(Span(0, data, 32, 32), Span(0, data, 0, 32), 0)
    failing = Loader(vkGetSemaphoreCounterValue=lambda *_: result)
    monkeypatch.setattr(queue, "_lib", failing)
    monkeypatch.setattr(queue, "reached", 0)
    free(vulkan, 0, data, 0)
    assert buffer in freed(buffers)
    monkeypatch.undo()
    queue.finish()
    tensors.new(4)
    assert buffer not in freed(buffers)
