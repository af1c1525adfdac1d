"""Managed memory, and what only CUDA's streams and contexts do to allocation."""

import ctypes

import numpy as np
import pytest

import dlbridge
from backends.cuda.tests.cuda_support import memory, python, slow, stream
from dlbridge.errors import ExchangeError
from dlbridge.protocol import Span
from tests.drivers.suite.rig import drop, hold
from tests.support.threads import in_threads


def test_the_per_thread_stream_frees_after_every_threads_work(fake, cuda):
    """Stream 2 of the thread that frees is another than that of the thread that worked."""
    data = hold(cuda.allocate(0, 4096, 256, 2))

    def work(_):
        slow(2)
        cuda.fill(Span(0, data, 0, 4096), 7, 2)

    assert in_threads(work, 1) == []
    drop(data, 2)
    cuda.synchronize(0, 2)


def test_the_host_waits_for_managed_memory(cuda_managed):
    with stream() as busy, memory(cuda_managed, b"o" * 4096) as data:
        slow(busy)
        cuda_managed.fill(Span(0, data, 0, 4096), ord("n"), busy)
        view = cuda_managed.host_view(Span(0, data, 0, 4096), False, busy)
        assert ctypes.string_at(view.data, 4096) == b"n" * 4096


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
    from dlbridge.abi import access

    tensor = dlbridge.to_device(np.frombuffer(b"o" * 4096, "u1"), "cuda_managed", copy=True)
    with stream() as busy:
        with dlbridge.use_stream("cuda_managed", busy):
            slow(busy)
            on = access(tensor._memory)  # as the call of a kernel on it does
            cuda_managed.fill(Span(0, tensor.data_ptr(), 0, 4096), ord("n"), on)
        assert reader(tensor) == b"n" * 4096


def test_managed_memory_that_the_host_must_not_touch(fake, cuda_managed):
    fake.attribute("CONCURRENT_MANAGED_ACCESS", 0)
    with memory(cuda_managed, 64) as data:
        assert "concurrentManagedAccess is 0" in cuda_managed.host_view_refusal(0, data)
        with pytest.raises(ExchangeError, match="concurrentManagedAccess"):
            cuda_managed.host_view(Span(0, data, 0, 64), False, 1)


@pytest.mark.parametrize("supported", [0, 1])
def test_read_only_pages_where_the_driver_locks_them(fake, cuda_host, tmp_path, supported):
    """With the flag that the attribute promises; else they are copied."""
    fake.attribute("READ_ONLY_HOST_REGISTER_SUPPORTED", supported)
    np.full(16384, 7, "u1").tofile(tmp_path / "data")
    pages = np.memmap(tmp_path / "data", "u1", "r")
    tensor = dlbridge.to_device(pages, "cuda_host")
    assert (tensor.data_ptr() == pages.ctypes.data) == bool(supported)
    assert tensor.numpy().tolist() == pages.tolist()


def test_a_rank_that_uses_gpu_1_makes_no_context_on_gpu_0(fake):
    """A context costs hundreds of MB, for each process that uses another GPU."""
    done = python("""
    import ctypes, numpy as np, dlbridge
    from backends.cuda.tests.cuda_support import call
    from backends.cuda.tests.cuda_support import primary
    dlbridge.backend("cuda")
    call("cuCtxSetCurrent", primary(1))
    large = np.arange(1 << 20)
    tensor = dlbridge.to_device(large, "cuda:1")
    dlbridge.backend("cuda").import_data(1, tensor.data_ptr(), "test")
    for name in ("cuda_host", "cuda_managed"):
        other = dlbridge.to_device(tensor, name)
        assert dlbridge.to_device(other, "cpu", copy=True).numpy()[-1] == large[-1]
    print("active on 0:", int(call("cuDevicePrimaryCtxGetState", 0)[1]))
    """)
    assert "active on 0: 0" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("how", ["asarray(x)", "from_cuda_array_interface(x)"])
def test_an_import_by_the_array_interface_makes_no_context_on_gpu_0(fake, how):
    """In a thread without a context, the one of GPU 1 that somebody made answers."""
    done = python(f"""
    import dlbridge
    from backends.cuda.tests.cuda_support import call
    from tests.support.threads import in_threads
    dlbridge.backend("cuda")
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", 1)))
    address = int(call("cuMemAlloc", 4096))

    class Array:
        __cuda_array_interface__ = {{
            "shape": (1024,), "typestr": "<f4", "data": (address, False), "version": 3, "stream": 1
        }}

    def work(number):
        x = Array()
        print("on", dlbridge.{how}.device)

    assert in_threads(work, 1) == []
    print("active on 0:", int(call("cuDevicePrimaryCtxGetState", 0)[1]))
    """)
    assert "on cuda:1\nactive on 0: 0" in done.stdout, done.stdout + done.stderr


def test_a_label_of_gpu_0_makes_no_context_there(fake):
    """Of memory that is on GPU 1, where the only context is; and memory that there is not."""
    done = python("""
    import ctypes, dlbridge
    from backends.cuda.tests.cuda_support import call
    from tests.support.threads import in_threads
    cuda = dlbridge.backend("cuda")
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", 1)))
    address = int(call("cuMemAlloc", 4096))
    host = ctypes.create_string_buffer(64)

    def work(number):
        assert cuda.import_data(0, address, "test") == (1, address)
        try:
            cuda.import_data(0, ctypes.addressof(host), "test")
        except BufferError as exc:
            print("refused:", exc)

    assert in_threads(work, 1) == []
    print("active on 0:", int(call("cuDevicePrimaryCtxGetState", 0)[1]))
    """)
    assert "refused: " in done.stdout, done.stdout + done.stderr
    assert "active on 0: 0" in done.stdout
