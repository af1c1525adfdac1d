"""Transfers: in pieces, what wgpu keeps meanwhile, interrupts, and threads on everything."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest
from dlbridge_webgpu.devices import PIECE, Slot

import dlbridge as bridge

STATM = Path("/proc/self/statm")


def on_host(tensor):
    return bridge.to_device(tensor, "cpu", copy=True).numpy()


@pytest.fixture
def calls(monkeypatch):
    """What the backend does: reads, and writes of whole units, with their bytes."""
    seen = []

    def noting(name, kind):
        function = getattr(Slot, name)

        def noted(self, location, host):
            seen.append((kind, len(host)))
            function(self, location, host)

        monkeypatch.setattr(Slot, name, noted)

    noting("read", "read")
    noting("_write_units", "write")
    return seen


def test_a_whole_tensor_is_written_without_a_read(webgpu, calls):
    """What is behind it in its buffer is nobody's; until the buffer is given to the user."""
    tensor = bridge.to_device(np.arange(10, dtype="u1"), "webgpu:0")
    assert calls == [("write", 8), ("write", 4)]
    native = tensor.to_native()
    whole = bridge.asarray(native.buffer)
    assert whole.shape == (12,)
    bridge.copy_(whole, np.full(12, 7, "u1"))
    calls.clear()
    bridge.copy_(tensor, np.zeros(10, "u1"))
    assert calls == [("write", 8), ("read", 4), ("write", 4)]
    assert on_host(whole).tolist() == [0] * 10 + [7, 7]


@pytest.mark.parametrize("start", [0, 1, 5])
def test_what_lies_between_the_parts_of_a_copy_is_left_alone(webgpu, monkeypatch, start):
    """A shader of the user may write the elements between, also in the middle of the copy."""
    read = Slot.read
    there = bridge.zeros(240, "uint8", "webgpu:0")
    words = there[8:].view("uint32")

    def and_then_others_write(self, source, into):
        read(self, source, into)
        if len(into) > 4:  # the elements between, whole words of which no copy writes
            for at in range(start // 4 + 2, 58, 3):
                self.device.queue.write_buffer(source[0], 8 + 4 * at, b"\x07" * 4)

    monkeypatch.setattr(Slot, "read", and_then_others_write)
    parts = there[8 + start :].reshape(-1)[: 12 * 18].reshape(18, 12)[:, :3]
    bridge.copy_(parts, np.full((18, 3), 9, "u1"))
    monkeypatch.undo()
    want = np.zeros(232, "u1")
    want.view("u4")[start // 4 + 2 :: 3] = 0x07070707
    want[start : start + 12 * 18].reshape(18, 12)[:, :3] = 9
    assert np.array_equal(on_host(words.view("uint8")), want)


@pytest.mark.skipif(not STATM.exists(), reason="needs /proc to see this process's memory")
@pytest.mark.parametrize("nbytes", [4, 1 << 16])
def test_uploads_without_a_wait_do_not_pile_up(webgpu, nbytes):
    """wgpu keeps a copy of what is written until it is submitted: 64 KiB 5,000 times are 300 MiB."""
    tensor = bridge.empty(nbytes, "uint8", "webgpu:0")
    source = np.ones(nbytes, "u1")
    resident = []
    for _ in range(4):
        for _ in range(2500):
            bridge.copy_(tensor, source)
        resident.append(int(STATM.read_text().split()[1]) * 4096)
    assert resident[-1] - resident[1] < 3 * PIECE, resident


@pytest.mark.parametrize("where", ["GetConstMappedRange", "Unmap", "MapAsync"])
def test_an_exception_in_a_download(webgpu, monkeypatch, where):
    """Memory that an interrupt left mapped is not used again; later transfers are whole."""
    from wgpu.backends import wgpu_native

    class Interrupted:
        def __getattr__(self, name):
            if name == f"wgpuBuffer{where}":
                raise KeyboardInterrupt
            return getattr(lib, name)

    source = np.arange(100_000, dtype="float32")
    tensor = bridge.to_device(source, "webgpu:0")
    lib = wgpu_native.lib
    span = bridge.protocol.Span(0, tensor.operand().data, 0, 400_000)
    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(wgpu_native, "lib", Interrupted())
            with pytest.raises(KeyboardInterrupt):
                webgpu.copy_to_host(span, memoryview(bytearray(400_000)), 0)
        assert np.array_equal(on_host(tensor), source)


def test_a_finalizer_in_the_thread_of_wgpu_is_refused_and_does_not_wait(webgpu):
    """wgpu's callbacks are Python code, so that the collector may run there (found by a storm)."""
    from wgpu.backends.wgpu_native._poller import PollThread

    class Garbage:
        def __init__(self):
            self.itself = self
            self.tensor = bridge.zeros(10, "uint8", "webgpu:0")

        def __del__(self):
            try:
                bridge.zeros(10, "uint8", "webgpu:0")
            except bridge.DeviceError as exc:
                said.append(str(exc))

    said = []
    gc.disable()
    try:
        Garbage()
        thread = PollThread(lambda block: gc.collect())
        thread.start()
        thread.get_token().set_done()
        while not said and thread.is_alive():
            threading.Event().wait(0.01)
        thread.stop()
    finally:
        gc.enable()
    assert "cannot be used in a thread of its own" in said[0]
