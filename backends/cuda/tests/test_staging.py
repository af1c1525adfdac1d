"""Pageable memory: to the device through the ring of pinned chunks, to the host by the driver."""

import ctypes
import mmap
import os
import signal
import threading
import time

import numpy as np
import pytest

import dlbridge
from backends.cuda.tests.cuda_support import gate, memory, own_context, read, slow, stream
from dlbridge.errors import DeviceError, DeviceMemoryError
from dlbridge.kit import staging
from dlbridge.kit.staging import DIRECT, PLAN, Plan, Stager
from dlbridge.protocol import Span

CHUNK = 4096


def content(nbytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, nbytes, "u1")


def plan(threads=2, chunk=CHUNK):
    return Plan(chunk, threads)


@pytest.fixture
def stager(cuda, request):
    """A stager of its own, with the context current as its callers have it."""
    from dlbridge_cuda.gpu import gpu

    from backends.cuda.tests.cuda_support import current, primary

    with current(primary(0)):
        made = Stager(gpu, 0, getattr(request, "param", plan()))
        yield made
        cuda.synchronize(0, 1)
        made.close()


SIZES = [1, CHUNK - 1, CHUNK, CHUNK + 1, 4 * CHUNK, 4 * CHUNK + 1, 9 * CHUNK + 77]


@pytest.mark.parametrize("stager", [plan(1), plan(2), plan(4)], indirect=True)
@pytest.mark.parametrize("nbytes", SIZES)
def test_the_bytes(stager, cuda, pace, nbytes):
    source = content(nbytes)
    with memory(cuda, nbytes) as data, stream() as own:
        stager.to_device(data, source.ctypes.data, nbytes, own)
        assert read(cuda, data, nbytes, own) == source.tobytes()


def test_the_source_is_free_on_return(stager, cuda):
    source = content(6 * CHUNK)
    with memory(cuda, source.nbytes) as data, stream() as own:
        slow(own)
        stager.to_device(data, source.ctypes.data, 3 * CHUNK, own)
        before = bytes(source[: 3 * CHUNK])
        source[:] = 0
        assert read(cuda, data, 3 * CHUNK, own) == before


def test_it_keeps_to_the_order_of_the_stream(stager, cuda):
    """After earlier work, before later work."""
    old, new = content(8 * CHUNK, 1), content(8 * CHUNK, 2)
    with memory(cuda, old.nbytes) as data, memory(cuda, old.nbytes) as copy, stream() as own:
        slow(own)
        cuda.fill(Span(0, data, 0, old.nbytes), 7, own)
        stager.to_device(data, new.ctypes.data, new.nbytes, own)
        cuda.copy(Span(0, copy, 0, new.nbytes), Span(0, data, 0, new.nbytes), own)
        assert read(cuda, copy, new.nbytes, own) == new.tobytes()


def test_chunks_wait_for_the_dma_that_reads_them(stager, cuda):
    """The ring is filled again only when its chunk has left."""
    source = content(12 * CHUNK)
    with memory(cuda, source.nbytes) as data, stream() as own:
        slow(own)  # nothing leaves before this ends
        stager.to_device(data, source.ctypes.data, source.nbytes, own)
        assert read(cuda, data, source.nbytes, own) == source.tobytes()


def test_the_next_copy_waits_for_the_dma_of_the_last(stager, cuda):
    """Another stream's copy takes the same ring while the first one's chunks still leave."""
    first, second = content(3 * CHUNK, 1), content(3 * CHUNK, 2)
    with (
        stream() as one,
        stream() as two,
        memory(cuda, first.nbytes) as data,
        memory(cuda, second.nbytes) as other,
    ):
        slow(one)
        stager.to_device(data, first.ctypes.data, first.nbytes, one)
        stager.to_device(other, second.ctypes.data, second.nbytes, two)
        assert read(cuda, data, first.nbytes, one) == first.tobytes()
        assert read(cuda, other, second.nbytes, two) == second.tobytes()


@pytest.fixture
def slow_helpers(monkeypatch):
    """Helpers whose memcpy takes 20 ms, so that whoever does not wait for them is too early.

    The test may set other times, in a list: the last one stays.
    """
    from dlbridge.kit import staging

    quick, seconds = staging._memmove, [0.02]

    def late(target, source, nbytes):
        time.sleep(seconds.pop(0) if len(seconds) > 1 else seconds[0])
        quick(target, source, nbytes)

    monkeypatch.setattr(staging, "_memmove", late)
    return seconds


def test_dmas_wait_for_the_helpers(stager, cuda, slow_helpers):
    source = content(9 * CHUNK)
    with memory(cuda, b"-" * source.nbytes) as data, stream() as own:
        stager.to_device(data, source.ctypes.data, source.nbytes, own)
        assert read(cuda, data, source.nbytes, own) == source.tobytes()


@pytest.mark.parametrize("function", ["cuMemcpyHtoDAsync", "cuEventRecord", "cuEventSynchronize"])
@pytest.mark.parametrize("skip", [0, 1, 3])
def test_a_failure_on_the_way_in(fake, stager, cuda, slow_helpers, function, skip):
    """It is said, nothing is leaked, no helper works on, and the next copy is right."""
    source = content(6 * CHUNK)
    with memory(cuda, source.nbytes) as data, stream() as own:
        stager.to_device(data, source.ctypes.data, CHUNK, own)  # the ring is there
        cuda.synchronize(0, own)
        live = fake.live()
        fake.fail(function, 999, skip)
        with pytest.raises(DeviceError, match=function):
            stager.to_device(data, source.ctypes.data, source.nbytes, own)
        fake.fail(function, 0)
        source[:] = content(6 * CHUNK, 5)
        stager.to_device(data, source.ctypes.data, source.nbytes, own)
        assert read(cuda, data, source.nbytes, own) == source.tobytes()
        assert fake.live() == live


def test_no_helper_works_on_after_a_failure(fake, stager, cuda, slow_helpers):
    """Else it would write what was to be copied then over what the next user of the ring copies."""
    first, second = content(4 * CHUNK, 1), content(4 * CHUNK, 2)
    with memory(cuda, first.nbytes) as data, stream() as own:
        slow_helpers[:] = [0, 0.1, 0]  # the second one works while the first one's DMA fails
        fake.fail("cuMemcpyHtoDAsync", 999)
        with pytest.raises(DeviceError, match="cuMemcpyHtoDAsync"):
            stager.to_device(data, first.ctypes.data, first.nbytes, own)
        fake.fail("cuMemcpyHtoDAsync", 0)
        slow(own, 0.2)  # the second copy's chunks are full, and have not left
        stager.to_device(data, second.ctypes.data, second.nbytes, own)
        assert read(cuda, data, second.nbytes, own) == second.tobytes()


def test_a_dma_that_no_event_tells_of(fake, stager, cuda):
    """Its chunk is not filled again before it has left."""
    first, second = content(CHUNK, 1), content(8 * CHUNK, 2)
    with (
        stream() as one,
        stream() as two,
        memory(cuda, CHUNK) as data,
        memory(cuda, second.nbytes) as other,
    ):
        stager.to_device(other, second.ctypes.data, CHUNK, two)
        slow(one)
        fake.fail("cuEventRecord", 999)
        with pytest.raises(DeviceError, match="cuEventRecord"):
            stager.to_device(data, first.ctypes.data, CHUNK, one)
        fake.fail("cuEventRecord", 0)
        stager.to_device(other, second.ctypes.data, second.nbytes, two)
        assert read(cuda, data, CHUNK, one) == first.tobytes()
        assert read(cuda, other, second.nbytes, two) == second.tobytes()


@pytest.mark.parametrize("stager", [plan(2, 8192)], indirect=True)
@pytest.mark.parametrize("function", ["cuMemHostAlloc", "cuEventCreate"])
def test_a_ring_that_cannot_be_made(fake, stager, cuda, function):
    live = fake.live()
    fake.fail(function, 2, 2 if function == "cuEventCreate" else 0)
    with pytest.raises(DeviceMemoryError, match=function):
        stager.to_device(1, 1, 1, 1)
    fake.fail(function, 0)
    assert fake.live() == live


def test_rings_are_used_again(fake, stager, cuda):
    source = content(6 * CHUNK)
    with memory(cuda, source.nbytes) as data:
        stager.to_device(data, source.ctypes.data, source.nbytes, 1)
        rings = fake.calls("cuMemHostAlloc")
        for _ in range(20):
            stager.to_device(data, source.ctypes.data, source.nbytes, 1)
        assert fake.calls("cuMemHostAlloc") == rings


def test_one_copy_does_not_wait_for_the_ring_of_another(stager, cuda):
    """The first stands in its stream behind work that ends only after the second."""
    from backends.cuda.tests.cuda_support import current, primary

    source = content(20 * CHUNK)
    with (
        stream() as one,
        stream() as two,
        memory(cuda, source.nbytes) as data,
        memory(cuda, source.nbytes) as other,
        gate(one) as closed,
    ):

        def first():
            with current(primary(0)):
                stager.to_device(data, source.ctypes.data, source.nbytes, one)

        thread = threading.Thread(target=first)
        thread.start()
        stager.to_device(other, source.ctypes.data, source.nbytes, two)
        assert read(cuda, other, source.nbytes, two) == source.tobytes()
        assert thread.is_alive()  # more chunks than the ring has, and none has left
        closed.open()
        thread.join()
        assert read(cuda, data, source.nbytes, one) == source.tobytes()


class Struck(Exception):
    """What a signal handler raises."""


def test_no_helper_works_on_after_a_signal(stager, cuda, monkeypatch):
    """The exception arrives when nobody reads the user's memory any more."""
    from dlbridge.kit import staging

    copy, main = staging._memmove, threading.current_thread()
    struck, arrived, later = [], threading.Event(), []
    array, other = content(20 * CHUNK), content(20 * CHUNK)
    start, end = array.ctypes.data, array.ctypes.data + array.nbytes

    def handler(*_):
        raise Struck

    def late(target, source, nbytes):
        if threading.current_thread() is main:
            time.sleep(0.001)  # so that a helper gets something to do
        elif not struck:
            struck.append(True)
            time.sleep(0.05)  # until the main thread waits
            os.kill(os.getpid(), signal.SIGUSR1)
            arrived.wait(0.1)  # no verdict: an exception that comes too early may be later, unseen
        copy(target, source, nbytes)
        if arrived.is_set() and (start <= target < end or start <= source < end):
            later.append(target)

    monkeypatch.setattr(staging, "_memmove", late)
    with memory(cuda, array.tobytes()) as data, stream() as own:
        before = signal.signal(signal.SIGUSR1, handler)
        try:
            while True:
                stager.to_device(data, array.ctypes.data, array.nbytes, own)
        except Struck:
            arrived.set()
        finally:
            signal.signal(signal.SIGUSR1, before)
        stager.to_device(data, other.ctypes.data, other.nbytes, own)
        assert not later


def test_a_ring_whose_dma_was_not_waited_for_is_not_used_again(fake, stager, cuda, monkeypatch):
    """A wait for the device would end captures of graphs."""
    from dlbridge_cuda.gpu import gpu

    def interrupted(_):
        raise Struck

    first, second = content(CHUNK, 1), content(8 * CHUNK, 2)
    with (
        stream() as one,
        stream() as two,
        memory(cuda, CHUNK) as data,
        memory(cuda, second.nbytes) as other,
    ):
        slow(one)
        fake.fail("cuEventRecord", 999)
        with monkeypatch.context() as patch:
            patch.setattr(type(gpu), "wait_for_stream", staticmethod(interrupted))
            with pytest.raises(Struck):
                stager.to_device(data, first.ctypes.data, CHUNK, one)
        fake.fail("cuEventRecord", 0)
        stager.to_device(other, second.ctypes.data, second.nbytes, two)
        assert read(cuda, data, CHUNK, one) == first.tobytes()
        assert read(cuda, other, second.nbytes, two) == second.tobytes()


# Which way a copy goes ------------------------------------------------------------


LARGE = DIRECT + 1


@pytest.fixture
def ways(monkeypatch):
    """The bytes of each copy that was staged."""
    from dlbridge_cuda.backends import host_copies

    seen = []

    class Noting:
        def to_device(self, target, source, nbytes, stream):
            seen.append(nbytes)

    monkeypatch.setattr(host_copies, "stager", lambda device_id: Noting())
    return seen


def both_ways(backend, data, host):
    backend.copy_from_host(Span(0, data, 0, len(host)), memoryview(host), 1)
    backend.copy_to_host(Span(0, data, 0, len(host)), memoryview(host), 1)
    backend.synchronize(0, 1)


@pytest.mark.parametrize("name", ["cuda", "cuda_managed"])
def test_large_pageable_copies_are_staged(name, cuda, ways):
    backend = dlbridge.backend(name)
    with memory(backend, LARGE) as data:
        both_ways(backend, data, bytearray(DIRECT))
        assert ways == []  # the driver copies these faster than a ring could
        both_ways(backend, data, bytearray(LARGE))
        assert ways == [LARGE]  # once: none to the host


def test_managed_memory_on_a_stream_of_another_gpu(cuda_managed, two_devices, monkeypatch):
    """Events are recorded on streams of their own context alone: the ring is the stream's."""
    monkeypatch.setattr(staging, "DIRECT", CHUNK)
    source = content(40 * CHUNK).tobytes()
    with stream(1) as other, memory(cuda_managed, source, other) as data:
        assert read(cuda_managed, data, len(source), other) == source


def test_a_stream_of_somebodys_own_context(cuda, monkeypatch):
    """It may be gone tomorrow: no ring is made for it, and the driver copies."""
    from backends.cuda.tests.cuda_support import call

    monkeypatch.setattr(staging, "DIRECT", CHUNK)
    source = content(40 * CHUNK).tobytes()
    context = own_context()
    try:
        with stream(context=context) as own, memory(cuda, source, own) as data:
            assert read(cuda, data, len(source), own) == source
    finally:
        call("cuCtxDestroy", context)


def test_pinned_memory_is_not_staged(cuda, cuda_host, ways):
    with memory(cuda, LARGE) as data, memory(cuda_host, LARGE) as pinned:
        host = (ctypes.c_char * LARGE).from_address(pinned)
        both_ways(cuda, data, memoryview(host).cast("B"))
    assert ways == []


def test_registered_memory_is_not_staged(cuda, cuda_host, ways):
    import mmap

    pages = np.frombuffer(mmap.mmap(-1, LARGE), "u1")
    locked = cuda_host.import_host(0, pages.ctypes.data, pages.nbytes, False, 1)
    with memory(cuda, LARGE) as data:
        both_ways(cuda, data, pages)
    del locked
    assert ways == []


def test_nothing_is_staged_where_the_gpu_reads_the_hosts_pages(fake, cuda, ways):
    fake.attribute("PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES", 1)
    with memory(cuda, LARGE) as data:
        both_ways(cuda, data, bytearray(LARGE))
    assert ways == []


@pytest.mark.parametrize("code", [2, 800, 801])
def test_without_pinned_memory_the_driver_copies(fake, cuda, monkeypatch, code):
    from dlbridge_cuda.backends import host_copies
    from dlbridge_cuda.gpu import gpu

    monkeypatch.setattr(host_copies, "stager", lambda device_id: Stager(gpu, device_id))
    source, live = content(LARGE), fake.live()
    fake.fail("cuMemHostAlloc", code)
    with memory(cuda, source.tobytes()) as data:
        assert read(cuda, data, source.nbytes) == source.tobytes()
    assert fake.live() == live


def test_large_tensors(cuda, pace):
    """40 MiB there, through the ring as it is for users, and back."""
    assert PLAN.chunk * PLAN.slots < 40 << 20
    array = np.arange(10 << 20, dtype="i4")
    tensor = dlbridge.to_device(array, "cuda:0")
    assert np.array_equal(np.asarray(dlbridge.to_device(tensor, "cpu")), array)


@pytest.mark.parametrize("pace", ["strict"], indirect=True)
def test_an_interrupted_copy_to_the_host_is_waited_for(cuda, pace, monkeypatch):
    """Nothing is written into the user's memory after the exception, though the driver goes on."""
    from dlbridge_cuda.gpu import gpu

    wait, struck = type(gpu).wait_for_stream, []

    def interrupted(self, on):
        if not struck:
            struck.append(on)
            raise KeyboardInterrupt
        wait(self, on)

    source, into = content(LARGE), np.zeros(LARGE, "u1")
    tensor = dlbridge.to_device(source, "cuda:0")
    slow(1)
    monkeypatch.setattr(type(gpu), "wait_for_stream", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dlbridge.copy_(into, tensor)
    assert struck == [1]
    assert np.array_equal(into, source)


# To the host ---------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 1, 4095])
def test_large_memory_of_the_host_has_its_pages_before(cuda, monkeypatch, offset):
    """Those of the target alone: whole ones, made by several threads; up to 16 MiB none."""
    from dlbridge.kit import staging

    made = []
    monkeypatch.setattr(staging, "_madvise", lambda *what: made.append(what) or -1)
    values = content(DIRECT + 3 * mmap.PAGESIZE)
    there = dlbridge.to_device(values, "cuda:0")
    raw = np.zeros(values.nbytes + 2 * mmap.PAGESIZE, "u1")
    first = -raw.ctypes.data % mmap.PAGESIZE + offset
    into = raw[first : first + values.nbytes]
    dlbridge.copy_(into, there)
    assert np.array_equal(into, values)
    assert len(made) == PLAN.threads
    begin, end = into.ctypes.data, into.ctypes.data + into.nbytes
    for start, nbytes, _ in made:
        assert start % mmap.PAGESIZE == nbytes % mmap.PAGESIZE == 0
        assert begin <= start < start + nbytes <= end
    assert sum(nbytes for _, nbytes, _ in made) > 0.99 * values.nbytes
    made.clear()
    dlbridge.copy_(into[:DIRECT], there[:DIRECT])
    assert made == []
