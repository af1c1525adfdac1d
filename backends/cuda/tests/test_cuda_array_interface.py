"""The CUDA Array Interface with memory behind it: pointers asked for, streams kept, owners alive."""

import ctypes
import gc
import weakref

import numpy as np
import pytest

import dlbridge
from backends.cuda.tests.cuda_support import memory, read, slow, stream
from dlbridge.errors import ExchangeError
from dlbridge.interop.array_interfaces import (
    SYNC,
    from_cuda_array_interface,
)
from dlbridge.protocol import Span

N = 1 << 14
OLD, NEW = b"o" * N, b"n" * N


class Array:
    """An array of a library that speaks nothing but this interface."""

    def __init__(self, data, nbytes=N, readonly=False, **changes):
        self.interface = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (data, readonly),
            "strides": None,
            "stream": None,
            "version": 3,
            **changes,
        }

    @property
    def __cuda_array_interface__(self):
        return dict(self.interface)


@pytest.mark.parametrize(
    ("name", "device"),
    [("cuda", "cuda:0"), ("cuda_host", "cuda_host:0"), ("cuda_managed", "cuda_managed:0")],
)
def test_the_driver_says_where_it_is(cuda, name, device):  # I24
    with memory(dlbridge.backend(name), OLD) as data:
        tensor = dlbridge.asarray(Array(data))
        assert str(tensor.device) == device
        assert tensor.data_ptr() == data
        assert bytes(tensor.tolist()) == OLD


def test_the_second_device(cuda, two_devices):  # I24
    with memory(cuda, OLD, device_id=1) as data:
        tensor = from_cuda_array_interface(Array(data))
        assert str(tensor.device) == "cuda:1"
        assert bytes(tensor.tolist()) == OLD


def test_host_memory_is_refused(fake, cuda):  # I24
    data = ctypes.addressof(buffer := ctypes.create_string_buffer(N))
    with pytest.raises(ExchangeError, match=r"is not memory that CUDA knows.*pageable"):
        from_cuda_array_interface(Array(data))
    del buffer


@pytest.mark.parametrize("version", [2, 3])
def test_we_wait_for_their_stream(cuda, version):  # I17 I23
    """Their work is slow; ours on the import comes after it, without holding up the host."""
    with stream() as theirs, stream() as ours, memory(cuda, OLD) as data, memory(cuda, N) as copy:
        producer = theirs if version == 3 else 1  # before version 3: the default stream
        slow(producer)
        cuda.fill(Span(0, data, 0, N), NEW[0], producer)
        array = Array(data, version=version, **({"stream": theirs} if version == 3 else {}))
        with dlbridge.use_stream("cuda:0", ours):
            tensor = from_cuda_array_interface(array)
            cuda.copy(Span(0, copy, 0, N), Span(0, tensor.data_ptr(), 0, N), ours)
        assert read(cuda, copy, N, ours) == NEW
        cuda.synchronize(0, producer)


@pytest.mark.parametrize("how", ["sync=False", "environment", "stream None"])
def test_not_waiting(fake, cuda, monkeypatch, how):  # I23 I27
    if how == "environment":
        monkeypatch.setenv(SYNC, "0")
    with stream() as theirs, stream() as ours, memory(cuda, OLD) as data:
        array = Array(data, stream=None if how == "stream None" else theirs)
        with dlbridge.use_stream("cuda:0", ours):
            before = fake.calls("cuStreamWaitEvent")
            from_cuda_array_interface(array, sync=how != "sync=False")
            assert fake.calls("cuStreamWaitEvent") == before


def test_the_owner_lives(cuda):  # I25
    with memory(cuda, OLD) as data:
        for owner_argument in (False, True):
            array = Array(data)
            owner = Array(data) if owner_argument else None
            alive = weakref.ref(owner if owner_argument else array)
            tensor = from_cuda_array_interface(array, owner=owner)
            view = tensor[10:20]
            del array, owner, tensor
            gc.collect()
            assert alive() is not None
            assert bytes(view.tolist()) == OLD[10:20]
            del view
            gc.collect()
            assert alive() is None


# Out ----------------------------------------------------------------------------


def test_the_stream_is_ours(cuda):  # I10
    tensor = dlbridge.zeros(4, device="cuda:0")
    assert tensor.__cuda_array_interface__["stream"] == 1
    with stream() as ours, dlbridge.use_stream("cuda:0", ours):
        assert tensor.__cuda_array_interface__["stream"] == ours
    with dlbridge.use_stream("cuda:0", 2):
        assert tensor.__cuda_array_interface__["stream"] == 2
    assert dlbridge.empty(4, device="cuda_host").__cuda_array_interface__["stream"] is None


def test_the_exported_stream_follows_all_our_work(cuda):  # I11
    """Work on two streams: who waits for the one we name has waited for both."""
    tensor = dlbridge.to_device(np.frombuffer(OLD, "u1"), "cuda:0")
    new = dlbridge.to_device(np.frombuffer(NEW, "u1"), "cuda:0")
    with stream() as first, stream() as second, memory(cuda, N) as copy, stream() as theirs:
        with dlbridge.use_stream("cuda:0", first):
            slow(first)
            dlbridge.copy_(tensor, new)
            with dlbridge.use_stream("cuda:0", second):
                named = tensor.__cuda_array_interface__["stream"]
        assert named == second
        cuda.wait(0, theirs, named)
        cuda.copy(Span(0, copy, 0, N), Span(0, tensor.data_ptr(), 0, N), theirs)
        assert read(cuda, copy, N, theirs) == NEW


# Peers that need no GPU -----------------------------------------------------------


def test_cuda_core_reads_ours_and_we_read_theirs(cuda):
    core = pytest.importorskip("cuda.core")
    from cuda.core.utils import StridedMemoryView

    core.Device(0).set_current()
    tensor = dlbridge.to_device(np.arange(6, dtype="i4").reshape(2, 3), "cuda:0")
    view = StridedMemoryView.from_cuda_array_interface(tensor, stream_ptr=1)
    assert (view.ptr, tuple(view.shape), view.dtype) == (tensor.data_ptr(), (2, 3), np.dtype("i4"))
    assert dlbridge.asarray(view).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_mpi4py_reads_ours(cuda):
    """It takes the address and the length, and does not look inside."""
    MPI = pytest.importorskip("mpi4py.MPI", exc_type=ImportError)  # noqa: N806  # its own name
    tensor = dlbridge.to_device(np.arange(6, dtype="i4"), "cuda:0")

    class Only:
        __cuda_array_interface__ = tensor.__cuda_array_interface__

    buffer = MPI.buffer.frombuffer(Only())
    assert (buffer.address, buffer.nbytes, buffer.readonly) == (tensor.data_ptr(), 24, False)
