"""As real drivers behave: simulated devices of other kinds, limits, sizes and refusals."""

import gc
import mmap
import struct

import numpy as np
import pytest
from dlbridge_vulkan import instance as instances, library
from dlbridge_vulkan.instance import compute_family

import dlbridge as bridge
from backends.vulkan.tests.held_buffers import allocate, free, import_host, read, write
from dlbridge.errors import BackendUnavailable, DeviceMemoryError, ExchangeError
from dlbridge.extending import LOADED
from dlbridge.protocol import Region, Span
from dlbridge.testing import side

MIB = 1 << 20


@pytest.fixture
def one(simulate):
    """``one(...)``: a simulated device, closed at the end: the validation layer names what is left."""
    made = []

    def make(**words):
        made.append(simulate(**words))
        return made[-1]

    yield make
    for backend in made:
        for data in list(backend.devices.table):
            free(backend, 0, data, 0)
        backend.close_device(0)


@pytest.fixture
def pages():
    """Address and memory of four fresh pages."""
    memory = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    return np.frombuffer(memory, np.uint8).__array_interface__["data"][0], memory


# Memory


def test_the_next_type_when_one_is_full(one):
    """A carve-out that is full is not the end: the host's memory is taken, and the bytes are right."""
    backend = one(HEAPS=f"{128 * MIB}:1,{1024 * MIB}:0", TYPES="1:0,6:1,14:1")
    made = [allocate(backend, 0, 48 * MIB, 256, 0) for _ in range(4)]
    kinds = [backend.devices.buffer(data).heap.kind.index for data in made]
    assert kinds == [0, 0, 2, 2]
    for data in made:
        write(backend, data, b"abcde", 48 * MIB - 5)
        got = read(backend, data, 5, 48 * MIB - 5)
        assert got == b"abcde"
    for data in made:
        free(backend, 0, data, 0)
    again = allocate(backend, 0, 48 * MIB, 256, 0)
    assert backend.devices.buffer(again).heap.kind.index == 0


def test_no_room_anywhere_says_what_each_type_answered(one):
    backend = one(HEAPS=f"{64 * MIB}:1,{64 * MIB}:0", TYPES="1:0,6:1")
    with pytest.raises(DeviceMemoryError, match=r"no memory of .* has room for 104857600 bytes"):
        allocate(backend, 0, 100 * MIB, 256, 0)
    assert backend.live_allocations() == 0


def test_an_apu_gives_host_views(integrated):
    """Its cached memory is the host's and the device's: no copy, whatever the flag LOCAL says."""
    data = allocate(integrated, 0, 4096, 64, 0)
    assert integrated.host_view_refusal(0, data) == ""
    assert integrated.device_info(0)["host_memory_shared"] is True
    free(integrated, 0, data, 0)
    integrated.synchronize(0, 0)


def test_uncached_mapped_memory_is_written_in_long_runs_only(one):
    """Resizable BAR: fills and strided writes are the device's; contiguous bytes the host's."""
    backend = one(HEAPS=f"{1024 * MIB}:1,{1024 * MIB}:0", TYPES="1:0,14:1,7:0")
    data = allocate(backend, 0, 4096, 256, 0)
    allocation, queue = backend.devices.buffer(data), backend.devices[0].queue
    assert allocation.mapped
    assert not allocation.cached
    before = queue.submitted
    write(backend, data, bytes(4096))
    assert queue.submitted == before
    backend.fill(Span(0, data, 0, 1024), 5, 0)
    assert queue.submitted > before
    before = queue.submitted
    backend.copy_strided_from_host(
        *side(0, data, 0, (100,), (8,), 4), memoryview(b"\7" * 400), Region((100,), (4,), 4), 0
    )
    assert queue.submitted > before
    got = read(backend, data, 4096)
    want = np.zeros(4096, np.uint8)
    want[:1024] = 5
    want[:800].reshape(100, 8)[:, :4] = 7
    assert got == want.tobytes()


def test_the_limit_of_one_buffer(one):
    backend = one(MAX_BUFFER=8 * MIB)
    with pytest.raises(DeviceMemoryError, match=f"gives at most {8 * MIB} at once"):
        allocate(backend, 0, 8 * MIB + 4, 256, 0)
    assert backend.device_info(0)["max_buffer"] == 8 * MIB
    allocate(backend, 0, 8 * MIB, 256, 0)


def test_too_many_allocations(one):
    """The kept blocks are given back first; then the error is one of memory."""
    backend = one(MAX_ALLOCATIONS=3)
    made = [allocate(backend, 0, 70 * MIB, 256, 0) for _ in range(3)]
    with pytest.raises(
        DeviceMemoryError,
        match="3 blocks of memory are allocated, as many as simulated device allows",
    ):
        allocate(backend, 0, 90 * MIB, 256, 0)
    free(backend, 0, made.pop(), 0)
    allocate(backend, 0, 90 * MIB, 256, 0)
    assert backend.device_info(0)["max_allocations"] == 3


# Host memory in place


@pytest.mark.parametrize("code", [-1, -2, -3, -5, -10, -13, -1000072003])
def test_an_import_that_the_driver_refuses_can_be_copied(one, pages, code):
    """Whatever it calls the refusal, memory errors included (RADV: pages of mapped files)."""
    backend = one(KIND="integrated", NO_IMPORT=0, IMPORT_CODE=code)
    address, _ = pages
    assert backend.host_import_refusal(0, address, mmap.PAGESIZE, True) == ""
    with pytest.raises(ExchangeError, match=r"vkAllocateMemory of 4096 bytes .* copy it instead"):
        import_host(backend, 0, address, mmap.PAGESIZE, False)
    assert backend.live_allocations() == 0


def test_what_cannot_be_imported_is_refused_before(one, integrated, vulkan, pages):
    address, _ = pages
    with pytest.raises(ExchangeError, match="it is read-only, and the driver of simulated device"):
        import_host(integrated, 0, address, mmap.PAGESIZE, True)
    small = one(KIND="integrated", NO_IMPORT=0, MAX_BUFFER=4 * MIB)
    assert "more than the 4194304 of one buffer" in small.host_import_refusal(0, 0, 8 * MIB, True)


@pytest.mark.parametrize(("kind", "step"), [("discrete", "upload"), ("integrated", "host import")])
def test_where_page_aligned_arrays_go(one, pages, monkeypatch, kind, step):
    """Into a discrete GPU's own memory, unless `copy=False` says that they stay; `explain` says so."""
    backend = one(KIND=kind, NO_IMPORT=0)
    monkeypatch.setitem(LOADED, "vulkan", backend)
    x = np.frombuffer(pages[1], np.uint8)
    plan = bridge.plan(x, "vulkan:0")
    assert [one.kind for one in plan.steps] == [step]
    assert ("cross its bus" in bridge.explain(x, "vulkan:0")) == (kind == "discrete")
    forced = bridge.to_device(x, "vulkan:0", copy=False)
    moved = bridge.to_device(x, "vulkan:0")
    pages[1][:2] = b"ab"
    assert forced[:2].tolist() == [97, 98]
    assert moved[:2].tolist() == ([0, 0] if kind == "discrete" else [97, 98])
    del forced, moved
    gc.collect()


# Strided copies


@pytest.mark.parametrize("shared", [False, True])
def test_very_many_short_runs_take_few_submissions(discrete, shared, monkeypatch):
    """A million runs of 4 bytes to the host, or into memory without gaps.

    Once others had the queue, each slot of the ring took a submission more.
    """
    monkeypatch.setattr(discrete.devices[0].queue, "shared", shared)
    count = 1 << 20
    values = np.arange(2 * count, dtype=np.int32)
    data = allocate(discrete, 0, values.nbytes, 256, 0)
    queue = discrete.devices[0].queue
    write(discrete, data, values)
    got = np.zeros(count, np.int32)
    before = queue.submitted
    discrete.copy_strided_to_host(
        *side(0, data, 0, (count,), (8,), 4),
        memoryview(got).cast("B"),
        Region((count,), (4,), 4),
        0,
    )
    assert (got == values[::2]).all()
    assert queue.submitted - before <= 2
    before = queue.submitted
    other = allocate(discrete, 0, values.nbytes, 256, 0)
    discrete.copy_strided(
        *side(0, other, 0, (count,), (4,), 4), *side(0, data, 0, (count,), (8,), 4), 0
    )
    assert queue.submitted - before <= 3
    discrete.copy_to_host(Span(0, other, 0, memoryview(got).nbytes), memoryview(got).cast("B"), 0)
    assert (got == values[::2]).all()
    free(discrete, 0, data, 0)
    free(discrete, 0, other, 0)


# Work of others, devices, the end


def test_a_free_waits_for_work_of_others(vulkan, tensors, delay, monkeypatch):
    """They have the handles, and may use the memory in work that dlbridge knows nothing of."""
    queue = vulkan.devices[0].queue
    monkeypatch.setattr(queue, "shared", True)
    data = allocate(vulkan, 0, 64, 4, 0)
    buffer = tensors.allocation(data)
    buffers = buffer.device.buffers
    value = delay(vulkan, tensors.new(4))  # stands for theirs: `data` is not marked
    free(vulkan, 0, data, 0)
    assert not queue.done(value)
    assert [buffer] in buffers.all()
    assert buffer.last_use > value
    queue.finish()
    tensors.new(4)
    assert [buffer] not in buffers.all()


def test_memory_is_not_given_out_again_while_others_use_it(vulkan, tensors, delay, monkeypatch):
    """Their kernel writes to the freed memory late: the next tensor must lie elsewhere."""
    queue = vulkan.devices[0].queue
    monkeypatch.setattr(queue, "shared", True)  # as `to_native` leaves it
    busy = tensors.new(4)
    data = allocate(vulkan, 0, 5 << 20, 4, 0)
    was = tensors.allocation(data)
    memory, start = was.memory, was.start
    value = delay(vulkan, busy)  # stands for theirs: `data` is not marked
    free(vulkan, 0, data, 0)
    made = tensors.allocation(tensors.new(5 << 20))
    assert not queue.done(value)
    assert made.memory != memory or abs(made.start - start) >= 5 << 20


def test_a_family_for_compute_only(one):
    backend = one(COMPUTE_FAMILY=1)
    assert backend.devices[0].queue.family == 1
    data = allocate(backend, 0, 64, 4, 0)
    backend.fill(Span(0, data, 0, 64), 3, 0)


@pytest.mark.parametrize(
    ("flags", "family"),
    [([7], 0), ([7, 6], 1), ([1, 4, 7, 14], 3), ([15, 12, 6], 2), ([1, 4], None), ([], None)],
)
def test_which_family(flags, family):
    """Graphics 1, compute 2, transfer 4, sparse 8; the tables of NVIDIA, AMD and others."""
    assert compute_family(flags) == family


def test_one_device_that_fails_hides_no_other(vulkan, simulate, drivers):
    """VK_ERROR_OUT_OF_HOST_MEMORY while it is described: it is left out, and said if none is left."""
    backend = simulate(FAILING_DESCRIPTION=1, also=drivers)
    assert backend.device_count() >= 1
    names = [backend.device_info(i)["name"] for i in range(backend.device_count())]
    assert "simulated device" not in names


def test_the_reason_why_a_device_could_not_be_described(vulkan, monkeypatch):
    def failing(pointer, version):
        raise DeviceMemoryError("the driver is out of memory")

    monkeypatch.setattr(instances, "describe", failing)
    name = vulkan.device_info(0)["name"].partition(" ")[0]
    with pytest.raises(
        BackendUnavailable, match=rf"{name}.* could not be described: the driver is"
    ):
        instances.physical_devices(vulkan.devices.instance, instances.NEEDED)


def test_the_loaders_names():
    """On macOS the dynamic linker does not look where Homebrew and the SDK install."""
    mac = library.names("darwin", "/Users/me/VulkanSDK/1.3/macOS")
    for folder in ("/Users/me/VulkanSDK/1.3/macOS/lib", "/opt/homebrew/lib", "/usr/local/lib"):
        assert f"{folder}/libvulkan.1.dylib" in mac
        assert f"{folder}/libMoltenVK.dylib" in mac
    assert mac.index("libvulkan.1.dylib") < mac.index("libMoltenVK.dylib")
    assert not any("None" in name for name in library.names("darwin", None))
    assert library.names("win32", None) == ("vulkan-1.dll",)
    assert library.names("linux", None)[0] == "libvulkan.so.1"


def test_no_limit_of_buffers_before_vulkan_1_3(vulkan, monkeypatch):
    """The structure may be asked for from Vulkan 1.3 on; before, memory's limit is the only one."""
    monkeypatch.setattr(instances, "WITH_MAX_BUFFER", 1 << 30)
    pointer = vulkan.devices[0].physical.pointer
    described = instances.describe(pointer, instances.NEEDED)
    assert described.limits["max_buffer"] == (1 << 64) - 1


def test_the_simulated_device_has_teeth(one, run_python, simulated_library):
    """Memory that is not coherent is mapped as a copy: what is not flushed, nobody sees."""
    backend = one()
    heap = next(h for h in backend.devices[0].heaps if h.kind.index == 0)
    assert not heap.kind.mapped
    heap.kind.mapped = heap.kind.cached = True  # as a backend would that forgets to flush
    data = allocate(backend, 0, 64, 4, 0)
    allocation = backend.devices.buffer(data)
    assert allocation.mapped
    write(backend, data, b"x" * 64)
    other = allocate(backend, 0, 64, 4, 0)
    backend.copy(Span(0, other, 0, 64), Span(0, data, 0, 64), 0)
    backend.devices.buffer(other).cached = False  # read by staging
    got = read(backend, other, 64)
    assert got != b"x" * 64
    assert struct.unpack("=Q", got[:8])
