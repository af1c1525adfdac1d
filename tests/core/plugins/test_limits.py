"""Backends that copy aligned units only, or few bytes at once: the core keeps to what they declare.

The backend is that of ``backends/fake``, which here refuses anything misaligned or too large.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time

import numpy as np
import pytest
from dlbridge_fake import Fake

import dlbridge as bridge
from dlbridge.core.plugins import limits, registry
from dlbridge.core.plugins.lookup import backend_of
from dlbridge.errors import DeviceError, ExchangeError
from dlbridge.protocol import Span

N = 777
NAME = "limits_of_a_test"
DEVICE, OTHER = f"{NAME}:0", f"{NAME}:1"

LIMITS = [(4, None), (256, None), (1, 64), (4, 102), (16, 16), (1, 1)]


class Strict(Fake):
    """Refuses what its two facts rule out, and notes the bytes of each copy."""

    def __init__(self):
        super().__init__()
        self.copied: list[tuple[str, int]] = []

    def check(self, kind, *spans):
        for span in spans:
            if span.offset % self.copy_alignment or span.nbytes % self.copy_alignment:
                raise ExchangeError(f"{kind}: {span} is not aligned to {self.copy_alignment}")
            if self.max_copy_nbytes is not None and span.nbytes > self.max_copy_nbytes:
                raise ExchangeError(f"{kind}: {span} is longer than {self.max_copy_nbytes}")
            self.copied.append((kind, span.nbytes))

    def check_region(self, region):
        for number in (region.run_nbytes, *region.strides):
            if number % self.copy_alignment:
                raise ExchangeError(f"{region} is not aligned to {self.copy_alignment}")

    def copy_from_host(self, target, source, stream):
        assert len(source) == target.nbytes
        self.check("from host", target)
        super().copy_from_host(target, source, stream)

    def copy_to_host(self, source, into, stream):
        assert len(into) == source.nbytes
        self.check("to host", source)
        super().copy_to_host(source, into, stream)

    def copy(self, target, source, stream):
        assert target.nbytes == source.nbytes
        self.check("copy", target, source)
        super().copy(target, source, stream)

    def fill(self, target, value, stream):
        self.check("fill", target)
        super().fill(target, value, stream)

    def copy_strided(self, target, target_region, source, source_region, stream):
        self.check("strided", target, source)
        self.check_region(target_region)
        self.check_region(source_region)
        super().copy_strided(target, target_region, source, source_region, stream)

    def copy_strided_from_host(self, target, target_region, source, source_region, stream):
        assert len(source) == source_region.extent
        self.check("strided from host", target)
        self.check_region(target_region)
        super().copy_strided_from_host(target, target_region, source, source_region, stream)

    def copy_strided_to_host(self, source, source_region, into, into_region, stream):
        assert len(into) == into_region.extent
        self.check("strided to host", source)
        self.check_region(source_region)
        super().copy_strided_to_host(source, source_region, into, into_region, stream)


def installed(monkeypatch, alignment, most, base=Strict):
    facts = {"copy_alignment": alignment, "max_copy_nbytes": most}
    plugin = type("Limits", (base,), facts)
    monkeypatch.setitem(registry._registered, NAME, plugin)
    # Entered here, so that it is gone after the test: it knows the simulated device's objects.
    monkeypatch.setitem(registry.LOADED, NAME, None)
    del registry.LOADED[NAME]
    return bridge.backend(NAME)


@pytest.fixture(params=LIMITS, ids=str)
def strict(request, monkeypatch):
    plugin = installed(monkeypatch, *request.param)
    yield plugin
    gc.collect()
    assert plugin.live_allocations() == 0


def noise(nbytes, seed=0):
    return np.frombuffer(random.Random(seed).randbytes(nbytes), "u1")


def content(tensor):
    return bridge.to_device(tensor, "cpu", copy=True).numpy()


@pytest.mark.parametrize("nbytes", [1, 2, 3, 4, 5, 63, 64, 65, 255, 256, 257, 1000])
def test_any_number_of_bytes(strict, nbytes):
    array = noise(nbytes)
    there = bridge.to_device(array, DEVICE)
    assert (content(there) == array).all()
    assert (content(bridge.to_device(there, DEVICE, copy=True)) == array).all()
    assert (content(bridge.to_device(there, OTHER)) == array).all()
    assert not content(bridge.zeros(nbytes, "uint8", DEVICE)).any()


def test_copies_into_the_middle_keep_the_neighbours(strict):
    """From the host, of the same device and of the other, at any two offsets."""
    chance = random.Random(1)
    want = noise(N).copy()
    there = bridge.to_device(want, DEVICE)
    sources = noise(N, seed=2)
    on = {place: bridge.to_device(sources, place) for place in ("cpu", DEVICE, OTHER)}
    for _ in range(60):
        nbytes = chance.choice([1, 2, 3, 5, 64, 97, 256, 300])
        to, start = chance.randrange(N - nbytes), chance.randrange(N - nbytes)
        if chance.random() < 0.3:
            start = to
        source = on[chance.choice(list(on))]
        bridge.copy_(there[to : to + nbytes], source[start : start + nbytes])
        want[to : to + nbytes] = sources[start : start + nbytes]
        assert (content(there) == want).all(), (to, start, nbytes)
        part = slice(start, start + nbytes)
        assert (content(there[part]) == want[part]).all()


def test_fills_keep_the_neighbours(strict):
    want = noise(N).copy()
    there = bridge.to_device(want, DEVICE)
    operand, plugin = there.operand(), backend_of(there.device)
    for to, nbytes in [(0, 1), (1, 1), (3, 2), (5, 250), (256, 256), (100, N - 100)]:
        plugin.fill(Span(0, operand.data, to, nbytes), 7 + nbytes % 200, operand.stream)
        want[to : to + nbytes] = 7 + nbytes % 200
        assert (content(there) == want).all()


@pytest.mark.parametrize("dtype", ["u1", "u2", "f4", "c16"])
@pytest.mark.parametrize(
    "cut",
    [
        (slice(1, None, 2), slice(3, 8)),
        (slice(None), slice(4, 8)),
        (slice(None, None, 3), slice(None, None, 2)),
        (slice(None, None, -1), slice(2, 7)),
    ],
    ids=["rows and columns", "columns", "steps", "reversed"],
)
def test_strided(strict, dtype, cut):
    """From, to, and inside the device; the gaps between the elements stay."""
    array = noise(11 * 12 * np.dtype(dtype).itemsize).view(dtype).reshape(11, 12)
    raw = array.view("u1")
    there = bridge.to_device(array, DEVICE)
    assert content(there[cut]).tobytes() == array[cut].tobytes()
    assert (
        content(bridge.to_device(there[cut], DEVICE, copy=True)).tobytes() == array[cut].tobytes()
    )
    want = raw.copy().view(dtype).reshape(11, 12)
    other = noise(array.nbytes, seed=3).view(dtype).reshape(11, 12)
    for place in ("cpu", DEVICE, OTHER):
        source = bridge.to_device(other, place)
        bridge.copy_(there[cut], source[cut])
        want[cut] = other[cut]
        assert content(there).tobytes() == want.tobytes()
        other = other[::-1].copy()


class Slow(Strict):
    """Other threads come in between a read and the write that follows it."""

    def copy_from_host(self, target, source, stream):
        time.sleep(0.0005)
        super().copy_from_host(target, source, stream)


@pytest.mark.parametrize("kind", ["from host", "copy", "fill"])
def test_threads_that_write_parts_of_one_unit(monkeypatch, kind):
    """Each of eight threads writes its own bytes of every unit, again and again."""
    installed(monkeypatch, 16, None, Slow)
    there = bridge.to_device(np.zeros(64, "u1"), DEVICE)
    numbers = bridge.to_device(np.arange(1, 9, dtype="u1"), DEVICE)
    operand, plugin = there.operand(), backend_of(there.device)

    def work(number):
        try:
            for at in range(number * 2, 64, 16):
                if kind == "fill":
                    span = Span(0, operand.data, at, 2)
                    plugin.fill(span, number + 1, operand.stream)
                    continue
                for i in range(2):
                    new = np.array([number + 1], "u1")
                    source = new if kind == "from host" else numbers[number : number + 1]
                    bridge.copy_(there[at + i : at + i + 1], source)
        except BaseException as exc:
            failures.append(exc)

    failures: list[BaseException] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert (content(there) == np.repeat(np.tile(np.arange(1, 9), 4), 2)).all()


def test_a_new_tensor_needs_no_read(monkeypatch):
    """What follows it in its allocation is nobody's: an upload of 10 bytes is two writes."""
    plugin = installed(monkeypatch, 4, None)
    there = bridge.to_device(noise(10), DEVICE)
    assert plugin.copied == [("from host", 8), ("from host", 4)]
    plugin.copied.clear()
    assert (content(there) == noise(10)).all()
    assert plugin.copied == [("to host", 8), ("to host", 4)]


def test_what_is_aligned_is_one_copy(monkeypatch):
    plugin = installed(monkeypatch, 4, None)
    there = bridge.to_device(noise(1000), DEVICE)
    bridge.to_device(there[4:900], DEVICE, copy=True)
    assert plugin.copied == [("from host", 1000), ("copy", 896), ("copy", 896)]


def test_long_copies_are_cut(monkeypatch):
    plugin = installed(monkeypatch, 4, 102)  # of which 100 are whole units
    there = bridge.to_device(noise(250), DEVICE)
    assert plugin.copied[:3] == [("from host", 100), ("from host", 100), ("from host", 48)]
    assert (content(there) == noise(250)).all()


class Waits(Strict):
    """Notes when it is waited for."""

    def synchronize(self, device_id, stream):
        self.copied.append(("wait", 0))
        super().synchronize(device_id, stream)


@pytest.mark.parametrize("blocks", [False, True])
def test_the_core_waits_for_copies_that_do_not_block(monkeypatch, blocks):
    """From and to the host, strided ones too: what has been read is there when it is used."""
    monkeypatch.setattr(Waits, "host_copies_block", blocks, raising=False)
    plugin = installed(monkeypatch, 1, None, Waits)
    array = noise(600).reshape(20, 30)
    there = bridge.to_device(array, DEVICE)
    waits = [] if blocks else [("wait", 0)]
    assert plugin.copied == [("from host", 600), *waits]
    moves = {
        ("from host", 600): lambda: bridge.copy_(there, array),
        ("strided from host", 580): lambda: bridge.copy_(there[:, :10], array[:, :10]),
        ("to host", 600): lambda: content(there),
        ("strided to host", 580): lambda: content(there[:, :10]),
    }
    for move, call in moves.items():
        plugin.copied.clear()
        call()
        assert plugin.copied == [move, *waits]


def test_a_backend_without_limits_is_used_as_it_is():
    fake = bridge.backend("ext_dev")
    assert backend_of(bridge.device("ext_dev:0")) is fake


def test_memory_that_is_not_padded_is_refused_by_its_backend(monkeypatch):
    """The unit at the end of somebody else's memory does not exist; nothing is written."""
    plugin = installed(monkeypatch, 4, None)
    data = plugin.allocate(0, 10, 1, 0)
    span = Span(0, data, 0, 10)
    with pytest.raises(ExchangeError, match="outside"):
        backend_of(bridge.device(DEVICE)).copy_from_host(span, memoryview(bytes(10)), 0)
    plugin.free(0, data, 0)


def test_host_memory_in_use_outlives_a_failed_wait(monkeypatch):
    plugin = installed(monkeypatch, 4, None)
    there = bridge.to_device(noise(8), DEVICE)
    before = len(limits._leaked)

    def refuse(device_id, stream):
        raise DeviceError("no")

    plugin.synchronize = refuse
    used = backend_of(there.device)
    with pytest.raises(DeviceError, match="no"):
        used.copy_from_host(Span(0, there.operand().data, 1, 2), memoryview(b"ab"), 0)
    assert len(limits._leaked) > before
    del plugin.synchronize
    del limits._leaked[before:]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows does not fork")
def test_a_fork_while_another_thread_completes_a_unit():
    """The lock of that thread, which the child does not have, is not waited for there."""

    plugin = limits.LimitedCopies(Fake(), 4, None)
    limits.LIMITED[id(plugin)] = plugin
    data = plugin.allocate(0, 8, 256, 0)
    taken, go_on = threading.Event(), threading.Event()

    def hold():
        with plugin._locks.setdefault(0, threading.RLock()):
            taken.set()
            go_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    child = os.fork()
    if not child:
        signal.alarm(100)
        plugin.copy_from_host(Span(0, data, 1, 2), memoryview(b"ab"), 0)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    go_on.set()
    thread.join()
    plugin.free(0, data, 0)
    del limits.LIMITED[id(plugin)]
    assert status == 0
