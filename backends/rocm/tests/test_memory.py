"""Allocation: pools and none, alignment, no room, what fails half-way, and both kinds."""

import ctypes
import gc
import mmap

import numpy as np
import pytest
from rocm_support import gate, hip, memory, read, stream, write

import dlbridge
from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError

MEMORY_POOLS_SUPPORTED = 115  # CUdevice_attribute, below the shim
PAGEABLE_MEMORY_ACCESS = 88
NOT_SUPPORTED = 801


def copy_into(target, source, nbytes, on):
    """Queue a copy of device memory to pinned memory: what the host must wait for."""
    from dlbridge_rocm.copies import copy
    from dlbridge_rocm.devices import current

    with current(0):
        copy(target, source, nbytes, on)


def pool_threshold(value=None):
    """The release threshold of device 0's pool, after setting it to *value*."""
    from dlbridge_rocm.driver import answer, call
    from dlbridge_rocm.library import ffi
    from dlbridge_rocm.memory import default_pool

    pool = answer("hipDeviceGetDefaultMemPool", "hipMemPool_t", 0)
    number = ffi.new("uint64_t *", value or 0)
    if value is not None:
        call("hipMemPoolSetAttribute", pool, 4, number)
        default_pool.cache_clear()
    call("hipMemPoolGetAttribute", pool, 4, number)
    return number[0]


@pytest.fixture
def threshold():
    """The pool's threshold as it was, afterwards."""
    before = pool_threshold()
    yield
    pool_threshold(before)


def test_the_pool_keeps_what_is_freed(rocm, threshold):
    pool_threshold(0)
    with memory(rocm, 64):
        assert pool_threshold() == 2**64 - 1


def test_somebody_elses_threshold_is_left_alone(rocm, threshold):
    pool_threshold(12345)
    with memory(rocm, 64):
        assert pool_threshold() == 12345


@pytest.mark.parametrize("alignment", [1, 256, 8192, 1 << 16, 1 << 20])
def test_alignment_and_free_of_over_aligned_memory(fake, kind, alignment):
    live = fake.live()
    held = [kind.allocate(0, 1000, alignment, 0) for _ in range(5)]
    assert [data % alignment for data in held] == [0] * 5
    for data in held:
        write(kind, data, b"x" * 1000)
        assert read(kind, data, 1000) == b"x" * 1000
        kind.free(0, data, 0)
    kind.synchronize(0, 0)
    assert fake.live() == live


# No room --------------------------------------------------------------------------


def test_no_room_trims_the_pool_first(fake, rocm):
    """What the pool keeps for nothing is given back before an error is raised."""
    fake.memory(10 << 20)
    data = rocm.allocate(0, 6 << 20, 256, 0)
    rocm.free(0, data, 0)
    rocm.synchronize(0, 0)
    trims = fake.calls("hipMemPoolTrimTo")
    data = rocm.allocate(0, 9 << 20, 256, 0)
    assert fake.calls("hipMemPoolTrimTo") == trims + 1
    rocm.free(0, data, 0)
    rocm.synchronize(0, 0)


def test_no_room_waits_for_frees_on_the_way(fake, rocm):
    """Memory whose free is still queued behind work becomes room."""
    fake.memory(10 << 20)
    data = rocm.allocate(0, 6 << 20, 256, 0)
    with stream() as other, gate(other) as closed:
        rocm.free(0, data, other)
        closed.open_soon()
        again = rocm.allocate(0, 6 << 20, 256, 0)
        assert closed.is_open
        rocm.free(0, again, 0)
        rocm.synchronize(0, 0)


@pytest.mark.parametrize(
    ("name", "function"), [("rocm", "hipMallocAsync"), ("rocm_host", "hipHostMalloc")]
)
@pytest.mark.parametrize("alignment", [256, 1 << 20])
def test_no_room(fake, name, function, alignment):
    """An error that says how much, and nothing leaked or half done."""
    backend = dlbridge.backend(name)
    for _ in range(2):  # the first time also gives back what earlier tests freed late
        live = fake.live()
        fake.fail(function, 2)
        with pytest.raises(
            DeviceMemoryError,
            match=rf"no room for {5000} bytes of {name} memory \(device 0 has .*{function}: hipErrorOut",
        ):
            backend.allocate(0, 5000, alignment, 0)
        fake.fail(function, 0)
    assert fake.live() == live
    backend.free(0, backend.allocate(0, 5000, alignment, 0), 0)


def test_no_room_for_the_second_try(fake, rocm):
    """Over-aligned memory is allocated twice; a failure of the second leaves nothing."""
    live = fake.live()
    fake.fail("hipMallocAsync", 2, skip=1)
    with pytest.raises(DeviceMemoryError):
        rocm.allocate(0, 5000, 1 << 30, 0)
    rocm.synchronize(0, 0)
    assert fake.live() == live


def test_a_tensor_that_cannot_be_filled_is_freed(fake, rocm):
    live = fake.live()
    fake.fail("hipMemcpyAsync", 999)
    with pytest.raises(DeviceError, match="hipMemcpyAsync"):
        dlbridge.to_device(np.ones(1000), "rocm:0")
    fake.fail("hipMemcpyAsync", 0)
    gc.collect()
    rocm.synchronize(0, 0)
    assert fake.live() == live


# Without pools ----------------------------------------------------------------------


@pytest.fixture(params=["attribute", "no default", "refusal", "HIP 5"])
def no_pools(request, fake):
    """A device that has none, a runtime that has the function and refuses it, and HIP 5."""
    from dlbridge_rocm import ROCM

    if request.param == "attribute":
        fake.attribute(MEMORY_POOLS_SUPPORTED, 0)
    elif request.param == "no default":
        fake.fail("hipDeviceGetDefaultMemPool", NOT_SUPPORTED)
    elif request.param == "refusal":
        fake.fail("hipMallocAsync", NOT_SUPPORTED)
    else:
        fake.version(5, 2)
    return ROCM()


def test_without_pools(fake, no_pools):
    """Plain allocation, and a free that waits: the double crashes on too early a free."""
    live, pooled = fake.live(), fake.calls("hipFreeAsync")
    with stream() as other:
        data = no_pools.allocate(0, 1 << 16, 256, other)
        with gate(other) as closed:
            no_pools.fill(0, data, 0, 1 << 16, 7, other)
            closed.open_soon()
            no_pools.free(0, data, other)
            assert closed.is_open
        assert fake.live() == live
    assert fake.calls("hipFreeAsync") == pooled


# Free -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(5, 2), (7, 0)])
def test_free_on_a_stream_that_is_gone(fake, kind, version):
    """Its owner destroyed it: the memory is freed all the same."""
    fake.version(*version)
    live = fake.live()
    with stream() as other:
        data = kind.allocate(0, 1000, 256, other)
        kind.synchronize(0, other)
    kind.free(0, data, other)
    assert fake.live() == live


@pytest.mark.parametrize("gone", [False, True])
def test_free_waits_for_the_work_on_it(fake, rocm, rocm_host, gone):
    """Pinned memory, whose free knows no stream; the double crashes on too early a free."""
    with stream() as busy, memory(rocm, b"n" * 4096) as source, gate(busy) as closed:
        data = rocm_host.allocate(0, 4096, 256, busy)
        copy_into(data, source, 4096, busy)
        with stream() as other:
            pass
        closed.open_soon()
        rocm_host.free(0, data, other if gone else busy)
        assert closed.is_open


def test_device_memory_of_a_stream_that_is_gone_waits_for_all_work(fake, rocm):
    with stream() as busy, gate(busy) as closed:
        data = rocm.allocate(0, 4096, 256, 0)
        rocm.fill(0, data, 0, 4096, 7, busy)
        with stream() as other:
            pass
        closed.open_soon()
        rocm.free(0, data, other)
        assert closed.is_open


def test_freeing_a_bad_pointer_is_logged(kind, caplog):
    """`free` may run in a finalizer, where nobody catches."""
    kind.free(0, 0x1000, 0)
    assert "memory at 0x1000 is not freed" in caplog.text
    assert "hipErrorInvalidValue (1)" in caplog.text


def test_a_free_that_fails_later_harms_no_allocation(fake, rocm, caplog):
    """What waits for a capture to end is freed by the next call, whose result it must not spoil."""
    rocm._memory._deferred.append((0, 0x1000, 0))
    with memory(rocm, b"x" * 64) as data:
        assert read(rocm, data, 64) == b"x" * 64
    assert "memory at 0x1000 is not freed" in caplog.text


# Pinned memory ------------------------------------------------------------------------


def test_host_reads_pinned_memory_in_place(rocm_host):
    tensor = dlbridge.to_device(np.arange(6.0).reshape(2, 3), "rocm_host")
    array = np.from_dlpack(tensor)
    assert array.ctypes.data == tensor.data_ptr()
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert dlbridge.explain(tensor, "cpu").endswith("in place")


@pytest.mark.parametrize("member", ["host_view", "copy_to_host", "copy_from_host", "copy", "fill"])
def test_the_host_waits_for_the_device(rocm_host, rocm, member):
    """Before it reads or writes pinned memory that queued work still uses."""
    with (
        stream() as busy,
        memory(rocm_host, b"o" * 4096) as data,
        memory(rocm, b"n" * 4096) as source,
        memory(rocm_host, 4096) as other,
        gate(busy) as closed,
    ):
        copy_into(data, source, 4096, busy)
        closed.open_soon()
        if member == "host_view":
            address = rocm_host.host_view(0, data, 0, 4096, False, busy)
            assert ctypes.string_at(address, 4096) == b"n" * 4096
            rocm_host.release_host_view(0, data, address, busy)
        elif member == "copy_to_host":
            into = bytearray(4096)
            rocm_host.copy_to_host(0, data, 0, memoryview(into), busy)
            assert into == b"n" * 4096
        elif member == "copy_from_host":
            rocm_host.copy_from_host(0, data, 0, memoryview(b"h" * 4096), busy)
            rocm.synchronize(0, busy)
            assert ctypes.string_at(data, 4096) == b"h" * 4096
        elif member == "copy":
            rocm_host.copy(0, other, 0, 0, data, 0, 4096, busy)
            assert ctypes.string_at(other, 4096) == b"n" * 4096
        else:
            rocm_host.fill(0, data, 0, 4096, ord("f"), busy)
            rocm.synchronize(0, busy)
            assert ctypes.string_at(data, 4096) == b"f" * 4096


# Host memory in place -------------------------------------------------------------------


@pytest.fixture
def pages():
    """Four pages of the host: a numpy array over them, at a page's start."""
    return np.frombuffer(mmap.mmap(-1, 4 * mmap.PAGESIZE), "u1")


def test_imports_of_the_same_memory(fake, rocm_host, pages):
    """It is locked at the first, and the lock stays until the last of them is freed."""
    live = fake.live()
    for _ in range(3):
        assert rocm_host.import_host(0, pages.ctypes.data, pages.nbytes, False) == (
            pages.ctypes.data,
            0,
        )
    for left in (1, 1, 0):
        rocm_host.free(0, pages.ctypes.data, 0)
        assert fake.live() == live + left


def test_import_of_pinned_memory_is_not_ours_to_undo(fake, rocm_host):
    live = fake.live()
    with memory(rocm_host, b"p" * 100) as data:
        theirs = data + 4  # inside somebody's allocation
        rocm_host.import_host(0, theirs, 96, False)
        rocm_host.free(0, theirs, 0)
        assert ctypes.string_at(data, 100) == b"p" * 100
        assert fake.live() == live + 1
    assert fake.live() == live


@pytest.mark.parametrize("offset", [1, 16, 64])
def test_import_needs_whole_pages(rocm_host, pages, offset):
    refusal = rocm_host.host_import_refusal(0, pages.ctypes.data + offset, 100)
    assert "does not begin at a page" in refusal
    with pytest.raises(ExchangeError, match="cannot be used in place: it does not begin at a page"):
        rocm_host.import_host(0, pages.ctypes.data + offset, 100, False)


def test_import_of_device_memory_is_refused(rocm, rocm_host):
    with memory(rocm, 64) as data:
        assert "it is device memory" in rocm_host.host_import_refusal(0, data, 64)


def test_import_of_half_locked_memory_is_refused(fake, rocm_host, pages):
    """Another library locked the end of it."""
    tail = pages.ctypes.data + 2 * mmap.PAGESIZE
    rocm_host.import_host(0, tail, mmap.PAGESIZE, False)
    with pytest.raises(ExchangeError, match="page-locked already"):
        rocm_host.import_host(0, pages.ctypes.data, 2 * mmap.PAGESIZE + 1, False)
    rocm_host.free(0, tail, 0)
    rocm_host.import_host(0, pages.ctypes.data, pages.nbytes, False)  # nothing was left behind
    rocm_host.free(0, pages.ctypes.data, 0)


def test_imports_inside_an_import_share_its_lock(fake, rocm_host, pages):
    """It stays until the last of them is freed, whichever is first."""
    live, page = fake.live(), mmap.PAGESIZE
    for first in (0, 1):
        whole = dlbridge.to_device(pages, "rocm_host")
        tail = dlbridge.to_device(pages[page:], "rocm_host")
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
def test_imports_around_an_import_are_copies(fake, rocm_host, pages, part):
    """Their lock could not be had, or would end too early."""
    pages[:] = 7
    inner = dlbridge.to_device(pages[part], "rocm_host")
    assert inner.data_ptr() == pages[part].ctypes.data
    outer = dlbridge.to_device(pages, "rocm_host")
    assert outer.data_ptr() != pages.ctypes.data
    assert outer.numpy().tolist() == pages.tolist()
    refusal = rocm_host.host_import_refusal(0, pages.ctypes.data, pages.nbytes)
    assert "page-locked already, by another import" in refusal
    with pytest.raises(ExchangeError, match="copy=False"):
        dlbridge.to_device(pages, "rocm_host", copy=False)


def test_to_device_locks_in_place_and_keeps_the_owner(fake, rocm_host, pages):
    live = fake.live()
    tensor = dlbridge.to_device(pages, "rocm_host")
    assert tensor.data_ptr() == pages.ctypes.data
    pages[3] = 77
    del pages
    gc.collect()
    assert tensor[3].item() == 77
    del tensor
    gc.collect()
    assert fake.live() == live


# Foreign pointers -------------------------------------------------------------------------


@pytest.mark.parametrize("theirs", ["rocm", "rocm_host"])
@pytest.mark.parametrize("ours", ["rocm", "rocm_host"])
def test_import_data_asks_the_runtime(rocm, ours, theirs):
    """A GPU reaches both kinds; pinned memory must be what it is called."""
    backend, owner = dlbridge.backend(ours), dlbridge.backend(theirs)
    with memory(owner, 64) as data:
        if ours in ("rocm", theirs):
            assert backend.import_data(0, data, "test") == (0, data)
        else:
            with pytest.raises(
                ExchangeError, match=rf"says that {data:#x} is rocm_host memory.*it is device"
            ):
                backend.import_data(0, data, "test")


def test_the_pointer_knows_its_device_better(rocm, two_devices):
    with memory(rocm, 64, device_id=1) as data:
        assert rocm.import_data(0, data, "test") == (1, data)


def test_where_the_gpu_reads_all_host_memory(fake, rocm, rocm_host):
    """With XNACK on, any address is good for the GPU."""
    fake.attribute(PAGEABLE_MEMORY_ACCESS, 1)
    data = ctypes.addressof(buffer := ctypes.create_string_buffer(64))
    assert rocm.import_data(1, data, "test") == (1, data)
    with pytest.raises(ExchangeError, match="pageable"):
        rocm_host.import_data(0, data, "test")
    del buffer


@pytest.mark.parametrize("device_id", [-1, 99])
def test_a_device_that_is_not_there(kind, device_id):
    for member in (
        lambda: kind.import_data(device_id, 0x1000, "test"),
        lambda: kind.allocate(device_id, 64, 256, 0),
        lambda: kind.device_info(device_id),
    ):
        with pytest.raises(ExchangeError, match=f"there is no {kind.name}:{device_id}"):
            member()


def test_freed_memory(fake, rocm):
    data = rocm.allocate(0, 64, 256, 0)
    rocm.free(0, data, 0)
    rocm.synchronize(0, 0)
    with pytest.raises(ExchangeError, match="mislabels it or has freed it"):
        rocm.import_data(0, data, "test")


def test_arrays_are_none_of_ours(fake, rocm):
    """A type of memory that has no place in a tensor is refused by its number."""
    from dlbridge_rocm import pointers

    with memory(rocm, 64) as data:
        kinds, pointers._KINDS_6 = pointers._KINDS_6, {}
        try:
            with pytest.raises(ExchangeError, match="it is type 2 memory"):
                rocm.import_data(0, data, "test")
        finally:
            pointers._KINDS_6 = kinds


def test_a_stream_that_hip_made(rocm):
    """The helpers talk to the same runtime as the backend."""
    with stream() as own:
        hip("hipStreamSynchronize", own)
        rocm.synchronize(0, own)
