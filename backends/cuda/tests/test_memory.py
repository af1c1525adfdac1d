"""Allocation: pools, alignment, no room, what fails half-way, and the three kinds."""

import ctypes
import gc
import mmap
import threading

import numpy as np
import pytest
from cuda_support import memory, read, slow, stream, write

import dlbridge
from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError

THRESHOLD = 4  # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD


def pool_threshold():
    from dlbridge_cuda.driver import call, cu

    pool = call("cuDeviceGetDefaultMemPool", 0)
    return int(call("cuMemPoolGetAttribute", pool, cu.CUmemPool_attribute(THRESHOLD)))


def set_threshold(value):
    from dlbridge_cuda.driver import call, cu
    from dlbridge_cuda.memory import default_pool

    pool = call("cuDeviceGetDefaultMemPool", 0)
    call("cuMemPoolSetAttribute", pool, cu.CUmemPool_attribute(THRESHOLD), cu.cuuint64_t(value))
    default_pool.cache_clear()


@pytest.fixture
def threshold():
    """The pool's threshold as it was, afterwards."""
    before = pool_threshold()
    yield
    set_threshold(before)


def test_the_pool_keeps_what_is_freed(cuda, threshold):
    set_threshold(0)
    with memory(cuda, 64):
        assert pool_threshold() == 2**64 - 1


def test_somebody_elses_threshold_is_left_alone(cuda, threshold):
    set_threshold(12345)
    with memory(cuda, 64):
        assert pool_threshold() == 12345


@pytest.mark.parametrize("alignment", [1, 256, 8192, 1 << 16, 1 << 20])
def test_alignment_and_free_of_over_aligned_memory(fake, kind, alignment):
    live = fake.live()
    held = [kind.allocate(0, 1000, alignment, 1) for _ in range(5)]
    assert [data % alignment for data in held] == [0] * 5
    for data in held:
        write(kind, data, b"x" * 1000)
        assert read(kind, data, 1000) == b"x" * 1000
        kind.free(0, data, 1)
    kind.synchronize(0, 1)
    assert fake.live() == live


def test_no_room_trims_the_pool_first(fake, cuda):
    """What the pool keeps for nothing is given back before an error is raised."""
    fake.memory(10 << 20)
    data = cuda.allocate(0, 6 << 20, 256, 1)
    cuda.free(0, data, 1)
    cuda.synchronize(0, 1)
    trims = fake.calls("cuMemPoolTrimTo")
    data = cuda.allocate(0, 9 << 20, 256, 1)
    assert fake.calls("cuMemPoolTrimTo") == trims + 1
    cuda.free(0, data, 1)
    cuda.synchronize(0, 1)


def test_no_room_waits_for_frees_on_the_way(fake, cuda):
    """Memory whose free is still queued behind work becomes room."""
    fake.memory(10 << 20)
    data = cuda.allocate(0, 6 << 20, 256, 1)
    with stream() as other:
        slow(other)
        cuda.free(0, data, other)
        again = cuda.allocate(0, 6 << 20, 256, 1)
        cuda.free(0, again, 1)
        cuda.synchronize(0, 1)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("cuda", "cuMemAllocAsync"),
        ("cuda_host", "cuMemHostAlloc"),
        ("cuda_managed", "cuMemAllocManaged"),
    ],
)
def test_no_room(fake, name, function):
    """An error that says how much, and nothing leaked or half done."""
    backend = dlbridge.backend(name)
    live = fake.live()
    fake.fail(function, 2)
    with pytest.raises(
        DeviceMemoryError, match=rf"no room for 5000 bytes of {name} memory.*{function}"
    ):
        backend.allocate(0, 5000, 256, 1)
    fake.fail(function, 0)
    assert fake.live() == live
    backend.free(0, backend.allocate(0, 5000, 256, 1), 1)


@pytest.mark.parametrize("alignment", [256, 1 << 20])
def test_no_room_for_the_second_try(fake, cuda, alignment):
    """Over-aligned memory is allocated twice; a failure of the second leaves nothing."""
    live = fake.live()
    fake.fail("cuMemAllocAsync", 2, skip=1)
    try:
        data = cuda.allocate(0, 5000, alignment, 1)
    except DeviceMemoryError:
        cuda.synchronize(0, 1)
        assert fake.live() == live
    else:
        cuda.free(0, data, 1)


def test_a_tensor_that_cannot_be_filled_is_freed(fake, cuda):
    live = fake.live()
    fake.fail("cuMemcpyHtoDAsync", 999)
    with pytest.raises(DeviceError, match="cuMemcpyHtoDAsync"):
        dlbridge.to_device(np.ones(1000), "cuda:0")
    fake.fail("cuMemcpyHtoDAsync", 0)
    gc.collect()
    cuda.synchronize(0, 1)
    assert fake.live() == live


def test_without_pools(fake, cuda):
    """A device that has none: plain allocation, and a free that waits."""
    fake.attribute("MEMORY_POOLS_SUPPORTED", 0)
    live, pooled = fake.live(), fake.calls("cuMemAllocAsync")
    with stream() as other:
        data = cuda.allocate(0, 1 << 16, 256, other)
        slow(other)
        cuda.fill(0, data, 0, 1 << 16, 7, other)
        cuda.free(0, data, other)
        assert fake.live() == live
    assert fake.calls("cuMemAllocAsync") == pooled


def test_free_on_a_stream_that_is_gone(fake, kind):
    """Its owner destroyed it: the memory is freed all the same."""
    live = fake.live()
    with stream() as other:
        data = kind.allocate(0, 1000, 256, other)
        kind.synchronize(0, other)
    kind.free(0, data, other)
    assert fake.live() == live


@pytest.mark.parametrize("gone", [False, True])
def test_free_waits_for_the_work_on_it(fake, kind, gone):
    """Pinned and managed memory too, whose driver calls know no stream."""
    with stream() as busy, memory(dlbridge.backend("cuda"), b"n" * 4096) as source:
        data = kind.allocate(0, 4096, 256, busy)
        slow(busy)
        from dlbridge_cuda.contexts import current, primary
        from dlbridge_cuda.driver import call

        with current(primary(0)):
            call("cuMemcpyAsync", data, source, 4096, busy)
        with stream() as other:
            pass
        kind.free(0, data, other if gone else busy)  # the double crashes on too early a free
        dlbridge.backend("cuda").synchronize(0, busy)


def test_the_per_thread_stream_frees_after_every_threads_work(fake, cuda):
    """Stream 2 of the thread that frees is another than that of the thread that worked."""
    data = cuda.allocate(0, 4096, 256, 2)

    def work():
        slow(2)
        cuda.fill(0, data, 0, 4096, 7, 2)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    cuda.free(0, data, 2)
    cuda.synchronize(0, 2)


def test_kinds_are_what_they_say(cuda, cuda_host, cuda_managed):
    from dlbridge_cuda.pointers import locate

    for backend, want in ((cuda, "device"), (cuda_host, "host"), (cuda_managed, "managed")):
        with memory(backend, 64) as data:
            assert locate(data).kind == want
            assert locate(data + 63).kind == want
    assert locate(ctypes.addressof(ctypes.create_string_buffer(8))).kind == "pageable"


def test_host_reads_pinned_and_managed_memory_in_place(cuda_host, cuda_managed):
    for name in ("cuda_host", "cuda_managed"):
        tensor = dlbridge.to_device(np.arange(6.0).reshape(2, 3), name)
        array = np.from_dlpack(tensor)
        assert array.ctypes.data == tensor.data_ptr()
        assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert dlbridge.explain(tensor, "cpu").endswith("in place")


@pytest.mark.parametrize("member", ["host_view", "copy_to_host", "copy_from_host", "copy", "fill"])
def test_the_host_waits_for_the_device(cuda_host, cuda, member):
    """Before it reads or writes pinned memory that queued work still uses."""
    from dlbridge_cuda.contexts import current, primary
    from dlbridge_cuda.driver import call

    with (
        stream() as busy,
        memory(cuda_host, b"o" * 4096) as data,
        memory(cuda, b"n" * 4096) as source,
    ):
        other = cuda_host.allocate(0, 4096, 256, 1)
        slow(busy)
        with current(primary(0)):
            call("cuMemcpyAsync", data, source, 4096, busy)
        if member == "host_view":
            address = cuda_host.host_view(0, data, 0, 4096, False, busy)
            assert ctypes.string_at(address, 4096) == b"n" * 4096
            cuda_host.release_host_view(0, data, address, busy)
        elif member == "copy_to_host":
            into = bytearray(4096)
            cuda_host.copy_to_host(0, data, 0, memoryview(into), busy)
            assert into == b"n" * 4096
        elif member == "copy_from_host":
            cuda_host.copy_from_host(0, data, 0, memoryview(b"h" * 4096), busy)
            cuda.synchronize(0, busy)
            assert ctypes.string_at(data, 4096) == b"h" * 4096
        elif member == "copy":
            cuda_host.copy(0, other, 0, 0, data, 0, 4096, busy)
            assert ctypes.string_at(other, 4096) == b"n" * 4096
        else:
            cuda_host.fill(0, data, 0, 4096, ord("f"), busy)
            cuda.synchronize(0, busy)
            assert ctypes.string_at(data, 4096) == b"f" * 4096
        cuda_host.free(0, other, busy)


def test_the_host_waits_for_managed_memory(cuda_managed):
    with stream() as busy, memory(cuda_managed, b"o" * 4096) as data:
        slow(busy)
        cuda_managed.fill(0, data, 0, 4096, ord("n"), busy)
        address = cuda_managed.host_view(0, data, 0, 4096, False, busy)
        assert ctypes.string_at(address, 4096) == b"n" * 4096


READERS = {
    "tolist": lambda t: bytes(t.tolist()),
    "numpy": lambda t: t.numpy().tobytes(),
    "asarray": lambda t: np.asarray(t).tobytes(),
    "from_dlpack": lambda t: np.from_dlpack(t, device="cpu").tobytes(),
    "to_device": lambda t: dlbridge.to_device(t, "cpu").numpy().tobytes(),
    "copy": lambda t: dlbridge.to_device(t, "cpu", copy=True).numpy().tobytes(),
    "view": lambda t: t[10:].numpy().tobytes() + b"n" * 10,
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_managed_tensors_are_read_when_they_are_done(cuda_managed, reader):
    """The host reads them in place, after the work that was queued on any stream."""
    from dlbridge.core.tensor.ordering import access

    tensor = dlbridge.to_device(np.frombuffer(b"o" * 4096, "u1"), "cuda_managed", copy=True)
    with stream() as busy:
        with dlbridge.use_stream("cuda_managed", busy):
            slow(busy)
            on = access(tensor._memory)  # as the call of a kernel on it does
            cuda_managed.fill(0, tensor.data_ptr(), 0, 4096, ord("n"), on)
        assert reader(tensor) == b"n" * 4096


def test_managed_memory_that_the_host_must_not_touch(fake, cuda_managed):
    fake.attribute("CONCURRENT_MANAGED_ACCESS", 0)
    with memory(cuda_managed, 64) as data:
        assert "concurrentManagedAccess is 0" in cuda_managed.host_view_refusal(0, data)
        with pytest.raises(ExchangeError, match="concurrentManagedAccess"):
            cuda_managed.host_view(0, data, 0, 64, False, 1)


@pytest.mark.parametrize(
    ("name", "function"),
    [("cuda", "cuMemFreeAsync"), ("cuda_host", "cuMemFreeHost"), ("cuda_managed", "cuMemFree")],
)
@pytest.mark.parametrize("code", [900, 906])
def test_a_free_that_a_capture_refuses_is_made_later(fake, name, function, code):
    """It may begin in another thread after the stream was asked."""
    backend, live = dlbridge.backend(name), fake.live()
    data = backend.allocate(0, 64, 256, 1)
    fake.fail(function, code)
    backend.free(0, data, 1)
    assert fake.live() == live + 1
    fake.fail(function, 0)
    backend.free(0, backend.allocate(0, 64, 256, 1), 1)
    backend.synchronize(0, 1)
    assert fake.live() == live


def test_an_import_whose_unlocking_a_capture_refuses(fake, cuda_host, pages):
    live = fake.live()
    cuda_host.import_host(0, pages.ctypes.data, pages.nbytes, False)
    fake.fail("cuMemHostUnregister", 900)
    cuda_host.free(0, pages.ctypes.data, 1)
    assert fake.live() == live + 1
    fake.fail("cuMemHostUnregister", 0)
    cuda_host.free(0, cuda_host.allocate(0, 64, 256, 1), 1)
    assert fake.live() == live


def test_over_aligned_memory_whose_first_block_cannot_be_freed_now(fake, cuda):
    live = fake.live()
    fake.fail("cuMemFreeAsync", 900)
    data = cuda.allocate(0, 5000, 1 << 20, 1)
    fake.fail("cuMemFreeAsync", 0)
    cuda.free(0, data, 1)
    cuda.synchronize(0, 1)
    assert fake.live() == live


# Host memory in place -----------------------------------------------------------


@pytest.fixture
def pages():
    """Four pages of the host: a numpy array over them, at a page's start."""
    mapped = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    return np.frombuffer(mapped, "u1")


def test_import_locks_and_free_unlocks(fake, cuda_host, pages):
    live = fake.live()
    address = pages.ctypes.data
    assert cuda_host.import_host(0, address, pages.nbytes, False) == (address, 0)
    assert fake.live() == live + 1
    cuda_host.free(0, address, 1)
    assert fake.live() == live


def test_imports_of_the_same_memory(fake, cuda_host, pages):
    """The lock stays until the last of them is freed."""
    live = fake.live()
    for _ in range(3):
        cuda_host.import_host(0, pages.ctypes.data, pages.nbytes, False)
    for left in (1, 1, 0):
        cuda_host.free(0, pages.ctypes.data, 1)
        assert fake.live() == live + left


def test_import_of_pinned_memory_is_not_ours_to_undo(fake, cuda_host):
    live = fake.live()
    with memory(cuda_host, b"p" * 100) as data:
        cuda_host.import_host(0, data, 100, False)
        cuda_host.free(0, data, 1)
        assert ctypes.string_at(data, 100) == b"p" * 100
        assert fake.live() == live + 1
    assert fake.live() == live


def test_import_waits_for_copies_before_it_unlocks(fake, cuda_host, cuda, pages):
    pages[:] = ord("o")
    with stream() as busy, memory(cuda, b"n" * pages.nbytes) as source:
        cuda_host.import_host(0, pages.ctypes.data, pages.nbytes, False)
        slow(busy)
        into = memoryview(pages)
        cuda.copy_to_host(0, source, 0, into, busy)  # pinned now: not staged, not waited for
        cuda_host.free(0, pages.ctypes.data, busy)
        assert bytes(pages) == b"n" * pages.nbytes


@pytest.mark.parametrize("offset", [1, 16, 64])
def test_import_needs_whole_pages(cuda_host, pages, offset):
    refusal = cuda_host.host_import_refusal(0, pages.ctypes.data + offset, 100)
    assert "does not begin at a page" in refusal
    with pytest.raises(ExchangeError, match="cannot be used in place: it does not begin at a page"):
        cuda_host.import_host(0, pages.ctypes.data + offset, 100, False)


def test_import_of_device_memory_is_refused(cuda, cuda_host, cuda_managed):
    for backend, word in ((cuda, "device"), (cuda_managed, "managed")):
        with memory(backend, 64) as data:
            assert f"it is {word} memory" in cuda_host.host_import_refusal(0, data, 64)


def test_import_of_half_locked_memory_is_refused(fake, cuda_host, pages):
    """Another library locked the end of it."""
    tail = pages.ctypes.data + 2 * mmap.PAGESIZE
    cuda_host.import_host(0, tail, mmap.PAGESIZE, False)
    with pytest.raises(ExchangeError, match="page-locked already"):
        cuda_host.import_host(0, pages.ctypes.data, 2 * mmap.PAGESIZE + 1, False)
    cuda_host.free(0, tail, 1)
    cuda_host.import_host(0, pages.ctypes.data, pages.nbytes, False)  # nothing was left behind
    cuda_host.free(0, pages.ctypes.data, 1)


@pytest.mark.parametrize("supported", [0, 1])
def test_import_of_read_only_memory(fake, cuda_host, pages, supported):
    fake.attribute("READ_ONLY_HOST_REGISTER_SUPPORTED", supported)
    cuda_host.import_host(0, pages.ctypes.data, pages.nbytes, True)
    cuda_host.free(0, pages.ctypes.data, 1)


def test_imports_inside_an_import_share_its_lock(fake, cuda_host, pages):
    """It stays until the last of them is freed, whichever is first."""
    live, page = fake.live(), mmap.PAGESIZE
    for first in (0, 1):
        whole = dlbridge.to_device(pages, "cuda_host")
        tail = dlbridge.to_device(pages[page:], "cuda_host")
        assert whole.data_ptr() + page == tail.data_ptr() == pages.ctypes.data + page
        assert fake.live() == live + 1
        held = [whole, tail]
        del whole, tail
        del held[first]
        gc.collect()
        assert fake.live() == live + 1
        held.clear()
        gc.collect()
        assert fake.live() == live


@pytest.mark.parametrize("part", [slice(0, 4096), slice(4096, None), slice(4096, 8192)])
def test_imports_around_an_import_are_copies(fake, cuda_host, pages, part):
    """Their lock could not be had, or would end too early."""
    pages[:] = 7
    inner = dlbridge.to_device(pages[part], "cuda_host")
    assert inner.data_ptr() == pages[part].ctypes.data
    outer = dlbridge.to_device(pages, "cuda_host")
    assert outer.data_ptr() != pages.ctypes.data
    assert outer.numpy().tolist() == pages.tolist()
    refusal = cuda_host.host_import_refusal(0, pages.ctypes.data, pages.nbytes)
    assert "page-locked already, by another import" in refusal
    with pytest.raises(ExchangeError, match="copy=False"):
        dlbridge.to_device(pages, "cuda_host", copy=False)


def test_to_device_locks_in_place_and_keeps_the_owner(fake, cuda_host, pages):
    live = fake.live()
    tensor = dlbridge.to_device(pages, "cuda_host")
    assert tensor.data_ptr() == pages.ctypes.data
    pages[3] = 77
    assert tensor[3].item() == 77
    del pages
    gc.collect()
    assert tensor[3].item() == 77
    del tensor
    gc.collect()
    assert fake.live() == live
