"""Allocation: pools and none, alignment, no room, frees, and host memory used in place."""

import ctypes
import gc
import mmap

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError
from dlbridge.protocol import Span

from .rig import (
    NON_BLOCKING,
    allocation_at,
    default,
    destroyed_stream,
    drop,
    gate,
    hold,
    memory,
    need_gone_streams,
    read,
    rig,
    settle,
    stream,
)

MAX_THRESHOLD = 2**64 - 1


def test_memory_is_on_the_device_that_was_asked_for(fake, device, two_devices):
    """Also on a stream of another one: the pool is the device's, not the stream's."""
    with stream(1) as other, memory(device, 64, other) as data:
        assert fake.home(data) == 0
        assert device.import_data(0, data, "test") == (0, data)
        device.fill(Span(0, data, 0, 64), ord("x"), other)
        assert read(device, data, 64, other) == b"x" * 64


# No room --------------------------------------------------------------------------


def test_no_room_trims_the_pool_first(fake, device):
    """What the pool keeps for nothing is given back before an error is raised."""
    fake.memory(10 << 20)
    data = hold(device.allocate(0, 6 << 20, 256, default()))
    drop(data, default())
    device.synchronize(0, default())
    trims = fake.calls("trim")
    data = hold(device.allocate(0, 9 << 20, 256, default()))
    assert fake.calls("trim") == trims + 1
    drop(data, default())
    device.synchronize(0, default())


def test_trimming_gives_back_what_the_pool_keeps(fake, device):
    data = hold(device.allocate(0, 6 << 20, 256, default()))
    drop(data, default())
    trims = fake.calls("trim")
    device.trim(0)
    assert fake.calls("trim") == trims + 1


@pytest.mark.parametrize("consumer", [False, True])
@pytest.mark.parametrize("destroyed", [False, True])
def test_no_room_waits_for_frees_on_the_way(fake, device, consumer, destroyed):
    """Memory whose free is queued behind work becomes room, also if its stream is destroyed."""
    if destroyed and not consumer:
        need_gone_streams()
    fake.memory(10 << 20)
    data = hold(device.allocate(0, 6 << 20, 256, default()))
    other = rig().create_stream(0, 1)
    if consumer:
        device.wait(0, other, default())
    with gate(other) as closed:
        drop(data, default() if consumer else other)
        if destroyed:
            rig().destroy_stream(other, 0)
        closed.open_soon()
        again = hold(device.allocate(0, 6 << 20, 256, default()))
        assert closed.is_open
        drop(again, default())
        device.synchronize(0, default())
    if not destroyed:
        rig().destroy_stream(other, 0)


def test_no_room_waits_for_the_last_free_on_another_stream(fake, device):
    """Not for one before it, whose event was recorded again."""
    fake.memory(10 << 20)
    drop(hold(device.allocate(0, 64, 256, default())), default())
    data = hold(device.allocate(0, 6 << 20, 256, default()))
    with stream() as other, gate(default()) as closed:
        drop(data, default())
        closed.open_soon()
        again = hold(device.allocate(0, 6 << 20, 256, other))
        assert closed.is_open
        drop(again, other)
        device.synchronize(0, other)


@pytest.mark.parametrize("alignment", [256, 1 << 20])
def test_no_room(fake, kind, alignment):
    """An error that says how much, and nothing is leaked or half done."""
    function = rig().names[f"allocate {kind.name}"]
    functions = [function]
    if kind.name == rig().device and rig().last_resort:
        functions.append(function := rig().last_resort)
    for _ in range(2):  # the first time also gives back what earlier tests freed late
        live = fake.live()
        for each in functions:
            fake.fail(each, 2)
        with pytest.raises(
            DeviceMemoryError,
            match=rf"no room for 5000 bytes of {kind.name} memory \(device 0 has .*{function}",
        ):
            hold(kind.allocate(0, 5000, alignment, default()))
        for each in functions:
            fake.fail(each, 0)
    assert fake.live() == live
    drop(hold(kind.allocate(0, 5000, alignment, default())), default())


def test_no_room_for_the_second_try(fake, device):
    """Over-aligned memory is allocated twice; a failure of the second leaves nothing."""
    live = fake.live()
    fake.fail("allocate", 2, skip=1)
    if rig().last_resort:
        fake.fail(rig().last_resort, 2)
    with pytest.raises(DeviceMemoryError):
        hold(device.allocate(0, 5000, 1 << 30, default()))
    device.synchronize(0, default())
    assert fake.live() == live


# Free -------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [400, 709])
def test_free_on_a_stream_that_is_gone(fake, kind, code):
    """Its owner destroyed it: the memory is freed all the same."""
    need_gone_streams()
    fake.destroyed(code)
    live = fake.live()
    with stream() as other:
        data = hold(kind.allocate(0, 1000, 256, other))
        kind.synchronize(0, other)
    drop(data, other)
    kind.synchronize(0, default())  # behind which it is freed
    assert fake.live() == live


@pytest.mark.parametrize("gone", [False, True])
def test_free_waits_for_the_work_on_it(fake, kind, gone):
    """Of pinned and managed memory too, whose driver calls know no stream."""
    with stream() as busy, memory(dlbridge.backend(rig().device), b"n" * 4096) as source:
        data = hold(kind.allocate(0, 4096, 256, busy))
        wrong = destroyed_stream() if gone else busy
        with gate(busy) as closed:
            copy_into(data, source, 4096, busy)
            closed.open_soon()
            drop(data, wrong)  # crashes on too early a free
        dlbridge.backend(rig().device).synchronize(0, busy)


def copy_into(target, source, nbytes, on):
    """Queue a copy between any memory, beside the backend."""
    gpu = rig().gpu()
    gpu.run(gpu.context(0), gpu.copy, target, source, nbytes, on)


def test_the_stream_of_the_memory_is_destroyed_before_the_free(fake, kind):
    """Its work goes on, and nothing tells when it ends: all work is waited for."""
    need_gone_streams()
    with memory(dlbridge.backend(rig().device), b"n" * 4096) as source:
        own = rig().create_stream(0, NON_BLOCKING)
        data = hold(kind.allocate(0, 4096, 256, own))
        with gate(own) as closed:
            copy_into(data, source, 4096, own)
            rig().destroy_stream(own, 0)
            closed.open_soon()
            drop(data, own)  # crashes on too early a free
            assert closed.is_open


def test_both_streams_of_pinned_memory_are_destroyed(fake, pinned, device):
    """That of the free, and a consumer's whose work goes on: all work is waited for."""
    with stream() as theirs, memory(device, b"n" * 4096) as source:
        data = hold(pinned.allocate(0, 4096, 256, default()))
        pinned.wait(0, theirs, default())
        with gate(theirs) as closed:
            copy_into(data, source, 4096, theirs)
            closed.open_soon()
            bad = 0xBAD if rig().looks_up_gone_streams else default()
            drop(data, bad)  # crashes on too early a free
            assert closed.is_open


@pytest.mark.parametrize("code", [900, 906])
def test_a_free_that_a_capture_refuses_is_made_later(fake, kind, code):
    """It may begin in another thread after the stream was asked."""
    live, function = fake.live(), rig().names[f"free {kind.name}"]
    data = hold(kind.allocate(0, 64, 256, default()))
    fake.fail(function, code)
    drop(data, default())
    assert fake.live() == live + 1
    fake.fail(function, 0)
    drop(hold(kind.allocate(0, 64, 256, default())), default())
    kind.synchronize(0, default())
    assert fake.live() == live


def test_a_free_that_fails_is_logged(fake, kind, caplog):
    """`free` may run in a finalizer, where nobody catches."""
    data = hold(kind.allocate(0, 64, 256, default()))
    allocation_at(data).resource.cell.value = 0x1000  # private: no driver refuses what is right
    drop(data, default())
    settle()  # it may wait for streams that earlier tests used
    assert "memory at 0x1000 is not freed" in caplog.text


@pytest.mark.parametrize("code", [214, 700, 710, 719])
def test_a_lost_device_is_logged_once(fake, device, caplog, code):
    """After such an error every later call fails; a thousand tensors die all the same."""
    held = [hold(device.allocate(0, 64, 256, default())) for _ in range(5)]
    fake.fail("fill", code)
    with pytest.raises(DeviceError, match="restart the process"):
        device.fill(Span(0, held[0], 0, 64), 0, default())
    fake.fail("free", code)
    for data in held:
        drop(data, default())
    assert caplog.text.count("is not freed") == 1


# Pinned memory -------------------------------------------------------------------------


def test_host_reads_pinned_memory_in_place(pinned):
    tensor = dlbridge.to_device(np.arange(6.0).reshape(2, 3), rig().host)
    array = np.from_dlpack(tensor)
    assert array.ctypes.data == tensor.data_ptr()
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert dlbridge.explain(tensor, "cpu").endswith("in place")


@pytest.mark.parametrize("member", ["host_view", "copy_to_host", "copy_from_host", "copy", "fill"])
def test_the_host_waits_for_the_device(pinned, device, member):
    """Before it reads or writes pinned memory that queued work still uses."""
    content = memoryview(b"h" * 4096)
    with (
        stream() as busy,
        memory(pinned, b"o" * 4096) as data,
        memory(device, b"n" * 4096) as source,
        memory(pinned, 4096) as other,
        gate(busy) as closed,
    ):
        copy_into(data, source, 4096, busy)
        closed.open_soon()
        if member == "host_view":
            view = pinned.host_view(Span(0, data, 0, 4096), False, busy)
            assert ctypes.string_at(view.data, 4096) == b"n" * 4096
        elif member == "copy_to_host":
            into = bytearray(4096)
            pinned.copy_to_host(Span(0, data, 0, len(into)), memoryview(into), busy)
            assert into == b"n" * 4096
        elif member == "copy_from_host":
            pinned.copy_from_host(Span(0, data, 0, len(content)), content, busy)
            device.synchronize(0, busy)
            assert ctypes.string_at(data, 4096) == content
        elif member == "copy":
            pinned.copy(Span(0, other, 0, 4096), Span(0, data, 0, 4096), busy)
            assert ctypes.string_at(other, 4096) == b"n" * 4096
        else:
            pinned.fill(Span(0, data, 0, 4096), ord("f"), busy)
            device.synchronize(0, busy)
            assert ctypes.string_at(data, 4096) == b"f" * 4096


# Host memory in place -------------------------------------------------------------------


@pytest.fixture
def pages():
    """Four pages of the host: a numpy array over them, at a page's start."""
    return np.frombuffer(mmap.mmap(-1, 4 * mmap.PAGESIZE), "u1")


def test_imports_of_the_same_memory(fake, pinned, pages):
    """It is locked at the first, and the lock stays until the last of them is freed."""
    live, address = fake.live(), pages.ctypes.data
    for _ in range(3):
        assert hold(pinned.import_host(0, address, pages.nbytes, False, default())) == address
        assert fake.live() == live + 1
    for left in (1, 1, 0):
        drop(address, default())
        assert fake.live() == live + left


def test_import_of_pinned_memory_is_not_ours_to_undo(fake, pinned):
    live = fake.live()
    with memory(pinned, b"p" * 100) as data:
        theirs = data + 4  # inside somebody's allocation
        hold(pinned.import_host(0, theirs, 96, False, default()))
        drop(theirs, default())
        assert ctypes.string_at(data, 100) == b"p" * 100
        assert fake.live() == live + 1
    assert fake.live() == live


def test_import_waits_for_copies_before_it_unlocks(fake, pinned, device, pages):
    pages[:] = ord("o")
    with stream() as busy, memory(device, b"n" * pages.nbytes) as source:
        hold(pinned.import_host(0, pages.ctypes.data, pages.nbytes, False, default()))
        with gate(busy) as closed:
            copy_into(pages.ctypes.data, source, pages.nbytes, busy)
            closed.open_soon()
            drop(pages.ctypes.data, busy)
            assert bytes(pages) == b"n" * pages.nbytes


def test_an_import_whose_unlocking_a_capture_refuses(fake, pinned, pages):
    live = fake.live()
    hold(pinned.import_host(0, pages.ctypes.data, pages.nbytes, False, default()))
    fake.fail("unlock", 900)
    drop(pages.ctypes.data, default())
    assert fake.live() == live + 1
    fake.fail("unlock", 0)
    drop(hold(pinned.allocate(0, 64, 256, default())), default())
    assert fake.live() == live


@pytest.mark.parametrize("offset", [1, 16, 64])
def test_import_needs_whole_pages(pinned, pages, offset):
    refusal = pinned.host_import_refusal(0, pages.ctypes.data + offset, 100, True)
    assert "does not begin at a page" in refusal
    with pytest.raises(ExchangeError, match="cannot be used in place: it does not begin at a page"):
        hold(pinned.import_host(0, pages.ctypes.data + offset, 100, False, default()))


def test_import_of_device_memory_is_refused(kind, pinned):
    if kind.name == rig().host:
        return
    with memory(kind, 64) as data:
        assert "memory, which cannot be page-locked" in pinned.host_import_refusal(
            0, data, 64, True
        )


def test_import_of_half_locked_memory_is_refused(fake, pinned, pages):
    """Another library locked the end of it."""
    tail = pages.ctypes.data + 2 * mmap.PAGESIZE
    hold(pinned.import_host(0, tail, mmap.PAGESIZE, False, default()))
    with pytest.raises(ExchangeError, match="page-locked already"):
        hold(pinned.import_host(0, pages.ctypes.data, 2 * mmap.PAGESIZE + 1, False, default()))
    drop(tail, default())
    hold(
        pinned.import_host(0, pages.ctypes.data, pages.nbytes, False, default())
    )  # nothing was left behind
    drop(pages.ctypes.data, default())


@pytest.mark.parametrize("code", [1, 2, 304, 712, 801])
def test_memory_that_the_driver_refuses_to_lock_is_copied(fake, pinned, pages, code):
    pages[:] = 7
    fake.fail("lock", code)
    with pytest.raises(ExchangeError, match=r"cannot be page-locked in place .*copy it instead"):
        hold(pinned.import_host(0, pages.ctypes.data, pages.nbytes, False, default()))
    tensor = dlbridge.to_device(pages, rig().host)
    assert tensor.data_ptr() != pages.ctypes.data
    assert tensor.numpy().tolist() == pages.tolist()
    fake.fail("lock", 0)


def test_read_only_pages_are_copied(fake, pinned, tmp_path):
    """A memory map that is opened for reading cannot be locked without the driver's help."""
    np.full(4 * mmap.PAGESIZE, 7, "u1").tofile(tmp_path / "data")
    pages = np.memmap(tmp_path / "data", "u1", "r")
    live = fake.live()
    tensor = dlbridge.to_device(pages, rig().host)
    assert tensor.data_ptr() != pages.ctypes.data
    assert tensor.numpy().tolist() == pages.tolist()
    del tensor
    assert fake.live() == live


def test_imports_inside_an_import_share_its_lock(fake, pinned, pages):
    """It stays until the last of them is freed, whichever is first."""
    live, page = fake.live(), mmap.PAGESIZE
    for first in (0, 1):
        whole = dlbridge.to_device(pages, rig().host)
        tail = dlbridge.to_device(pages[page:], rig().host)
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
def test_imports_around_an_import_are_copies(fake, pinned, pages, part):
    """Their lock could not be had, or would end too early."""
    pages[:] = 7
    inner = dlbridge.to_device(pages[part], rig().host)
    assert inner.data_ptr() == pages[part].ctypes.data
    outer = dlbridge.to_device(pages, rig().host)
    assert outer.data_ptr() != pages.ctypes.data
    assert outer.numpy().tolist() == pages.tolist()
    refusal = pinned.host_import_refusal(0, pages.ctypes.data, pages.nbytes, True)
    assert "page-locked already, by another import" in refusal
    with pytest.raises(ExchangeError, match="copy=False"):
        dlbridge.to_device(pages, rig().host, copy=False)


def test_to_device_locks_in_place_and_keeps_the_owner(fake, pinned, pages):
    live = fake.live()
    tensor = dlbridge.to_device(pages, rig().host)
    assert tensor.data_ptr() == pages.ctypes.data
    pages[3] = 77
    del pages
    gc.collect()
    assert tensor[3].item() == 77
    del tensor
    gc.collect()
    assert fake.live() == live


# Foreign pointers -------------------------------------------------------------------------


def test_import_data_asks_the_driver(kind, device):
    """A GPU reaches all kinds; the others hold what they are called."""
    for name in rig().kinds:
        with memory(dlbridge.backend(name), 64) as data:
            if kind.name in (rig().device, name):
                assert kind.import_data(0, data, "test") == (0, data)
            else:
                with pytest.raises(
                    ExchangeError, match=rf"says that {data:#x} is {kind.name} memory.*says it is"
                ):
                    kind.import_data(0, data, "test")


def test_the_pointer_knows_its_device_better(device, two_devices):
    with memory(device, 64, device_id=1) as data:
        assert device.import_data(0, data, "test") == (1, data)


@pytest.mark.parametrize("reads_host", [0, 1])
def test_host_memory_is_not_device_memory(fake, kind, reads_host):
    """Also where the GPU can read it (HMM, XNACK): freed memory looks the same to the driver."""
    fake.attribute(88, reads_host)  # PAGEABLE_MEMORY_ACCESS
    data = ctypes.addressof(buffer := ctypes.create_string_buffer(64))
    with pytest.raises(ExchangeError, match="it is pageable memory; its exporter mislabels it"):
        kind.import_data(0, data, "test")
    del buffer


@pytest.mark.parametrize("address", [8, 0x1000, (1 << 47) - 64])
def test_a_bad_pointer(fake, device, address):
    """An address that is not device memory is refused; later work is not disturbed."""
    nothing, host = Span(0, address, 0, 64), memoryview(bytearray(64))
    calls = [lambda: device.fill(nothing, 0, default())]
    if rig().checks_addresses_of_copies:
        calls += [
            lambda: device.copy_from_host(nothing, host, default()),
            lambda: device.copy_to_host(nothing, host, default()),
        ]
    for call in calls:
        with pytest.raises(DeviceError, match=r"INVALID_VALUE|InvalidValue"):
            call()
    with pytest.raises(ExchangeError, match="mislabels it"):
        device.import_data(0, address, "test")
    with memory(device, b"still here") as data:
        assert read(device, data, 10) == b"still here"


def test_freed_memory(fake, device):
    """A real pool may keep it mapped."""
    data = hold(device.allocate(0, 64, 256, default()))
    drop(data, default())
    device.synchronize(0, default())
    with pytest.raises(ExchangeError, match="mislabels it or has freed it"):
        device.import_data(0, data, "test")


# The pool ---------------------------------------------------------------------------------


@pytest.fixture
def threshold(device):
    """The pool's threshold as it was, afterwards."""
    before = rig().pool_threshold()
    yield
    rig().pool_threshold(before)


@pytest.mark.parametrize(("before", "after"), [(0, MAX_THRESHOLD), (12345, 12345)])
def test_the_pool_keeps_what_is_freed(device, threshold, before, after):
    """Unless somebody else has said how much it keeps: the pool belongs to the process."""
    rig().pool_threshold(before)
    with memory(device, 64):
        assert rig().pool_threshold() == after


def test_the_pool_keeps_as_much_as_the_user_says(device, threshold, monkeypatch):
    monkeypatch.setenv("DLBRIDGE_POOL_LIMIT", "4096")
    rig().pool_threshold(0)
    with memory(device, 64):
        assert rig().pool_threshold() == 4096


def test_without_pools(fake, no_pools):
    """Plain allocation, and a free that waits: the driver crashes on too early a free."""
    device = rig().without_pools(fake, no_pools)
    live, pooled = fake.live(), fake.calls("free")
    with stream() as other:
        data = hold(device.allocate(0, 1 << 16, 256, other))
        with gate(other) as closed:
            device.fill(Span(0, data, 0, 1 << 16), 7, other)
            closed.open_soon()
            drop(data, other)
            assert closed.is_open
        assert fake.live() == live
    assert fake.calls("free") == pooled
