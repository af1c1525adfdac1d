"""Streams: what may be passed, and who waits for whom."""

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import DeviceError
from dlbridge.kit.order import EventPool
from dlbridge.protocol import Span

from .rig import (
    backend,
    default,
    drop,
    gate,
    hold,
    memory,
    read,
    rig,
    settle,
    slow,
    stream,
    write,
)

N = 1 << 16
NEW, OLD = b"n" * N, b"o" * N
# Values of stream= ---------------------------------------------------------------


@pytest.mark.parametrize("value", [-1, 3, 0x7F00DEADBEE0, np.int64(5), 2**64 - 1])
def test_integers_are_themselves(kind, value):  # S3 S6
    result = kind.normalize_stream(0, value)
    assert result == value
    assert type(result) is int


@pytest.mark.parametrize(
    ("value", "why"),
    [(-2, "only -1"), (-(1 << 63), "only -1"), (1 << 64, "64 bits"), (1 << 80, "64 bits")],
)
def test_integers_that_are_not_streams(kind, value, why):  # S8
    with pytest.raises(ValueError, match=why):
        kind.normalize_stream(0, value)


def test_streams_of_libraries(device, librarys_stream):
    stream_object, handle = librarys_stream
    assert device.normalize_stream(0, stream_object) == handle


def test_what_is_not_a_stream_of_theirs(device, no_stream):
    with pytest.raises(TypeError, match=f"is no {rig().api} stream; pass None"):
        device.normalize_stream(0, no_stream)


# Order ------------------------------------------------------------------------


@pytest.mark.parametrize("on_default", [False, True])
def test_wait_orders_a_slow_stream_before_a_fast_one(device, on_default):  # S17
    """The host is not held up, and the reader sees what the slow stream wrote."""
    with (
        stream() as first,
        stream() as second,
        memory(device, OLD) as source,
        memory(device, N) as copy,
    ):
        producer = default() if on_default else first
        with gate(producer) as closed:
            device.fill(Span(0, source, 0, N), NEW[0], producer)
            device.wait(0, second, producer)
            device.copy(Span(0, copy, 0, N), Span(0, source, 0, N), second)
            assert not closed.is_open  # nobody has waited on the host so far
            closed.open_soon()
            assert read(device, copy, N, second) == NEW


@pytest.mark.parametrize("flags", [0, 1])
def test_without_wait_it_would_be_wrong(device, flags):
    """The test above can fail: two such streams are not ordered by themselves."""
    with (
        stream(flags=flags) as first,
        stream(flags=flags) as second,
        memory(device, OLD) as source,
        memory(device, N) as copy,
        gate(first),
    ):
        device.fill(Span(0, source, 0, N), NEW[0], first)
        device.copy(Span(0, copy, 0, N), Span(0, source, 0, N), second)
        assert read(device, copy, N, second) == OLD


def test_wait_takes_the_work_so_far_only(device):
    """Later work on the producer does not hold the consumer up; the event is used again."""
    with stream() as first, stream() as second:
        device.wait(0, second, first)
        with gate(first) as closed:
            device.synchronize(0, second)
            assert not closed.is_open


def test_events_are_used_again(fake, device):
    with stream() as first, stream() as second:
        device.wait(0, second, first)
        before = fake.calls("event")
        for _ in range(100):
            device.wait(0, second, first)
            device.wait(0, first, second)
        assert fake.calls("event") == before


def test_synchronize_waits_and_lets_other_threads_run(device):
    """The GIL is not held meanwhile, else nobody could open the gate."""
    with stream() as own, gate(own) as closed:
        closed.open_soon()
        device.synchronize(0, own)
        assert closed.is_open


@pytest.mark.parametrize("function", ["event", "record", "wait"])
def test_a_wait_that_fails_is_reported(fake, device, function):
    """Its event is used again, and the next wait works."""
    rig().events().clear()
    with stream() as first, stream() as second:
        for _ in range(5):
            fake.fail(function, 999)
            with pytest.raises(DeviceError, match=rig().names[function]):
                device.wait(0, second, first)
            fake.fail(function, 0)
        kept = rig().events().count(rig().gpu().context(0))
        assert kept == (function != "event")
        made = fake.calls("event")
        device.wait(0, second, first)
        assert fake.calls("event") - made == (not kept)
        device.synchronize(0, second)


# Through the tensors ------------------------------------------------------------


# Consumers' streams: DLPack's deleter carries none (dmlc/dlpack#176) --------------


def consumer_at_work(on, data, copy):
    """A consumer's slow kernel on its own stream, which reads *data* in the end."""
    slow(on, 0.1)
    backend().copy(Span(0, copy, 0, N), Span(0, data, 0, N), on)


@pytest.mark.parametrize("code", [400, 709])
@pytest.mark.parametrize("destroyed", [False, True], ids=["alive", "destroyed"])
def test_a_tensor_that_dies_while_a_consumer_reads_it(fake, device, destroyed, code):
    """The memory is not given to anybody else before the consumer's stream is done with it."""
    fake.destroyed(code)
    live = fake.live()
    with stream() as ours, memory(device, N) as copy:
        theirs = rig().create_stream(0, 1)
        with dlbridge.use_stream(f"{rig().device}:0", ours):
            tensor = dlbridge.to_device(np.frombuffer(NEW, "u1"), f"{rig().device}:0")
            capsule = tensor.__dlpack__(stream=theirs)
            consumer_at_work(theirs, tensor.data_ptr(), copy)
            if destroyed:
                rig().destroy_stream(theirs, 0)
            del tensor, capsule  # the simulated driver crashes on too early a free
            device.synchronize(0, ours)
            rig().wait_for_device(0)
        assert read(device, copy, N) == NEW
        if not destroyed:
            rig().destroy_stream(theirs, 0)
    for _ in range(2):  # the first queues the free, the second waits for it
        settle()
    assert fake.live() == live


def test_a_consumers_stream_is_kept_until_the_free(fake, device):
    """So no new stream gets its handle, for which the free would wait instead."""
    with memory(device, N) as copy:
        data = hold(device.allocate(0, N, 256, default()))
        write(device, data, NEW)
        theirs = rig().create_stream(0, 1)
        device.wait(0, theirs, default())
        consumer_at_work(theirs, data, copy)
        rig().destroy_stream(theirs, 0)
        with stream() as other:
            assert other != theirs
            drop(data, default())  # the simulated driver crashes on too early a free
            rig().wait_for_device(0)
            assert read(device, copy, N) == NEW


def test_later_consumers_of_other_memory_are_not_waited_for(fake, device):
    """Only streams that took part in a wait since the memory was allocated."""
    live = fake.live()
    with stream() as theirs:
        device.wait(0, theirs, default())
        data = hold(device.allocate(0, 64, 256, default()))
        with gate(theirs) as closed:
            drop(data, default())
            device.synchronize(0, default())
            assert fake.live() == live
            assert not closed.is_open


def test_a_peer_copy_whose_wait_failed_keeps_its_source(fake, device, two_devices):
    """The source may die at once; it is freed when the copy is done."""
    live = fake.live()
    with stream(1) as own:
        source = hold(device.allocate(0, N, 256, default()))
        target = hold(device.allocate(1, N, 256, own))
        write(device, source, NEW)
        slow(own, device_id=1)
        device.copy(Span(1, target, 0, N), Span(0, source, 0, N), own)
        drop(source, default())
        assert read(device, target, N, own, 1) == NEW
        drop(target, own)
    drop(hold(device.allocate(0, 64, 256, default())), default())
    device.synchronize(0, default())
    assert fake.live() == live


def test_a_consumer_that_captures_keeps_the_memory(fake, device):
    """An event in its stream would be part of the graph: the free is made later."""
    from .rig import capture

    live = fake.live()
    with stream() as theirs:
        data = hold(device.allocate(0, 64, 256, default()))
        device.wait(0, theirs, default())
        with capture(theirs):
            drop(data, default())
            assert fake.live() == live + 1
    for _ in range(2):  # the first call puts an event behind its work, the second finds it done
        settle()
    assert fake.live() == live


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "has ended"])
def test_a_capture_that_begins_while_the_free_is_marked(fake, device, ends, monkeypatch):
    """Another thread's: the event is part of it then, and to ask about that would end it."""
    from .rig import capture

    live, record = fake.live(), EventPool.record
    with stream() as theirs:
        data = hold(device.allocate(0, 64, 256, default()))
        device.wait(0, theirs, default())
        block = capture(theirs)

        def begin_and_record(events, context, on):
            monkeypatch.undo()
            block.__enter__()
            event = record(events, context, on)
            if ends:
                block.__exit__(None, None, None)
            return event

        monkeypatch.setattr(EventPool, "record", begin_and_record)
        drop(data, default())
        for _ in range(2):  # looks at the frees
            drop(hold(device.allocate(0, 64, 256, default())), default())
        if not ends:
            block.__exit__(None, None, None)  # it is whole
    for _ in range(2):
        settle()
    assert fake.live() == live


def test_the_producers_stream_does_not_wait_for_a_consumer(fake, device):
    """Where events can be polled: the free is made by a later call."""
    if not rig().gpu().polls_events:
        assert rig().device == "rocm"
        return
    with stream() as theirs, gate(theirs) as closed:
        data = hold(device.allocate(0, 64, 256, default()))
        device.wait(0, theirs, default())
        drop(data, default())
        device.synchronize(0, default())
        assert not closed.is_open


def test_a_consumer_that_was_waited_for(fake, device):
    """Our work moved on to another stream, which waited for the consumer's: its later work too."""
    with stream() as theirs, stream() as ours, memory(device, N) as copy:
        data = hold(device.allocate(0, N, 256, theirs))
        write(device, data, NEW, theirs)
        device.wait(0, ours, theirs)
        consumer_at_work(theirs, data, copy)
        drop(data, ours)  # the simulated driver crashes on too early a free
        device.synchronize(0, ours)
        assert read(device, copy, N, theirs) == NEW
