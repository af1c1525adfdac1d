"""Devices without pools, captures that refuse them, and addresses that only HIP gives."""

import mmap

import numpy as np
import pytest

import dlbridge
from backends.rocm.tests.rocm_support import gate, memory, read, stream
from dlbridge.errors import ExchangeError
from dlbridge.protocol import Span
from tests.drivers.suite.rig import capture, drop, hold


def test_arrays_are_refused(fake, rocm):
    """A type of memory that has no place in a tensor is refused by its number."""
    from dlbridge_rocm import gpu

    with memory(rocm, 64) as data:
        kinds, gpu._KINDS_6 = gpu._KINDS_6, {}
        try:
            with pytest.raises(ExchangeError, match="it is type 2 memory"):
                rocm.import_data(0, data, "test")
        finally:
            gpu._KINDS_6 = kinds


def test_a_pool_that_a_capture_refuses(fake, rocm, mode):
    """ROCm gives 900 beside any capture, also in relaxed mode: plain memory then."""
    live, plain = fake.live(), fake.calls("hipMalloc")
    with stream() as captured, stream() as own:
        with capture(captured, mode), memory_beside(rocm, own) as data:
            assert read(rocm, data, 64, own) == b"x" * 64
        assert fake.calls("hipMalloc") == plain + 1
        data = hold(rocm.allocate(0, 64, 256, own))
        assert fake.calls("hipMalloc") == plain + 1  # the pool again
        drop(data, own)
        rocm.synchronize(0, own)
    assert fake.live() == live


def test_a_pool_that_finds_no_room(fake, rocm):
    """Where hipMalloc does (ROCm/legacy-rocm-build#6178): tried once the pool was trimmed."""
    live, trims, plain = fake.live(), fake.calls("trim"), fake.calls("hipMalloc")
    fake.fail("hipMallocFromPoolAsync", 2)
    with stream() as own:
        data = hold(rocm.allocate(0, 64, 256, own))
        assert (fake.calls("trim"), fake.calls("hipMalloc")) == (trims + 1, plain + 1)
        with gate(own) as closed:
            rocm.fill(Span(0, data, 0, 64), ord("x"), own)
            closed.open_soon()
            assert read(rocm, data, 64, own) == b"x" * 64
            pooled = fake.calls("hipFreeAsync")
            drop(data, own)
            assert fake.calls("hipFreeAsync") == pooled
    assert fake.live() == live


class memory_beside:  # noqa: N801  # as `memory`, and without a wait for the device
    def __init__(self, backend, own):
        self.backend, self.own = backend, own

    def __enter__(self):
        self.memory = self.backend.allocate(0, 64, 256, self.own)
        self.backend.fill(Span(0, self.memory.data, 0, 64), ord("x"), self.own)
        return self.memory.data

    def __exit__(self, *_):
        del self.memory


def test_host_memory_that_the_gpu_sees_elsewhere_is_copied(fake, rocm_host):
    """Its address there is another one, and a tensor has one address."""
    pages = np.frombuffer(mmap.mmap(-1, 4 * mmap.PAGESIZE), "u1")
    live = fake.live()
    fake.shift(1 << 20)
    with pytest.raises(ExchangeError, match="at another address"):
        rocm_host.import_host(0, pages.ctypes.data, pages.nbytes, False, 0)
    assert fake.live() == live
    tensor = dlbridge.to_device(pages, "rocm_host")
    assert tensor.data_ptr() != pages.ctypes.data
    assert tensor.numpy().tolist() == pages.tolist()
