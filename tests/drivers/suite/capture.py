"""Graph capture: what is let through, what is refused, and that no capture is ended by us."""

import gc
import mmap

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import DeviceMemoryError, ExchangeError
from dlbridge.protocol import Region, Span
from dlbridge.testing import side

from .rig import (
    BLOCKING,
    NON_BLOCKING,
    Gate,
    capture,
    default,
    drop,
    hold,
    memory,
    read,
    rig,
    slow,
    stream,
)

HOST = memoryview(bytearray(b"x" * 4096))


def on_device(shape=16):
    return dlbridge.zeros(shape, "int32", f"{rig().device}:0")


def test_copies_and_fills_on_the_device_become_nodes(device, mode):
    with stream() as own, memory(device, b"a" * 64) as source, memory(device, b"b" * 64) as target:
        with capture(own, mode) as graph:
            device.copy(Span(0, target, 0, 32), Span(0, source, 0, 32), own)
            device.fill(Span(0, target, 32, 16), ord("f"), own)
        assert read(device, target, 64) == b"b" * 64  # nothing has run
        graph.launch(own)
        assert read(device, target, 64, own) == b"a" * 32 + b"f" * 16 + b"b" * 16


@pytest.mark.parametrize("size", [16, 1 << 20])
def test_copies_with_the_host_are_refused(device, mode, size):
    """A replay would touch host memory that nobody keeps."""
    host = memoryview(bytearray(size))
    with stream() as own, memory(device, size) as data, capture(own, mode):
        for call in (
            lambda: device.copy_from_host(Span(0, data, 0, len(host)), host, own),
            lambda: device.copy_to_host(Span(0, data, 0, len(host)), host, own),
            lambda: device.copy_strided_from_host(
                *side(0, data, 0, [2], [4], 2), host, Region([2], [4], 2), own
            ),
            lambda: device.copy_strided_to_host(
                *side(0, data, 0, [2], [4], 2), host, Region([2], [4], 2), own
            ),
        ):
            with pytest.raises(ExchangeError, match=r"the host now. Do it before the capture"):
                call()


def test_allocating_and_waiting_on_a_captured_stream_are_refused(kind, mode):
    with stream() as own, capture(own, mode):
        with pytest.raises(ExchangeError, match="allocated now"):
            hold(kind.allocate(0, 64, 256, own))
        with pytest.raises(ExchangeError, match="waited for now"):
            kind.synchronize(0, own)


def test_trimming_leaves_a_capture_whole(device, mode):
    """It waits for the default stream, which would end the capture of a blocking stream."""
    drop(hold(device.allocate(0, 4096, 256, default())), default())
    with stream(flags=BLOCKING) as blocking, memory(device, b"a" * 64) as data:
        with capture(blocking, mode) as graph:
            device.fill(Span(0, data, 0, 64), ord("f"), blocking)
            with pytest.raises(ExchangeError, match="capturing"):
                device.trim(0)
        graph.launch(blocking)
        assert read(device, data, 64, blocking) == b"f" * 64
    with stream() as own, capture(own, mode):
        device.trim(0)
    device.trim(0)


def test_other_streams_go_on(fake, kind, mode, played_version):
    """A capture elsewhere in the process disturbs nobody, and nobody disturbs it."""
    if played_version is not None:  # with pools and without
        fake.version(*played_version)
    live = fake.live()
    with stream() as captured, stream() as own, capture(captured, mode):
        data = hold(kind.allocate(0, 4096, 1 << 16, own))
        kind.copy_from_host(Span(0, data, 0, len(HOST)), HOST, own)
        assert read(kind, data, 4096, own) == b"x" * 4096
        drop(data, own)
        kind.synchronize(0, own)
    drop(hold(kind.allocate(0, 64, 256, default())), default())
    kind.synchronize(0, default())
    assert fake.live() == live


def test_peer_access_and_a_free_with_a_consumer_go_on(fake, device, two_devices, mode):
    """Calls that depend on no stream end captures too, where the thread is not relaxed."""
    with stream() as captured, stream() as theirs, capture(captured, mode):
        source = hold(device.allocate(0, 64, 256, default()))
        target = hold(device.allocate(1, 64, 256, default()))
        device.wait(0, theirs, default())
        device.copy(Span(1, target, 0, 64), Span(0, source, 0, 64), default())
        device.synchronize(1, default())
        drop(source, default())
        drop(target, default())


def test_no_room_beside_a_capture(fake, device, mode):
    """Making room waits for streams, not for the device: that ends captures."""
    with stream() as captured, stream() as busy, stream() as theirs:
        fake.memory(10 << 20)
        data = hold(device.allocate(0, 6 << 20, 256, busy))
        device.wait(0, theirs, busy)
        with capture(captured, mode):
            slow(busy)
            drop(data, busy)
            data = hold(device.allocate(0, 6 << 20, 256, default()))
            with pytest.raises(DeviceMemoryError, match="no room"):
                hold(device.allocate(0, 6 << 20, 256, default()))
            drop(data, default())


def test_memory_freed_during_a_capture_is_kept_until_after(fake, kind, mode):
    """A collector may run at any time; its frees do not become part of a graph."""
    live = fake.live()
    with stream() as own:
        data = hold(kind.allocate(0, 64, 256, own))
        kind.synchronize(0, own)
        with capture(own, mode):
            drop(data, own)
            assert fake.live() == live + 1
        other = hold(kind.allocate(0, 64, 256, own))  # the next call makes up for it
        drop(other, own)
        kind.synchronize(0, own)
        assert fake.live() == live


def test_imported_memory_freed_during_a_capture(fake, pinned):
    live = fake.live()
    pages = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), "u1")
    with stream() as own, capture(own):
        hold(pinned.import_host(0, pages.ctypes.data, pages.nbytes, False, default()))
        drop(pages.ctypes.data, default())
    assert fake.live() == live


@pytest.mark.parametrize("flags", [NON_BLOCKING, BLOCKING])
def test_the_default_stream_beside_a_capture(device, flags):
    """Fine beside a stream that it is not ordered with; beside another it would end the capture."""
    host, main = memoryview(bytearray(b"x" * 64)), default()
    with stream(flags=flags) as own, memory(device, 64) as data, capture(own):
        if flags == NON_BLOCKING:
            device.copy_from_host(Span(0, data, 0, len(host)), host, main)
            assert read(device, data, 64) == b"x" * 64
            return
        for call in (
            lambda: device.copy_from_host(Span(0, data, 0, len(host)), host, main),
            lambda: hold(device.allocate(0, 64, 256, main)),
            lambda: device.synchronize(0, main),
            lambda: device.wait(0, own, main),
            lambda: device.fill(Span(0, data, 0, 64), 1, main),
            lambda: device.copy(Span(0, data, 0, 32), Span(0, data, 32, 32), main),
            lambda: device.copy_strided(
                *side(0, data, 0, [2], [8], 4), *side(0, data, 32, [2], [8], 4), main
            ),
        ):
            with pytest.raises(ExchangeError, match="graph"):
                call()


# Order --------------------------------------------------------------------------


def test_two_streams_of_one_capture_are_ordered_in_the_graph(fake, device):
    with stream() as own, stream() as side, memory(device, 64) as data, memory(device, 64) as copy:
        with capture(own) as graph:
            device.fill(Span(0, data, 0, 64), ord("n"), own)
            rig().fork_capture(own, side)
            waits = fake.calls("wait")
            device.wait(0, side, own)
            assert fake.calls("wait") == waits + 1
            device.copy(Span(0, copy, 0, 64), Span(0, data, 0, 64), side)
            device.wait(0, own, side)
        graph.launch(own)
        assert read(device, copy, 64, own) == b"n" * 64


def test_a_graph_cannot_wait_for_work_outside(device, mode):
    """Refused as long as there is such work; nothing to do when there is none."""
    with stream() as own, stream() as busy, capture(own, mode):
        closed = Gate(busy)
        try:
            with pytest.raises(
                ExchangeError, match=r"cannot wait for work outside it. Synchronize before"
            ):
                device.wait(0, own, busy)
        finally:
            closed.open()
        device.synchronize(0, busy)
        device.wait(0, own, busy)


def test_captured_work_is_not_waited_for(fake, device, mode):
    """It does not run now. A wait would pull the other stream into the capture."""
    with stream() as own, stream() as other, memory(device, 64) as data, capture(own, mode):
        device.fill(Span(0, data, 0, 64), 7, own)
        waits = fake.calls("wait")
        device.wait(0, other, own)
        device.wait(0, default(), own)
        assert fake.calls("wait") == waits
        device.synchronize(0, other)


# Through the tensors --------------------------------------------------------------


def test_tensors_in_a_capture(device, mode):
    """Copies between tensors that were there before become nodes; exports go on."""
    name = f"{rig().device}:0"
    source, target = dlbridge.to_device(np.arange(16, dtype="i4"), name), on_device()
    dlbridge.synchronize(name)
    with stream() as own:
        with capture(own, mode) as graph, dlbridge.use_stream(name, own):
            dlbridge.copy_(target, source)
            source.__dlpack__(stream=own)
            source.__dlpack__(stream=-1)
        assert sum(target.tolist()) == 0
        graph.launch(own)
        device.synchronize(0, own)
        assert target.tolist() == list(range(16))


def test_minus_one_asks_for_nothing(fake, device, mode):  # S3
    tensor = on_device()
    asked = ("capturing", "record", "synchronize")
    with stream() as own, capture(own, mode):
        before = [fake.calls(name) for name in asked]
        tensor.__dlpack__(stream=-1)
        assert [fake.calls(name) for name in asked] == before


def test_tensors_that_die_in_a_capture(fake, device, mode):
    live, name = fake.live(), f"{rig().device}:0"
    with stream() as own:
        with dlbridge.use_stream(name, own):
            tensor = on_device()
        dlbridge.synchronize(name)
        with capture(own, mode):
            del tensor
            gc.collect()
        with memory(device, 8):
            pass
        device.synchronize(0, own)
        assert fake.live() == live


def test_making_a_tensor_in_a_capture_says_what_to_do(device, mode):
    name = f"{rig().device}:0"
    with stream() as own, dlbridge.use_stream(name, own), capture(own, mode):
        with pytest.raises(BufferError, match="Do it before the capture begins"):
            dlbridge.empty(16, device=name)
        with pytest.raises(BufferError, match="Do it before the capture begins"):
            dlbridge.to_device(np.ones(4), name)
