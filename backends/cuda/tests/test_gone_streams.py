"""Streams that nobody is known to keep: the driver is not asked about one that may be gone.

As NVIDIA's driver, the simulated one ends the process at a call with the handle of a destroyed
stream. Streams of these tests are the driver's own, without an object of a library that keeps them.
"""

import gc
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

import dlbridge
from backends.cuda.tests.cuda_support import at, call, gate, memory, read
from dlbridge.kit import streams
from dlbridge.protocol import Span
from tests.drivers.suite.rig import capture, default, drop, hold

N = 1 << 16
NEW = b"n" * N
BLOCKING, NON_BLOCKING = 0, 1


@contextmanager
def raw(flags=NON_BLOCKING):
    """A stream of the driver; it may be destroyed before the end."""
    with at(0):
        stream = int(call("cuStreamCreate", flags))
    alive = [stream]
    yield alive
    if alive:
        with at(0):
            call("cuStreamSynchronize", stream)
        call("cuStreamDestroy", stream)


def destroy(alive):
    call("cuStreamDestroy", alive.pop())


@pytest.fixture(params=[12040, 13000], ids=["CUDA 12.4", "CUDA 13"])
def driver_version(request, fake):
    """Before CUDA 12.5 no event is behind all streams, and the host waits for the work."""
    if request.param < 12050:
        fake.fail("cuCtxRecordEvent", 801)  # as of a function that the library lacks


@pytest.mark.parametrize("flags", [BLOCKING, NON_BLOCKING])
def test_the_consumers_stream_is_destroyed(fake, cuda, flags, driver_version):
    """Its work goes on, and the memory is kept until that is done."""
    live = fake.live()
    with raw(flags) as theirs, memory(cuda, N) as copy:
        tensor = dlbridge.to_device(np.frombuffer(NEW, "u1"), "cuda:0")
        capsule = tensor.__dlpack__(stream=theirs[0])
        with gate(theirs[0]) as closed:
            cuda.copy(Span(0, copy, 0, N), Span(0, tensor.data_ptr(), 0, N), theirs[0])
            destroy(theirs)
            closed.open_soon()
            del tensor, capsule  # the simulated driver crashes on too early a free
            gc.collect()
            call_in_context("cuCtxSynchronize")
        assert read(cuda, copy, N) == NEW
    look_at_frees(cuda)
    assert fake.live() == live


def look_at_frees(cuda):
    """The first call puts events behind the work, the second finds them done."""
    for _ in range(2):
        drop(hold(cuda.allocate(0, 64, 256, default())), default())
        cuda.synchronize(0, default())
        call_in_context("cuCtxSynchronize")


def call_in_context(name):
    with at(0):
        return call(name)


def test_our_stream_is_destroyed_while_the_free_waits(fake, cuda):
    live = fake.live()
    with raw() as ours, raw() as theirs:
        data = hold(cuda.allocate(0, N, 256, ours[0]))
        cuda.wait(0, theirs[0], ours[0])
        with gate(theirs[0]) as closed:
            drop(data, ours[0])
            destroy(ours)
            drop(hold(cuda.allocate(0, 64, 256, default())), default())  # looks at the frees
            closed.open_soon()
            call_in_context("cuCtxSynchronize")
    look_at_frees(cuda)
    assert fake.live() == live


def test_a_capture_that_was_seen_goes_on(fake, cuda):
    """An event behind all streams would end it; the memory is kept."""
    live = fake.live()
    with raw() as theirs, raw() as captured:
        data = hold(cuda.allocate(0, 64, 256, default()))
        cuda.wait(0, theirs[0], default())
        cuda.synchronize(0, default())
        with capture(captured[0]):
            cuda.wait(0, captured[0], default())
            drop(data, default())
            assert fake.live() == live + 1
        cuda.wait(0, captured[0], default())  # it runs again
        look_at_frees(cuda)
        assert fake.live() == live


def test_our_stream_captures_when_the_memory_is_freed(fake, cuda):
    live = fake.live()
    with raw() as ours:
        data = hold(cuda.allocate(0, 64, 256, ours[0]))
        cuda.synchronize(0, ours[0])
        with capture(ours[0]):
            drop(data, ours[0])
            assert fake.live() == live + 1
        cuda.wait(0, ours[0], default())
        look_at_frees(cuda)
        assert fake.live() == live


def test_torchs_streams_stay_and_external_ones_need_not():
    """By torch's own sign: an ExternalStream has its handle as stream_id."""
    assert streams.torch_stream(SimpleNamespace(cuda_stream=0x7001, stream_id=35)) == 0x7001
    assert streams.owner(0x7001, 0) is True
    external = SimpleNamespace(cuda_stream=0x7002, stream_id=0x7002)
    assert streams.torch_stream(external) == 0x7002
    assert streams.owner(0x7002, 0) is None
    streams._endless.discard(0x7001)


class Stream:
    ptr = 0x7003


def test_cupys_current_stream_is_kept_by_its_object(monkeypatch):
    current = Stream()
    cuda = SimpleNamespace(Stream=Stream, get_current_stream=lambda: current)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    assert streams.owner(0x7003, 0) is current
    assert streams.owner(0x7004, 0) is None
    current = SimpleNamespace(ptr=0x7003)  # an ExternalStream is somebody else's
    assert streams.owner(0x7003, 0) is None
    cuda.get_current_stream = None  # another library's trouble
    assert streams.owner(0x7003, 0) is None
