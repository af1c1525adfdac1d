"""Graph capture: what is let through, what is refused, and that no capture is broken by us."""

import gc
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from cuda_support import gate, memory, read, slow, stream

import dlbridge
from dlbridge.errors import DeviceMemoryError, ExchangeError

GLOBAL, RELAXED = 0, 2  # CUstreamCaptureMode
NON_BLOCKING, BLOCKING = 1, 0


class Graph:
    """What a capture gave."""

    nodes = None

    def launch(self, on):
        from dlbridge_cuda.contexts import current, primary
        from dlbridge_cuda.driver import call

        with current(primary(0)):
            call("cuGraphLaunch", self.executable, on)


@contextmanager
def capture(on, mode=GLOBAL):
    """Capture *on* in the block. It must come out whole: nothing in the block may end it."""
    from dlbridge_cuda.contexts import current, primary
    from dlbridge_cuda.driver import call, cu

    graph = Graph()
    with current(primary(0)):
        call("cuStreamBeginCapture", on, cu.CUstreamCaptureMode(mode))
        try:
            yield graph
        finally:
            graph.graph = call("cuStreamEndCapture", on)
    graph.executable = call("cuGraphInstantiate", graph.graph, 0)


@pytest.fixture(params=[GLOBAL, RELAXED], ids=["global", "relaxed"])
def mode(request):
    return request.param


def test_copies_and_fills_on_the_device_become_nodes(cuda, mode):
    with stream() as own, memory(cuda, b"a" * 64) as source, memory(cuda, b"b" * 64) as target:
        with capture(own, mode) as graph:
            cuda.copy(0, target, 0, 0, source, 0, 32, own)
            cuda.fill(0, target, 32, 16, ord("f"), own)
        assert read(cuda, target, 64) == b"b" * 64  # nothing has run
        graph.launch(own)
        assert read(cuda, target, 64, own) == b"a" * 32 + b"f" * 16 + b"b" * 16


@pytest.mark.parametrize("size", [16, 1 << 20])
def test_copies_with_the_host_are_refused(cuda, mode, size):
    """A replay would touch host memory that nobody keeps."""
    with stream() as own, memory(cuda, size) as data, capture(own, mode):
        with pytest.raises(
            ExchangeError, match=r"cannot be copied from the host now. Do it before"
        ):
            cuda.copy_from_host(0, data, 0, memoryview(bytes(size)), own)
        with pytest.raises(ExchangeError, match="copied to the host now"):
            cuda.copy_to_host(0, data, 0, memoryview(bytearray(size)), own)
        with pytest.raises(ExchangeError, match="copied to or from the host now"):
            cuda.copy_strided_from_host(0, data, 0, [4], memoryview(bytes(16)), [4], [2], 2, own)
        with pytest.raises(ExchangeError, match="copied to or from the host now"):
            cuda.copy_strided_to_host(0, data, 0, [4], memoryview(bytearray(16)), [4], [2], 2, own)


def test_allocating_on_a_captured_stream_is_refused(kind, mode):
    with stream() as own, capture(own, mode), pytest.raises(ExchangeError, match="allocated now"):
        kind.allocate(0, 64, 256, own)


def test_waiting_for_a_captured_stream_is_refused(kind, mode):
    with stream() as own, capture(own, mode), pytest.raises(ExchangeError, match="waited for now"):
        kind.synchronize(0, own)


def test_other_streams_go_on(kind, mode):
    """A capture elsewhere in the process disturbs nobody, and nobody disturbs it."""
    with stream() as captured, stream() as own, capture(captured, mode):
        data = kind.allocate(0, 4096, 1 << 16, own)
        kind.copy_from_host(0, data, 0, memoryview(b"x" * 4096), own)
        assert read(kind, data, 4096, own) == b"x" * 4096
        kind.free(0, data, own)
        kind.synchronize(0, own)


def test_staging_goes_on(cuda, mode):
    """Page-locking the ring is no reason to end somebody's capture."""
    from dlbridge_cuda.contexts import current, primary
    from dlbridge_cuda.staging import Plan, Stager

    source = np.arange(9000, dtype="u1")
    stager = Stager(0)
    with (
        stream() as captured,
        stream() as own,
        memory(cuda, source.nbytes) as data,
        capture(captured, mode),
        current(primary(0)),
    ):
        stager.to_device(data, source.ctypes.data, source.nbytes, own, Plan(1024, 2))
        assert read(cuda, data, source.nbytes, own) == source.tobytes()
    with current(primary(0)):
        stager.close()


def test_measuring_goes_on(cuda, mode, monkeypatch):
    """Nor is the first large copy of another thread, which measures with memory of its own."""
    from dlbridge_cuda import tuning

    monkeypatch.setattr(tuning, "_measured", {})
    source, failures = bytes(tuning.SAMPLE), []

    def other(data, own):
        try:
            cuda.copy_from_host(0, data, 0, memoryview(source), own)
        except Exception as exc:
            failures.append(exc)

    with (
        stream() as captured,
        stream() as own,
        memory(cuda, len(source)) as data,
        capture(captured, mode),
    ):
        thread = threading.Thread(target=other, args=(data, own))
        thread.start()
        thread.join()
    assert failures == []
    assert list(tuning._measured) == [(0, "cuMemcpyHtoDAsync")]


def test_host_waits_go_on(fake, cuda, mode):
    """The driver refuses them beside a global capture, except to a thread that is relaxed."""
    from dlbridge_cuda.contexts import current, primary
    from dlbridge_cuda.driver import call

    with stream() as captured, stream() as own, capture(captured, mode):
        for waited in (own, 2):
            cuda.synchronize(0, waited)
    if mode == GLOBAL:  # the double does so
        with (
            stream() as captured,
            stream() as own,
            pytest.raises(ExchangeError, match="INVALIDATED"),
            capture(captured),
            pytest.raises(ExchangeError, match="cuStreamSynchronize"),
            current(primary(0)),
        ):
            call("cuStreamSynchronize", own)


def test_no_room_beside_a_capture(fake, cuda, mode):
    """Making room waits for streams, not for the context: that would end every capture in it."""
    fake.memory(10 << 20)
    with stream() as captured, stream() as busy, capture(captured, mode):
        data = cuda.allocate(0, 6 << 20, 256, busy)
        slow(busy)
        cuda.free(0, data, busy)
        data = cuda.allocate(0, 6 << 20, 256, 1)
        with pytest.raises(DeviceMemoryError, match="no room"):
            cuda.allocate(0, 6 << 20, 256, 1)
        cuda.free(0, data, 1)
    from dlbridge_cuda.contexts import current, primary
    from dlbridge_cuda.driver import call

    with (  # the double does so
        stream() as captured,
        pytest.raises(ExchangeError, match="INVALIDATED"),
        capture(captured, mode),
        pytest.raises(ExchangeError, match="cuCtxSynchronize"),
        current(primary(0)),
    ):
        call("cuCtxSynchronize")


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


def test_imported_memory_freed_during_a_capture(fake, cuda_host):
    import mmap

    live = fake.live()
    pages = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), "u1")
    with stream() as own, capture(own):
        cuda_host.import_host(0, pages.ctypes.data, pages.nbytes, False)
        cuda_host.free(0, pages.ctypes.data, 1)
    assert fake.live() == live


@pytest.mark.parametrize("flags", [NON_BLOCKING, BLOCKING])
def test_the_legacy_stream_beside_a_capture(cuda, flags):
    """Fine beside a stream that it is not ordered with; beside another it would end the capture."""
    with stream(flags=flags) as own, memory(cuda, 64) as data, capture(own):
        if flags == NON_BLOCKING:
            cuda.copy_from_host(0, data, 0, memoryview(b"x" * 64), 1)
            assert read(cuda, data, 64) == b"x" * 64
        else:
            for call in (
                lambda: cuda.copy_from_host(0, data, 0, memoryview(b"x" * 64), 1),
                lambda: cuda.allocate(0, 64, 256, 1),
                lambda: cuda.synchronize(0, 1),
                lambda: cuda.wait(0, own, 1),
                lambda: cuda.fill(0, data, 0, 64, 1, 1),
                lambda: cuda.copy(0, data, 0, 0, data, 32, 32, 1),
                lambda: cuda.copy_strided(0, data, 0, [8], data, 32, [8], [2], 4, 1),
            ):
                with pytest.raises(ExchangeError, match="graph"):
                    call()


# Order --------------------------------------------------------------------------


def test_two_streams_of_one_capture_are_ordered_in_the_graph(fake, cuda):
    from dlbridge_cuda.contexts import current, primary
    from dlbridge_cuda.driver import call

    with stream() as own, stream() as side, memory(cuda, 64) as data, memory(cuda, 64) as copy:
        with capture(own) as graph:
            cuda.fill(0, data, 0, 64, ord("n"), own)
            with current(primary(0)):  # the caller forks its capture
                event = call("cuEventCreate", 2)
                call("cuEventRecord", event, own)
                call("cuStreamWaitEvent", side, event, 0)
            waits = fake.calls("cuStreamWaitEvent")
            cuda.wait(0, side, own)
            assert fake.calls("cuStreamWaitEvent") == waits + 1
            cuda.copy(0, copy, 0, 0, data, 0, 64, side)
            cuda.wait(0, own, side)
        graph.launch(own)
        assert read(cuda, copy, 64, own) == b"n" * 64
        call("cuEventDestroy", event)


def test_a_graph_cannot_wait_for_work_outside(cuda, mode):
    """Refused as long as there is such work; nothing to do when there is none."""
    with stream() as own, stream() as busy, gate(busy) as closed, capture(own, mode):
        with pytest.raises(
            ExchangeError, match=r"cannot wait for work outside it. Synchronize before"
        ):
            cuda.wait(0, own, busy)
        closed.open()
        cuda.synchronize(0, busy)
        cuda.wait(0, own, busy)


def test_captured_work_is_not_waited_for(fake, cuda, mode):
    """It does not run now. A wait would pull the other stream into the capture."""
    with stream() as own, stream() as other, memory(cuda, 64) as data, capture(own, mode):
        cuda.fill(0, data, 0, 64, 7, own)
        waits = fake.calls("cuStreamWaitEvent")
        cuda.wait(0, other, own)
        cuda.wait(0, 1, own)
        assert fake.calls("cuStreamWaitEvent") == waits
        cuda.synchronize(0, other)


# Through the tensors --------------------------------------------------------------


def test_tensors_in_a_capture(cuda, mode):
    """Copies between tensors that were there before become nodes; exports go on."""
    source = dlbridge.to_device(np.arange(16, dtype="i4"), "cuda:0")
    target = dlbridge.zeros(16, "int32", "cuda:0")
    dlbridge.synchronize("cuda:0")
    with stream() as own:
        with capture(own, mode) as graph, dlbridge.use_stream("cuda:0", own):
            dlbridge.copy_(target, source)
            source.__dlpack__(stream=own)
            source.__dlpack__(stream=-1)
        assert sum(target.tolist()) == 0
        graph.launch(own)
        cuda.synchronize(0, own)
        assert target.tolist() == list(range(16))


def test_minus_one_asks_for_nothing(fake, cuda, mode):  # S3
    tensor = dlbridge.zeros(16, device="cuda:0")
    with stream() as own, capture(own, mode):
        before = [
            fake.calls(name)
            for name in ("cuStreamIsCapturing", "cuEventRecord", "cuStreamSynchronize")
        ]
        tensor.__dlpack__(stream=-1)
        after = [
            fake.calls(name)
            for name in ("cuStreamIsCapturing", "cuEventRecord", "cuStreamSynchronize")
        ]
        assert after == before


def test_tensors_that_die_in_a_capture(fake, cuda, mode):
    live = fake.live()
    with stream() as own:
        with dlbridge.use_stream("cuda:0", own):
            tensor = dlbridge.zeros(16, device="cuda:0")
        dlbridge.synchronize("cuda:0")
        with capture(own, mode):
            del tensor
            gc.collect()
        with memory(cuda, 8):
            pass
        cuda.synchronize(0, own)
        assert fake.live() == live


def test_making_a_tensor_in_a_capture_says_what_to_do(cuda, mode):
    with stream() as own, dlbridge.use_stream("cuda:0", own), capture(own, mode):
        with pytest.raises(BufferError, match="Do it before the capture begins"):
            dlbridge.empty(16, device="cuda:0")
        with pytest.raises(BufferError, match="Do it before the capture begins"):
            dlbridge.to_device(np.ones(4), "cuda:0")
