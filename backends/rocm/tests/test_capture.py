"""Graph capture: what is let through, what is refused, and that no capture is broken by us."""

import ctypes
import gc
import mmap
from contextlib import contextmanager

import numpy as np
import pytest
from rocm_support import gate, hip, memory, read, stream

import dlbridge
from dlbridge.errors import DeviceMemoryError, ExchangeError

GLOBAL, RELAXED = 0, 2  # hipStreamCaptureMode
NON_BLOCKING, BLOCKING = 1, 0


class Graph:
    """What a capture gave."""

    def launch(self, on):
        hip("hipGraphLaunch", self.executable, on)


@contextmanager
def capture(on, mode=GLOBAL):
    """Capture *on* in the block. It must come out whole: nothing in the block may end it."""
    graph, captured, executable = Graph(), ctypes.c_void_p(), ctypes.c_void_p()
    hip("hipStreamBeginCapture", on, mode)
    try:
        yield graph
    finally:
        hip("hipStreamEndCapture", on, ctypes.byref(captured))
    hip("hipGraphInstantiateWithFlags", ctypes.byref(executable), captured.value, 0)
    graph.executable = executable.value


@pytest.fixture(params=[GLOBAL, RELAXED], ids=["global", "relaxed"])
def mode(request):
    return request.param


def test_copies_and_fills_on_the_device_become_nodes(rocm, mode):
    with stream() as own, memory(rocm, b"a" * 64) as source, memory(rocm, b"b" * 64) as target:
        with capture(own, mode) as graph:
            rocm.copy(0, target, 0, 0, source, 0, 32, own)
            rocm.fill(0, target, 32, 16, ord("f"), own)
        assert read(rocm, target, 64) == b"b" * 64  # nothing has run
        graph.launch(own)
        assert read(rocm, target, 64, own) == b"a" * 32 + b"f" * 16 + b"b" * 16


def test_copies_with_the_host_are_refused(rocm, mode):
    """A replay would touch host memory that nobody keeps."""
    with stream() as own, memory(rocm, 64) as data, capture(own, mode):
        for call in (
            lambda: rocm.copy_from_host(0, data, 0, memoryview(bytes(64)), own),
            lambda: rocm.copy_to_host(0, data, 0, memoryview(bytearray(64)), own),
            lambda: rocm.copy_strided_from_host(
                0, data, 0, [4], memoryview(bytes(16)), [4], [2], 2, own
            ),
            lambda: rocm.copy_strided_to_host(
                0, data, 0, [4], memoryview(bytearray(16)), [4], [2], 2, own
            ),
        ):
            with pytest.raises(ExchangeError, match=r"the host now. Do it before the capture"):
                call()


def test_allocating_and_waiting_on_a_captured_stream_are_refused(kind, mode):
    with stream() as own, capture(own, mode):
        with pytest.raises(ExchangeError, match="allocated now"):
            kind.allocate(0, 64, 256, own)
        with pytest.raises(ExchangeError, match="waited for now"):
            kind.synchronize(0, own)


@pytest.mark.parametrize("version", [(5, 2), (7, 0)])
def test_other_streams_go_on(fake, kind, mode, version):
    """A capture elsewhere in the process disturbs nobody, and nobody disturbs it."""
    fake.version(*version)  # with pools and without
    with stream() as captured, stream() as own, capture(captured, mode):
        data = kind.allocate(0, 4096, 1 << 16, own)
        kind.copy_from_host(0, data, 0, memoryview(b"x" * 4096), own)
        assert read(kind, data, 4096, own) == b"x" * 4096
        kind.free(0, data, own)
        kind.synchronize(0, own)


def test_no_room_beside_a_capture(fake, rocm, mode):
    """What is freed to make room waits for streams, never for the device: that ends captures."""
    with stream() as captured, stream() as own, capture(captured, mode):
        fake.fail("hipMallocAsync", 2)
        with pytest.raises(DeviceMemoryError, match="no room"):
            rocm.allocate(0, 64, 256, own)
        fake.fail("hipMallocAsync", 0)


def test_a_free_beside_a_blocking_capture_is_not_lost(fake, rocm, mode):
    """HIP refuses it there (900); it is made up for later."""
    live = fake.live()
    with stream(flags=BLOCKING) as captured, stream() as own:
        data = rocm.allocate(0, 64, 256, own)
        with capture(captured, mode):
            rocm.free(0, data, own)
        rocm.free(0, rocm.allocate(0, 64, 256, own), own)
        rocm.synchronize(0, own)
        assert fake.live() == live


def test_memory_freed_during_a_capture_is_kept_until_after(fake, kind, mode):
    """A collector may run at any time; its frees are no part of anybody's graph."""
    live = fake.live()
    with stream() as own:
        data = kind.allocate(0, 64, 256, own)
        kind.synchronize(0, own)
        with capture(own, mode):
            kind.free(0, data, own)
            assert fake.live() == live + 1
        other = kind.allocate(0, 64, 256, own)  # the next call makes up for it
        kind.free(0, other, own)
        kind.synchronize(0, own)
        assert fake.live() == live


def test_imported_memory_freed_during_a_capture(fake, rocm_host):
    live = fake.live()
    pages = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), "u1")
    with stream() as own, capture(own):
        rocm_host.import_host(0, pages.ctypes.data, pages.nbytes, False)
        rocm_host.free(0, pages.ctypes.data, 0)
    assert fake.live() == live


@pytest.mark.parametrize("flags", [NON_BLOCKING, BLOCKING])
def test_the_default_stream_beside_a_capture(rocm, flags):
    """Fine beside a stream that it is not ordered with; beside another it would end the capture."""
    with stream(flags=flags) as own, memory(rocm, 64) as data, capture(own):
        if flags == NON_BLOCKING:
            rocm.copy_from_host(0, data, 0, memoryview(b"x" * 64), 0)
            assert read(rocm, data, 64) == b"x" * 64
        else:
            for call in (
                lambda: rocm.copy_from_host(0, data, 0, memoryview(b"x" * 64), 0),
                lambda: rocm.allocate(0, 64, 256, 0),
                lambda: rocm.synchronize(0, 0),
                lambda: rocm.wait(0, own, 0),
                lambda: rocm.fill(0, data, 0, 64, 1, 0),
                lambda: rocm.copy(0, data, 0, 0, data, 32, 32, 0),
                lambda: rocm.copy_strided(0, data, 0, [8], data, 32, [8], [2], 4, 0),
            ):
                with pytest.raises(ExchangeError, match="graph"):
                    call()


def test_two_streams_of_one_capture_are_ordered_in_the_graph(fake, rocm):
    with stream() as own, stream() as side, memory(rocm, 64) as data, memory(rocm, 64) as copy:
        with capture(own) as graph:
            rocm.fill(0, data, 0, 64, ord("n"), own)
            fork = ctypes.c_void_p()  # the caller forks its capture
            hip("hipEventCreateWithFlags", ctypes.byref(fork), 2)
            hip("hipEventRecord", fork.value, own)
            hip("hipStreamWaitEvent", side, fork.value, 0)
            waits = fake.calls("hipStreamWaitEvent")
            rocm.wait(0, side, own)
            assert fake.calls("hipStreamWaitEvent") == waits + 1
            rocm.copy(0, copy, 0, 0, data, 0, 64, side)
            rocm.wait(0, own, side)
        graph.launch(own)
        assert read(rocm, copy, 64, own) == b"n" * 64


def test_a_graph_cannot_wait_for_work_outside(rocm, mode):
    """Refused as long as there is such work; nothing to do when there is none."""
    with stream() as own, stream() as busy, gate(busy) as closed, capture(own, mode):
        with pytest.raises(
            ExchangeError, match=r"cannot wait for work outside it. Synchronize before"
        ):
            rocm.wait(0, own, busy)
        closed.open()
        rocm.synchronize(0, busy)
        rocm.wait(0, own, busy)


def test_captured_work_is_not_waited_for(fake, rocm, mode):
    """It does not run now. A wait would pull the other stream into the capture."""
    with stream() as own, stream() as other, memory(rocm, 64) as data, capture(own, mode):
        rocm.fill(0, data, 0, 64, 7, own)
        waits = fake.calls("hipStreamWaitEvent")
        rocm.wait(0, other, own)
        rocm.wait(0, 0, own)
        assert fake.calls("hipStreamWaitEvent") == waits
        rocm.synchronize(0, other)


def test_tensors_in_a_capture(rocm, mode):
    """Copies between tensors that were there before become nodes; exports go on."""
    source = dlbridge.to_device(np.arange(16, dtype="i4"), "rocm:0")
    target = dlbridge.zeros(16, "int32", "rocm:0")
    dlbridge.synchronize("rocm:0")
    with stream() as own:
        with capture(own, mode) as graph, dlbridge.use_stream("rocm:0", own):
            dlbridge.copy_(target, source)
            source.__dlpack__(stream=own)
            source.__dlpack__(stream=-1)
        assert sum(target.tolist()) == 0
        graph.launch(own)
        rocm.synchronize(0, own)
        assert target.tolist() == list(range(16))


def test_tensors_that_die_in_a_capture(fake, rocm, mode):
    live = fake.live()
    with stream() as own:
        with dlbridge.use_stream("rocm:0", own):
            tensor = dlbridge.zeros(16, device="rocm:0")
        dlbridge.synchronize("rocm:0")
        with capture(own, mode):
            del tensor
            gc.collect()
        with memory(rocm, 8):
            pass
        rocm.synchronize(0, own)
        assert fake.live() == live
