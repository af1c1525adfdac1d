"""Streams of the device: which are taken, who waits, and memory that other streams have used."""

from __future__ import annotations

import sys
import threading
import types

import numpy as np
import pytest
import torch
from dlbridge_torch import TorchDevice, TorchFamily, TorchStreams

import dlbridge as bridge
from dlbridge.errors import BackendUnavailable, DeviceError, ExchangeError
from dlbridge.protocol import NativeArray, Span, SupportsStreams

HOST = np.arange(1000, dtype="u1")


def held(stream):
    """A gate for *stream*: its work waits until it is set."""
    gate = threading.Event()
    stream.queue.put(lambda: gate.wait(60))
    return gate


def test_one_thread_does_the_work_of_a_stream_of_the_simulator(late):
    """Two would change its order: memory that is freed would be written."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            stream, begin, workers = late.Queue(), threading.Barrier(8), set()

            def put(stream=stream, begin=begin, workers=workers):
                begin.wait()
                stream.put(lambda: workers.add(threading.get_ident()))

            threads = [threading.Thread(target=put) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            stream.mark().wait(60)
            assert len(workers) == 1
    finally:
        sys.setswitchinterval(interval)


def test_which_streams_are_taken(late, backend):
    stream, other = late.Stream(0), late.Stream(1)
    handle = backend.normalize_stream(0, stream)
    assert handle == stream.native_handle == backend.normalize_stream(0, handle)
    assert backend.stream(0, handle) == stream
    assert backend.normalize_stream(0, None) == 0
    assert backend.normalize_stream(0, -1) == -1
    assert backend.stream(0) == late.default_stream(0)
    with pytest.raises(ValueError, match="is no stream of torch-late:0; pass one"):
        backend.normalize_stream(0, other)
    with pytest.raises(ValueError, match=r"takes no handles of others there; pass None, -1, or a"):
        backend.normalize_stream(0, 12345)
    with pytest.raises(TypeError, match="is no torch stream"):
        backend.normalize_stream(0, "a stream")
    with pytest.raises(DeviceError, match="knows no stream 0x3039; pass torch's object of it"):
        backend.synchronize(0, 12345)


def test_a_tensor_of_torch_is_waited_for(late, backend):
    """Work of torch's current stream on it comes before ours on another stream."""
    first, second = late.Stream(0), late.Stream(0)
    x = torch.zeros(1000, dtype=torch.uint8).to("late:0")
    late.synchronize(0)
    gate = held(first)
    with late.stream(first):
        x.fill_(7)
        with bridge.use_stream("torch-late:0", second):
            copied = bridge.to_device(bridge.from_dlpack(x), "torch-late:0", copy=True)
            gate.set()
            assert (bridge.to_device(copied, "cpu").numpy() == 7).all()


def test_torchs_current_stream_waits_for_our_work(late, backend):
    stream = late.Stream(0)
    with bridge.use_stream("torch-late:0", stream):
        tensor = bridge.empty(1000, "uint8", "torch-late:0")
        gate = held(stream)
        bridge.copy_(tensor, bridge.full(1000, 9, "uint8", device="torch-late:0"))
        native = tensor.to_native()
        copied = torch.empty_like(native)
        copied.copy_(native)  # on torch's current stream, which is another one
        gate.set()
        assert (copied.cpu().numpy() == 9).all()


def test_memory_is_kept_for_the_streams_that_use_it(late, backend):
    """torch would give it to the next request on the stream that it was allocated for."""
    stream = late.Stream(0)
    source = bridge.to_device(HOST.astype("u1"), "torch-late:0", copy=True)
    bridge.synchronize("torch-late:0")
    target = torch.empty(1000, dtype=torch.uint8, device="late:0")
    records = late.COUNTS.records
    gate = held(stream)
    with bridge.use_stream("torch-late:0", stream):
        address = source.operand().data
        with late.stream(stream):
            target.copy_(source.to_native())
    with late.stream(late.default_stream(0)):
        del source
        fresh = [torch.empty(1000, dtype=torch.uint8, device="late:0") for _ in range(3)]
        assert address not in [each.data_ptr() for each in fresh]
    gate.set()
    stream.synchronize()
    assert target.cpu().numpy().tobytes() == HOST.astype("u1").tobytes()
    assert late.COUNTS.records > records


# Devices without streams, and without more ------------------------------------------------


@pytest.fixture
def alone(late, monkeypatch):
    """The same device for a torch that has no streams of it."""
    members = {n: f for n, f in vars(late.MODULE).items() if "stream" not in n.lower()}
    monkeypatch.setattr(torch, "late", types.SimpleNamespace(**members))
    return TorchFamily().open("torch-late")


def test_a_device_without_streams_waits(late, alone, monkeypatch):
    assert type(alone) is TorchDevice
    assert not isinstance(alone, SupportsStreams)
    assert alone.current_stream(1) == 0
    memory = alone.allocate(1, 1000, 256, 0)
    monkeypatch.setattr(late, "DELAY", 0.01)
    alone.fill(Span(1, memory.data, 0, 1000), 5, 0)
    assert late.default_stream(1).query()  # nothing is queued any more
    into = bytearray(1000)
    alone.copy_to_host(Span(1, memory.data, 0, 1000), memoryview(into), 0)
    assert bytes(into) == b"\5" * 1000


def test_a_device_whose_memory_has_no_address(alone, monkeypatch):
    tensor = torch._C._acc.create_empty_tensor([10], torch.uint8)
    monkeypatch.setattr(alone, "_empty", lambda *_: tensor)
    with pytest.raises(ExchangeError, match="torch-late: torch gives no address of its memory"):
        alone.allocate(0, 10, 256, 0)


def test_a_device_that_cannot_note_streams(late, backend, monkeypatch):
    """Then the end of the memory waits for the device."""

    class Refusing:
        def __init__(self, tensor):
            self._tensor = tensor

        def record_stream(self, stream):
            raise NotImplementedError("aten::record_stream is not there")

        def __getattr__(self, name):
            return getattr(self._tensor, name)

    stream = late.Stream(0)
    handle = backend.normalize_stream(0, stream)
    made = backend.allocate(0, 1000, 256, 0)
    made.resource.tensor = Refusing(made.resource.tensor)
    gate = held(stream)
    made.stream = handle
    threading.Timer(0.05, gate.set).start()  # no verdict: the end waits for it
    del made
    assert stream.query()


# Which devices there are ------------------------------------------------------------------


def test_which_devices_are_named(late):
    assert TorchFamily().names() == ["torch-late"]
    assert type(TorchFamily().open("torch-late")) is TorchStreams


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("torch-cpu", "torch-cpu: torch has no accelerator torch.cpu"),
        ("torch-cuda", "torch.cuda finds no device; torch .* can use torch-late here. Install"),
        ("torch-nothing", "torch knows no devices of the type 'nothing'"),
        ("torch-privateuseone", "has no accelerator torch.privateuseone with device_count"),
    ],
)
def test_what_cannot_be_used(late, name, reason):
    with pytest.raises(BackendUnavailable, match=reason):
        bridge.backend(name)


def test_a_process_that_torch_was_used_before(late, monkeypatch):
    monkeypatch.setattr(late.MODULE, "_is_in_bad_fork", lambda: True)
    with pytest.raises(BackendUnavailable, match=r"before fork\(\), which it does not survive"):
        TorchFamily().open("torch-late")


def test_no_room_is_said_as_such(late, backend):
    with pytest.raises(bridge.DeviceMemoryError, match="no room for"):
        backend.allocate(0, late.MEMORY * 2, 256, 0)


def test_a_pair_of_elements_in_a_byte(backend):
    array = NativeArray(0, 0, 0, "float4_e2m1fnx2", (0, 2), None, False, owner=None)
    assert backend.to_native(array).dtype is torch.float4_e2m1fn_x2
