"""Tests that need a GPU: peers on their own streams with slow kernels, and real graphs.

`make test-gpu` runs these with all other tests of this folder on the real
driver. No GPU has run them yet.
"""

import numpy as np
import pytest

import dlbridge
from backends.cuda.tests.cuda_support import memory, read, stream
from backends.cuda.tests.gpu_peers import CYCLES, PEERS, N, Spin, check_gpu
from dlbridge.protocol import Span

pytestmark = pytest.mark.gpu

ROUNDS = 1000


@pytest.fixture
def gpu():
    return check_gpu()


@pytest.fixture(params=PEERS)
def peer(request, gpu):
    return PEERS[request.param]()


@pytest.fixture
def spin(gpu):
    return Spin()


@pytest.mark.parametrize("ours", ["default", "own"])
@pytest.mark.parametrize("theirs", ["default", "own"])
def test_their_slow_arrays_reach_us_whole(gpu, peer, theirs, ours):
    """A thousand arrays, each still being written on their stream when we copy it on ours."""
    with stream() as own:
        on = own if ours == "own" else 1
        wrong = []
        for number in range(ROUNDS):
            array = peer.make(number, theirs)
            with dlbridge.use_stream("cuda:0", on), peer.importing(theirs):
                copy = dlbridge.to_device(dlbridge.asarray(array), "cuda:0", copy=True)
                result = np.asarray(dlbridge.to_device(copy, "cpu"))
            if not (result == number).all():
                wrong.append(number)
        assert wrong == []


@pytest.mark.parametrize("ours", ["default", "own"])
@pytest.mark.parametrize("theirs", ["default", "own"])
def test_our_slow_tensors_reach_them_whole(gpu, peer, spin, theirs, ours):
    """A thousand tensors, each still being written on our stream when they copy it on theirs."""
    with stream() as own:
        on = own if ours == "own" else 1
        wrong = []
        for number in range(ROUNDS):
            with dlbridge.use_stream("cuda:0", on):
                source = dlbridge.to_device(np.full(N, number, "f4"), "cuda:0")
                tensor = dlbridge.zeros(N, "float32", "cuda:0")
                spin(on)
                dlbridge.copy_(tensor, source)
                result = peer.take(tensor, theirs)
            if not (result == number).all():
                wrong.append(number)
        assert wrong == []


def test_without_order_it_would_be_wrong(gpu, spin):
    """The kernel is slow enough: without a wait the reader is early."""
    with stream() as first, stream() as second, memory(gpu, b"o" * N) as data:
        spin(first, 100 * CYCLES)
        gpu.fill(Span(0, data, 0, N), ord("n"), first)
        assert read(gpu, data, N, second) == b"o" * N
        gpu.synchronize(0, first)


def test_memory_of_torch_lives_as_long_as_ours(gpu):
    torch = PEERS["torch"]().torch
    before = torch.cuda.memory_allocated()
    ours = dlbridge.from_dlpack(torch.ones(1 << 20, device="cuda"))
    assert torch.cuda.memory_allocated() > before
    del ours
    assert torch.cuda.memory_allocated() == before


def test_torch_stays_on_its_device(gpu):
    """The current device is theirs to set."""
    torch = PEERS["torch"]().torch
    for device in range(torch.cuda.device_count()):
        torch.cuda.set_device(device)
        dlbridge.to_device(dlbridge.zeros(N, device="cuda:0"), "cpu")
        assert torch.cuda.current_device() == device
    torch.cuda.set_device(0)


# Graphs ---------------------------------------------------------------------------


def test_inside_a_torch_graph(gpu):
    """Our copy becomes a node between theirs; exports inside wait for nothing outside."""
    torch = PEERS["torch"]().torch
    source = torch.zeros(N, device="cuda")
    target = torch.zeros(N, device="cuda")
    ours, into = dlbridge.from_dlpack(source), dlbridge.from_dlpack(target)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        source.add_(1)
        with dlbridge.use_stream("cuda:0", torch.cuda.current_stream()):
            dlbridge.copy_(into, ours)
            seen = torch.from_dlpack(into)
        into.__dlpack__(stream=-1)
        seen.mul_(2)
    for turn in range(1, 11):
        graph.replay()
        torch.cuda.synchronize()
        assert (target == 2 * turn).all()


def test_a_torch_graph_survives_our_refusals(gpu):
    torch = PEERS["torch"]().torch
    counter = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        counter.add_(1)
        with dlbridge.use_stream("cuda:0", torch.cuda.current_stream()):
            for refused in (
                lambda: dlbridge.empty(N, device="cuda:0"),
                lambda: dlbridge.to_device(np.ones(N), "cuda:0"),
                lambda: dlbridge.to_device(dlbridge.from_dlpack(counter), "cpu"),
                lambda: dlbridge.synchronize("cuda:0"),
            ):
                with pytest.raises(BufferError, match="capture"):
                    refused()
        counter.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    assert counter.item() == 2


def test_tensors_die_inside_a_torch_graph(gpu):
    torch = PEERS["torch"]().torch
    tensor, pinned = dlbridge.zeros(N, device="cuda:0"), dlbridge.empty(N, device="cuda_host")
    dlbridge.synchronize("cuda:0")
    counter = torch.zeros(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        counter.add_(1)
        del tensor, pinned
        counter.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    assert counter.item() == 2


# The array interface ---------------------------------------------------------------


def test_torch_reads_the_interface(gpu):
    torch = PEERS["torch"]().torch
    tensor = dlbridge.to_device(np.arange(N, dtype="f4"), "cuda:0")

    class Only:
        __cuda_array_interface__ = tensor.__cuda_array_interface__

    assert torch.as_tensor(Only(), device="cuda").data_ptr() == tensor.data_ptr()


# The driver as the simulated one is ----------------------------------------------


def test_pool_memory_has_no_context(gpu):
    """A null context, and the primary one, are taken for memory within reach."""
    from dlbridge_cuda.gpu import gpu as driver

    with memory(gpu, 64) as data:
        assert driver.locate(data, 0) == ("device", 0, "")


def test_cupys_streams_may_die_before_our_memory(gpu):
    """cupy destroys a stream with its object; the driver is not asked about it afterwards."""
    cupy = PEERS["cupy"]().cupy
    for blocking in (False, True):
        for _ in range(100):
            theirs = cupy.cuda.Stream(non_blocking=not blocking)
            tensor = dlbridge.to_device(np.arange(N, dtype="f4"), "cuda:0")
            with theirs:
                array = cupy.from_dlpack(tensor)
                doubled = array * 2
            del theirs
            del tensor, array
            other = dlbridge.zeros(N, "float32", "cuda:0")
            assert (cupy.asnumpy(doubled) == 2 * np.arange(N, dtype="f4")).all()
            del other


def test_work_on_a_cupy_stream_that_dies_first(gpu):
    cupy = PEERS["cupy"]().cupy
    for _ in range(100):
        theirs = cupy.cuda.Stream(non_blocking=True)
        with dlbridge.use_stream("cuda:0", theirs):
            tensor = dlbridge.to_device(np.arange(N, dtype="f4"), "cuda:0")
        del theirs
        assert dlbridge.to_device(tensor, "cpu").tolist()[:3] == [0, 1, 2]


def test_streams_can_be_asked_without_a_context(gpu):
    """`GPU.context_of` asks for a stream's context."""
    from backends.cuda.tests.cuda_support import call, current, primary

    with stream() as own, current(primary(0)):
        assert int(call("cuStreamGetCtx", own)) == int(primary(0))
