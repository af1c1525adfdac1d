"""Pageable memory through the ring of pinned chunks."""

import ctypes
import os
import signal
import threading
import time

import numpy as np
import pytest
from cuda_support import at, call, gate, memory, own_context, read, slow, stream, write
from suite.rig import rig

import dlbridge
from dlbridge.errors import DeviceError, DeviceMemoryError
from dlbridge.kit.staging import Plan, Stager
from dlbridge.kit.tuning import CANDIDATES, DEFAULT, SAMPLE
from dlbridge.protocol import Span

CHUNK = 4096


def content(nbytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, nbytes, "u1")


def plan(threads=2, chunk=CHUNK):
    return Plan(chunk, threads)


@pytest.fixture
def stager(cuda):
    """A stager of its own, with the context current as its callers have it."""
    from dlbridge_cuda.contexts import current, primary
    from dlbridge_cuda.gpu import gpu

    with current(primary(0)):
        made = Stager(gpu, 0)
        yield made
        cuda.synchronize(0, 1)
        made.close()


SIZES = [1, CHUNK - 1, CHUNK, CHUNK + 1, 4 * CHUNK, 4 * CHUNK + 1, 9 * CHUNK + 77]


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("nbytes", SIZES)
def test_round_trip(stager, cuda, pace, nbytes, threads):
    source, into = content(nbytes), np.zeros(nbytes, "u1")
    with memory(cuda, nbytes) as data, stream() as own:
        stager.to_device(data, source.ctypes.data, nbytes, own, plan(threads))
        stager.to_host(into.ctypes.data, data, nbytes, own, plan(threads))
        assert np.array_equal(into, source)  # nothing needs to be waited for


def test_the_source_is_free_on_return(stager, cuda):
    source = content(6 * CHUNK)
    with memory(cuda, source.nbytes) as data, stream() as own:
        slow(own)
        stager.to_device(data, source.ctypes.data, 3 * CHUNK, own, plan())
        before = bytes(source[: 3 * CHUNK])
        source[:] = 0
        assert read(cuda, data, 3 * CHUNK, own) == before


def test_it_keeps_to_the_order_of_the_stream(stager, cuda):
    """After earlier work, before later work."""
    old, new = content(8 * CHUNK, 1), content(8 * CHUNK, 2)
    with memory(cuda, old.nbytes) as data, memory(cuda, old.nbytes) as copy, stream() as own:
        slow(own)
        cuda.fill(Span(0, data, 0, old.nbytes), 7, own)
        stager.to_device(data, new.ctypes.data, new.nbytes, own, plan())
        cuda.copy(Span(0, copy, 0, new.nbytes), Span(0, data, 0, new.nbytes), own)
        assert read(cuda, copy, new.nbytes, own) == new.tobytes()


def test_chunks_wait_for_the_dma_that_reads_them(stager, cuda):
    """The ring is filled again only when its chunk has left."""
    source = content(12 * CHUNK)
    with memory(cuda, source.nbytes) as data, stream() as own:
        slow(own)  # nothing leaves before this ends
        stager.to_device(data, source.ctypes.data, source.nbytes, own, plan())
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
        stager.to_device(data, first.ctypes.data, first.nbytes, one, plan())
        stager.to_device(other, second.ctypes.data, second.nbytes, two, plan())
        assert read(cuda, data, first.nbytes, one) == first.tobytes()
        assert read(cuda, other, second.nbytes, two) == second.tobytes()


def test_the_way_out_waits_for_the_dma_of_the_way_in(stager, cuda):
    """Chunks that still leave on one stream are not overwritten by what comes in on another."""
    first, into = content(4 * CHUNK, 1), np.zeros(4 * CHUNK, "u1")
    with (
        stream() as one,
        stream() as two,
        memory(cuda, first.nbytes) as data,
        memory(cuda, b"o" * into.nbytes) as other,
    ):
        slow(one)
        stager.to_device(data, first.ctypes.data, first.nbytes, one, plan())
        stager.to_host(into.ctypes.data, other, into.nbytes, two, plan())
        assert bytes(into) == b"o" * into.nbytes
        assert read(cuda, data, first.nbytes, one) == first.tobytes()


def test_to_host_waits_for_earlier_work(stager, cuda):
    into = np.zeros(5 * CHUNK, "u1")
    with memory(cuda, b"o" * into.nbytes) as data, stream() as own:
        slow(own)
        cuda.fill(Span(0, data, 0, into.nbytes), ord("n"), own)
        stager.to_host(into.ctypes.data, data, into.nbytes, own, plan())
        assert bytes(into) == b"n" * into.nbytes


@pytest.fixture
def slow_helpers(monkeypatch):
    """Helpers whose memcpy takes 20 ms, so that whoever does not wait for them is too early.

    The test may set other times, in a list: the last one stays.
    """
    from dlbridge.kit import helpers

    quick, seconds = helpers._memmove, [0.02]

    def late(target, source, nbytes):
        time.sleep(seconds.pop(0) if len(seconds) > 1 else seconds[0])
        quick(target, source, nbytes)

    monkeypatch.setattr(helpers, "_memmove", late)
    return seconds


def test_dmas_wait_for_the_helpers(stager, cuda, slow_helpers):
    source = content(9 * CHUNK)
    with memory(cuda, b"-" * source.nbytes) as data, stream() as own:
        stager.to_device(data, source.ctypes.data, source.nbytes, own, plan())
        assert read(cuda, data, source.nbytes, own) == source.tobytes()


def test_chunks_wait_for_the_helpers_that_empty_them(stager, cuda, slow_helpers):
    source, into = content(9 * CHUNK), np.zeros(9 * CHUNK, "u1")
    with memory(cuda, source.tobytes()) as data, stream() as own:
        stager.to_host(into.ctypes.data, data, into.nbytes, own, plan())
        assert np.array_equal(into, source)


@pytest.mark.parametrize("function", ["cuMemcpyHtoDAsync", "cuEventRecord", "cuEventSynchronize"])
@pytest.mark.parametrize("skip", [0, 1, 3])
def test_a_failure_on_the_way_in(fake, stager, cuda, slow_helpers, function, skip):
    """It is said, nothing is leaked, no helper works on, and the next copy is right."""
    source = content(6 * CHUNK)
    with memory(cuda, source.nbytes) as data, stream() as own:
        stager.to_device(data, source.ctypes.data, CHUNK, own, plan())  # the ring is there
        cuda.synchronize(0, own)
        live = fake.live()
        fake.fail(function, 999, skip)
        with pytest.raises(DeviceError, match=function):
            stager.to_device(data, source.ctypes.data, source.nbytes, own, plan())
        fake.fail(function, 0)
        source[:] = content(6 * CHUNK, 5)
        stager.to_device(data, source.ctypes.data, source.nbytes, own, plan())
        assert read(cuda, data, source.nbytes, own) == source.tobytes()
        assert fake.live() == live


def test_no_helper_works_on_after_a_failure(fake, stager, cuda, slow_helpers):
    """Else it would write what was to be copied then over what the next user of the ring copies."""
    first, second = content(4 * CHUNK, 1), content(4 * CHUNK, 2)
    with memory(cuda, first.nbytes) as data, stream() as own:
        slow_helpers[:] = [0, 0.1, 0]  # the second one works while the first one's DMA fails
        fake.fail("cuMemcpyHtoDAsync", 999)
        with pytest.raises(DeviceError, match="cuMemcpyHtoDAsync"):
            stager.to_device(data, first.ctypes.data, first.nbytes, own, plan())
        fake.fail("cuMemcpyHtoDAsync", 0)
        slow(own, 0.2)  # the second copy's chunks are full, and have not left
        stager.to_device(data, second.ctypes.data, second.nbytes, own, plan())
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
        stager.to_device(other, second.ctypes.data, CHUNK, two, plan())
        slow(one)
        fake.fail("cuEventRecord", 999)
        with pytest.raises(DeviceError, match="cuEventRecord"):
            stager.to_device(data, first.ctypes.data, CHUNK, one, plan())
        fake.fail("cuEventRecord", 0)
        stager.to_device(other, second.ctypes.data, second.nbytes, two, plan())
        assert read(cuda, data, CHUNK, one) == first.tobytes()
        assert read(cuda, other, second.nbytes, two) == second.tobytes()


@pytest.mark.parametrize("function", ["cuMemcpyDtoHAsync", "cuEventRecord", "cuEventSynchronize"])
def test_a_failure_on_the_way_out(fake, stager, cuda, slow_helpers, function):
    """The target may be freed at once: no helper writes to it any more."""
    source, into = content(6 * CHUNK), np.zeros(6 * CHUNK, "u1")
    with memory(cuda, source.tobytes()) as data, stream() as own:
        fake.fail(function, 999, 3)
        with pytest.raises(DeviceError, match=function):
            stager.to_host(into.ctypes.data, data, into.nbytes, own, plan())
        fake.fail(function, 0)
        seen = into.copy()
        threading.Event().wait(0.05)
        assert np.array_equal(into, seen)
        stager.to_host(into.ctypes.data, data, into.nbytes, own, plan())
        assert np.array_equal(into, source)


@pytest.mark.parametrize("function", ["cuMemHostAlloc", "cuEventCreate"])
def test_a_ring_that_cannot_be_made(fake, stager, cuda, function):
    live = fake.live()
    fake.fail(function, 2, 2 if function == "cuEventCreate" else 0)
    with pytest.raises(DeviceMemoryError, match=function):
        stager.to_device(1, 1, 1, 1, plan(2, 8192))
    fake.fail(function, 0)
    assert fake.live() == live


def test_rings_are_used_again(fake, stager, cuda):
    source = content(6 * CHUNK)
    with memory(cuda, source.nbytes) as data:
        stager.to_device(data, source.ctypes.data, source.nbytes, 1, plan())
        rings = fake.calls("cuMemHostAlloc")
        for _ in range(20):
            stager.to_device(data, source.ctypes.data, source.nbytes, 1, plan())
            stager.to_host(source.ctypes.data, data, source.nbytes, 1, plan())
        assert fake.calls("cuMemHostAlloc") == rings


def test_one_copy_does_not_wait_for_the_ring_of_another(stager, cuda):
    """The first stands in its stream behind work that ends only after the second."""
    from dlbridge_cuda.contexts import current, primary

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
                stager.to_device(data, source.ctypes.data, source.nbytes, one, plan())

        thread = threading.Thread(target=first)
        thread.start()
        stager.to_device(other, source.ctypes.data, source.nbytes, two, plan())
        assert read(cuda, other, source.nbytes, two) == source.tobytes()
        assert thread.is_alive()  # more chunks than the ring has, and none has left
        closed.open()
        thread.join()
        assert read(cuda, data, source.nbytes, one) == source.tobytes()


class Struck(Exception):
    """What a signal handler raises."""


@pytest.fixture
def no_helpers(monkeypatch):
    """No thread can be started: at the process's limit, and while the interpreter ends."""
    from dlbridge.kit import helpers

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(helpers, "start_new_thread", refuse)


def test_without_helpers_the_caller_copies_itself(stager, cuda, no_helpers):
    source, into = content(5 * CHUNK), np.zeros(5 * CHUNK, "u1")
    with memory(cuda, source.nbytes) as data:
        stager.to_device(data, source.ctypes.data, source.nbytes, 1, plan())
        stager.to_host(into.ctypes.data, data, into.nbytes, 1, plan())
    assert np.array_equal(into, source)


@pytest.mark.parametrize("to_host", [False, True])
def test_no_helper_works_on_after_a_signal(stager, cuda, monkeypatch, to_host):
    """The exception arrives when nobody reads or writes the user's memory any more."""
    from dlbridge.kit import helpers

    copy, main = helpers._memmove, threading.current_thread()
    struck, ended = [], []

    def handler(*_):
        raise Struck

    def late(target, source, nbytes):
        if threading.current_thread() is main:
            time.sleep(0.001)  # so that a helper gets something to do
        elif not struck:
            struck.append(True)
            time.sleep(0.05)  # until the main thread waits
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.1)
        copy(target, source, nbytes)
        ended.append(time.monotonic())

    monkeypatch.setattr(helpers, "_memmove", late)
    array = content(20 * CHUNK)
    with memory(cuda, array.tobytes()) as data, stream() as own:
        send = stager.to_host if to_host else stager.to_device
        pair = (array.ctypes.data, data) if to_host else (data, array.ctypes.data)
        before = signal.signal(signal.SIGUSR1, handler)
        try:
            for _ in range(100):
                send(*pair, array.nbytes, own, plan())
        except Struck:
            arrived = time.monotonic()
        finally:
            signal.signal(signal.SIGUSR1, before)
        time.sleep(0.2)
        assert max(ended) < arrived


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
                stager.to_device(data, first.ctypes.data, CHUNK, one, plan())
        fake.fail("cuEventRecord", 0)
        stager.to_device(other, second.ctypes.data, second.nbytes, two, plan())
        assert read(cuda, data, CHUNK, one) == first.tobytes()
        assert read(cuda, other, second.nbytes, two) == second.tobytes()


# Which way a copy goes ------------------------------------------------------------


@pytest.fixture
def ways(monkeypatch):
    """Notes which way each copy went."""
    from dlbridge_cuda.backends import host_copies

    seen = []

    class Noting:
        def to_device(self, target, source, nbytes, stream, plan):
            seen.append(("in", nbytes, plan))

        def to_host(self, target, source, nbytes, stream, plan):
            seen.append(("out", nbytes, plan))

    monkeypatch.setattr(host_copies, "stager", lambda device_id: Noting())
    monkeypatch.setattr(host_copies.tuning, "plan", lambda *_: plan())
    return seen


def both_ways(backend, data, host):
    backend.copy_from_host(Span(0, data, 0, len(host)), memoryview(host), 1)
    backend.copy_to_host(Span(0, data, 0, len(host)), memoryview(host), 1)
    backend.synchronize(0, 1)


@pytest.mark.parametrize("name", ["cuda", "cuda_managed"])
def test_large_pageable_copies_are_staged(name, cuda, ways):
    backend = dlbridge.backend(name)
    with memory(backend, 1 << 20) as data:
        both_ways(backend, data, bytearray(64 << 10))
        assert ways == []  # the driver copies these faster than a ring could
        both_ways(backend, data, bytearray((64 << 10) + 1))
        assert [way[:2] for way in ways] == [("in", 65537), ("out", 65537)]


def test_managed_memory_on_a_stream_of_another_gpu(cuda_managed, two_devices, monkeypatch):
    """Events are recorded on streams of their own context alone: the ring is the stream's."""
    from dlbridge_cuda.backends import host_copies

    monkeypatch.setattr(host_copies.tuning, "plan", lambda *_: plan())
    source = content(40 * CHUNK).tobytes()
    with stream(1) as other, memory(cuda_managed, source, other) as data:
        assert read(cuda_managed, data, len(source), other) == source


def test_a_stream_of_somebodys_own_context(cuda, monkeypatch):
    """It may be gone tomorrow: no ring is made for it, and the driver copies."""
    from dlbridge_cuda.backends import host_copies
    from dlbridge_cuda.driver import call

    monkeypatch.setattr(host_copies.tuning, "plan", lambda *_: plan())
    source = content(40 * CHUNK).tobytes()
    context = own_context()
    try:
        with stream(context=context) as own, memory(cuda, source, own) as data:
            assert read(cuda, data, len(source), own) == source
    finally:
        call("cuCtxDestroy", context)


def test_pinned_memory_is_not_staged(cuda, cuda_host, ways):
    with memory(cuda, 1 << 20) as data, memory(cuda_host, 1 << 20) as pinned:
        host = (ctypes.c_char * (1 << 20)).from_address(pinned)
        both_ways(cuda, data, memoryview(host).cast("B"))
    assert ways == []


def test_registered_memory_is_not_staged(cuda, cuda_host, ways):
    import mmap

    pages = np.frombuffer(mmap.mmap(-1, 1 << 20), "u1")
    cuda_host.import_host(0, pages.ctypes.data, pages.nbytes, False)
    with memory(cuda, 1 << 20) as data:
        both_ways(cuda, data, pages)
    cuda_host.free(0, pages.ctypes.data, 1)
    assert ways == []


def test_nothing_is_staged_where_the_gpu_reads_the_hosts_pages(fake, cuda, ways):
    fake.attribute("PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES", 1)
    with memory(cuda, 1 << 20) as data:
        both_ways(cuda, data, bytearray(1 << 20))
    assert ways == []


# Measuring ------------------------------------------------------------------------


@pytest.fixture
def tuning(cuda, monkeypatch):
    """The measurements, forgotten."""
    from dlbridge_cuda.backends import host_copies

    monkeypatch.setattr(host_copies.tuning, "_measured", {})
    return host_copies.tuning


@pytest.mark.parametrize("to_host", [False, True])
def test_the_fastest_is_chosen(tuning, monkeypatch, to_host):
    times = {candidate: 1.0 + index for index, candidate in enumerate(reversed(CANDIDATES))}
    seen = []

    def timed(stager, candidate, *_):
        seen.append(candidate)
        return times[candidate]

    monkeypatch.setattr(tuning, "seconds", timed)
    best = tuning.measure(0, to_host)
    assert best == min(set(seen), key=times.get)
    assert all(candidate.threads <= len(os.sched_getaffinity(0)) for candidate in seen)


@pytest.mark.parametrize("cores", [1, 3, 8, 64])
def test_up_to_8_threads_are_tried(tuning, monkeypatch, cores):
    """One thread is not enough for a GPU's bus; no more than the process has cores."""
    tried = []

    def timed(stager, candidate, *_):
        tried.append(candidate.threads)
        return 1.0

    monkeypatch.setattr(tuning, "seconds", timed)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    tuning.measure(0, False)
    assert max(tried) == {1: 1, 3: 2, 8: 8, 64: 8}[cores]


def test_measuring_leaves_nothing_and_stalls_nobody(fake, tuning, cuda):
    """Frees of plain and pinned memory may wait for all work of the process (seen on an H100).

    So the memory is of the pool, on an own stream, and the pinned memory is kept for copies.
    """
    cuda.synchronize(0, 1)
    tuning.measure(0, True)  # leaves pinned memory
    finish()
    live = fake.live()
    names = ("cuMemAlloc", "cuMemFree", "cuMemFreeHost", "cuMemHostUnregister", "cuCtxSynchronize")
    stalling = [fake.calls(name) for name in names]
    with stream() as busy, gate(busy) as closed:
        for to_host in (False, True):
            assert tuning.measure(0, to_host) in CANDIDATES
        assert not closed.is_open
    calls = [fake.calls(name) for name in names]
    assert calls == [*stalling[:-1], stalling[-1] + 1]  # the gate's own
    finish()
    assert fake.live() == live


def finish():
    """Wait for frees that are queued on streams which were destroyed."""
    with at(0):
        call("cuCtxSynchronize")


def test_a_measurement_lasts_until_the_copy_is_done(fake, tuning, cuda):
    """Not until it is queued."""
    from dlbridge_cuda.contexts import current, primary
    from dlbridge_cuda.gpu import gpu

    source = np.zeros(SAMPLE, "u1")
    with current(primary(0)), memory(cuda, SAMPLE) as data, stream() as own:
        stager = Stager(gpu, 0)
        whole = plan(1, SAMPLE)  # one chunk: nothing in the copy itself waits for a DMA
        with gate(own) as closed:
            closed.open_soon()
            tuning.seconds(stager, whole, False, data, source.ctypes.data, own)
            assert closed.is_open
        stager.close()


def test_only_large_copies_measure(tuning, monkeypatch, two_devices):
    asked = []
    monkeypatch.setattr(tuning, "measure", lambda *args: asked.append(args) or plan())
    assert tuning.plan(0, SAMPLE - 1, False) == DEFAULT
    assert asked == []
    for _ in range(3):
        assert tuning.plan(0, SAMPLE, False) == plan()
    assert tuning.plan(0, 1, False) == plan()
    assert asked == [(0, False)]  # once, for each device and direction
    tuning.plan(1, SAMPLE, False)
    tuning.plan(0, SAMPLE, True)
    assert len(asked) == 3


def test_without_pools_nothing_is_measured(fake, tuning, monkeypatch):
    fake.attribute("MEMORY_POOLS_SUPPORTED", 0)
    monkeypatch.setattr(tuning, "measure", None)
    assert tuning.plan(0, SAMPLE, False) == DEFAULT


def test_others_do_not_wait_for_a_measurement(tuning, monkeypatch):
    inside, go = threading.Event(), threading.Event()

    def measure(*_):
        inside.set()
        go.wait(100)
        return plan()

    monkeypatch.setattr(tuning, "measure", measure)
    thread = threading.Thread(target=tuning.plan, args=(0, SAMPLE, False))
    thread.start()
    inside.wait(100)
    assert tuning.plan(0, SAMPLE, False) == DEFAULT
    go.set()
    thread.join()
    assert tuning.plan(0, SAMPLE, False) == plan()


@pytest.mark.parametrize(
    "function", ["cuMemAllocFromPoolAsync", "cuMemHostAlloc", "cuStreamCreate"]
)
def test_no_room_to_measure_in(fake, tuning, function, monkeypatch):
    monkeypatch.setattr(tuning, "_spare", {})
    live = fake.live()
    fake.fail(function, 2)
    assert tuning.plan(0, SAMPLE, False) == DEFAULT
    fake.fail(function, 0)
    wait_for_device()
    assert fake.live() == live


@pytest.mark.parametrize("function", ["cuEventDestroy", "cuMemFreeAsync"])
def test_a_measurement_that_cannot_be_cleaned_up(fake, tuning, function):
    """One failure leaves one thing; all else is given back."""
    tuning.measure(0, True)  # leaves pinned memory
    wait_for_device()
    live, streams = fake.live(), fake.calls("cuStreamDestroy")
    fake.fail(function, 999)
    assert tuning.plan(0, SAMPLE, False) == DEFAULT
    fake.fail(function, 0)
    wait_for_device()
    assert fake.live() == live + (function == "cuMemFreeAsync")
    assert fake.calls("cuStreamDestroy") == streams + 1


def wait_for_device():
    """The frees that are queued, too."""
    rig().wait_for_device(0)


def test_no_host_memory_to_measure_in(tuning, monkeypatch):
    from dlbridge.kit import tuning as module

    def none(*_):
        raise OSError("no room")

    monkeypatch.setattr(module.mmap, "mmap", none)
    assert tuning.plan(0, SAMPLE, False) == DEFAULT


@pytest.mark.parametrize("code", [2, 800, 801])
def test_without_pinned_memory_the_driver_copies(fake, cuda, monkeypatch, code):
    from dlbridge_cuda.backends import host_copies
    from dlbridge_cuda.gpu import gpu

    monkeypatch.setattr(host_copies, "stager", lambda device_id: Stager(gpu, device_id))
    source, live = content(4 << 20), fake.live()
    fake.fail("cuMemHostAlloc", code)
    with memory(cuda, source.tobytes()) as data:
        assert read(cuda, data, source.nbytes) == source.tobytes()
    assert fake.live() == live


def test_large_tensors_go_through_the_ring(cuda):
    """40 MiB there and back, measured on the way."""
    array = np.arange(10 << 20, dtype="i4")
    tensor = dlbridge.to_device(array, "cuda:0")
    assert np.array_equal(np.asarray(dlbridge.to_device(tensor, "cpu")), array)
    with memory(cuda, 1) as data:
        write(cuda, data, b"x")
