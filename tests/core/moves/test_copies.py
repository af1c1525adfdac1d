"""copy_, host views, and progress."""

from __future__ import annotations

import fcntl
import gc
import os
import pty
import struct
import subprocess
import sys
import termios
from functools import partial

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.core.plugins import streams
from tests.support.counting_backend import NAME

DEVICE = f"{NAME}:0"


# copy_


def test_copy_takes_any_library():
    target = np.zeros(3)
    bridge.copy_(target, [1.0, 2.0, 3.0])
    assert target.tolist() == [1, 2, 3]
    buffer = bytearray(3)
    bridge.copy_(buffer, b"abc")
    assert buffer == b"abc"


@pytest.mark.parametrize(
    ("to", "source", "error", "said"),
    [
        (np.zeros(3), np.zeros(4), ValueError, r"must be equal; copy between parts .* t\[:n\], so"),
        (np.zeros(3), np.zeros((3, 1)), ValueError, r"must be equal; reshape it: .*\(\(3,\)\)$"),
        (
            np.zeros((2, 3)),
            np.zeros((3, 2)),
            ValueError,
            r"in the order of its elements, or source\.transpose\(axis, \.\.\.\)$",
        ),
        (np.zeros(3), np.zeros(()), ValueError, "must be equal; give one value for each element"),
        (np.zeros(3), np.zeros(3, "f4"), ValueError, "must be equal; convert it: .*'float64'\\)$"),
        (object(), [1.0], TypeError, "is not a tensor"),
    ],
    ids=["size", "shape", "transposed", "number", "dtype", "object"],
)
def test_copies_that_are_refused(to, source, error, said):
    with pytest.raises(error, match=said):
        bridge.copy_(to, source)


# host_view


def test_a_host_view(shared):
    t = bridge.zeros((2, 3), device=DEVICE)
    with t.host_view() as h:
        assert h.device is bridge.device("cpu")
        h.numpy()[...] = 7
        assert shared.views
    assert not shared.views
    assert t.tolist() == [[7] * 3] * 2
    with pytest.raises(BufferError, match="expired with its block"):  # whatever names are left
        h.numpy()


def test_a_host_view_that_is_still_used(shared):
    t = bridge.zeros((2, 3), device=DEVICE)
    with pytest.raises(BufferError, match=r"still used by 1 array"), t.host_view() as h:
        kept = h.numpy()
    kept[...] = 3  # and it is no dangling memory
    assert shared.views
    del kept, h
    gc.collect()
    assert not shared.views
    assert t.tolist() == [[3] * 3] * 2


def test_an_error_in_the_block_matters_more(shared):
    t = bridge.zeros((2, 3), device=DEVICE)
    with pytest.raises(KeyError), t.host_view() as h:  # noqa: PT012 - its end is the question
        kept = h.numpy()
        raise KeyError
    assert kept.shape == (2, 3)
    with pytest.raises(KeyError), t.host_view() as other:
        raise KeyError
    assert "has expired" in repr(other)
    del kept, h
    gc.collect()
    assert not shared.views


def test_a_host_view_as_a_producer(shared):
    t = bridge.zeros((2, 3), device=DEVICE)
    x = np.from_dlpack(t.host_view())
    x[...] = 4
    assert t.tolist() == [[4] * 3] * 2
    assert shared.views
    del x
    gc.collect()
    assert not shared.views


def test_no_host_view():
    t = bridge.zeros((2, 3), device="ext_dev:0")
    with pytest.raises(BufferError, match=r"the host cannot map it .*to_device"):
        t.host_view()


# progress

CHUNK = 64 << 20


@pytest.fixture(scope="module")
def large():
    return np.arange(2 * CHUNK + 4096, dtype="uint8")


@pytest.mark.parametrize(
    "route", [("cpu", f"{NAME}:0"), (f"{NAME}:0", "cpu"), ("cpu", "cpu")], ids=str
)
def test_progress(route, large, backend):
    source = bridge.to_device(large, route[0])
    seen = []
    moved = bridge.to_device(source, route[1], copy=True, progress=lambda *now: seen.append(now))
    done = [now for now, _ in seen]
    assert done == sorted(set(done))
    assert {total for _, total in seen} == {large.nbytes}
    assert done[-1] == large.nbytes
    assert len(done) >= 3
    del moved


def here_and_there():
    """An array of the host, a tensor of each device, and room for one in each place."""
    array = np.arange(60, dtype="float32").reshape(6, 10)
    there = [bridge.to_device(array, f"ext_dev:{index}", copy=True) for index in (0, 1)]
    return array, np.zeros_like(array), *there


PROGRESS = {
    "the host": lambda h, into, d, o, p: bridge.copy_(into, h, progress=p),
    "strided, the host": lambda h, into, d, o, p: bridge.copy_(into[:, ::2], h[:, ::2], progress=p),
    "up": lambda h, into, d, o, p: bridge.copy_(d, h, progress=p),
    "strided up": lambda h, into, d, o, p: bridge.copy_(d[:, ::2], h[:, ::2], progress=p),
    "packed, then up": lambda h, into, d, o, p: bridge.copy_(d.T, h.T, progress=p),
    "down": lambda h, into, d, o, p: bridge.copy_(into, d, progress=p),
    "strided down": lambda h, into, d, o, p: bridge.copy_(into[:, ::2], d[:, ::2], progress=p),
    "inside": lambda h, into, d, o, p: bridge.copy_(d[:3], d[3:], progress=p),
    "strided inside": lambda h, into, d, o, p: bridge.copy_(d[:3, ::2], d[3:, 1::2], progress=p),
    "overlapping": lambda h, into, d, o, p: bridge.copy_(d[1:], d[:-1], progress=p),
    "between devices": lambda h, into, d, o, p: bridge.copy_(o, d, progress=p),
    "new, up": lambda h, into, d, o, p: bridge.to_device(h, d.device, copy=True, progress=p),
    "new, strided up": lambda h, into, d, o, p: bridge.to_device(h[:, ::2], d.device, progress=p),
    "new, transposed up": lambda h, into, d, o, p: bridge.to_device(h.T, d.device, progress=p),
    "new, down": lambda h, into, d, o, p: bridge.to_device(d, "cpu", copy=True, progress=p),
    "new, strided down": lambda h, into, d, o, p: bridge.to_device(d[:, ::2], "cpu", progress=p),
    "new, inside": lambda h, into, d, o, p: bridge.to_device(d, d.device, copy=True, progress=p),
    "new, between": lambda h, into, d, o, p: bridge.to_device(d, o.device, copy=True, progress=p),
}


@pytest.mark.parametrize("kind", PROGRESS)
def test_each_kind_of_copy_says_once_that_it_is_done(kind):
    seen = []
    PROGRESS[kind](*here_and_there(), lambda *now: seen.append(now))
    (total,) = {total for _, total in seen}
    assert [done for done, _ in seen] == [total]


def test_progress_of_no_copy_is_none():
    seen = []
    array = np.ones(5)
    bridge.to_device(array, "cpu", copy=None, progress=lambda *now: seen.append(now))
    bridge.copy_(array[:0], array[:0], progress=lambda *now: seen.append(now))
    assert seen == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("route", [("cpu", f"{NAME}:0"), (f"{NAME}:0", "cpu")], ids=str)
def test_progress_that_raises(route, error, large, backend):
    source = bridge.to_device(large, route[0])
    before = backend.live_allocations()

    def stop(done, total):
        raise error("stop")

    with pytest.raises(error, match="stop"):
        bridge.to_device(source, route[1], progress=stop)
    gc.collect()
    assert backend.live_allocations() == before
    assert bridge.to_device(source, route[1]).shape == large.shape


@pytest.mark.parametrize(
    ("route", "member"),
    [(("cpu", f"{NAME}:0"), "copy_from_host"), ((f"{NAME}:0", "cpu"), "copy_to_host")],
    ids=str,
)
def test_ctrl_c_ends_a_long_copy_without_progress(route, member, backend, monkeypatch):
    """Between two pieces of 256 MiB: Python runs signal handlers there."""
    source = bridge.to_device(np.zeros(LIMIT + 4096, "u1"), route[0])
    plugin, sizes = bridge.backend(NAME), []
    copy = getattr(plugin, member)

    def interrupted(span, host, stream):
        if sizes:
            raise KeyboardInterrupt
        sizes.append(host.nbytes)
        copy(span, host, stream)

    monkeypatch.setattr(plugin, member, interrupted)
    with pytest.raises(KeyboardInterrupt):
        bridge.to_device(source, route[1], copy=True)
    assert sizes == [LIMIT]


def test_progress_is_a_bool_or_a_callable():
    with pytest.raises(TypeError, match="progress must be"):
        bridge.to_device([1.0], "ext_dev:0", progress="yes")
    assert bridge.to_device([1.0], "ext_dev:0", progress=False).tolist() == [1]


BAR = """
import sys, numpy as np, dlbridge
dlbridge.to_device(np.zeros(int(sys.argv[1]), "u1"), "cpu", copy=True, progress=True)
"""


LIMIT = 256 << 20


@pytest.mark.parametrize(
    ("nbytes", "terminal", "shows"),
    [
        (LIMIT, True, b"100% [" + b"#" * 30 + b"] 256.0 MiB, "),
        (LIMIT - 1, True, b""),
        (LIMIT, False, b""),
    ],
)
def test_the_bar(nbytes, terminal, shows):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-c", BAR, str(nbytes)]
    process = subprocess.Popen(command, stderr=theirs if terminal else subprocess.PIPE)
    os.close(theirs)
    shown = b"".join(iter(partial(_read, ours), b""))  # a slow machine shows the bar more often
    os.close(ours)
    _, elsewhere = process.communicate(timeout=120)
    assert process.returncode == 0
    assert shows in shown if shows else not shown
    assert not elsewhere


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that nothing is left to read
        return b""


@pytest.mark.parametrize("way", ["in", "out", "strided out"])
@pytest.mark.parametrize("wait", ["works", "is refused", "fails"])
def test_host_memory_outlives_the_copies_on_their_way(way, wait, monkeypatch):
    """After a Ctrl-C between queueing and waiting: waited for, or kept if nobody can wait."""
    plugin = bridge.backend("ext_dev")
    tensor = bridge.zeros((4, 6), "float32", "ext_dev:0")
    waited = []

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    def synchronize(*arguments):
        waited.append(arguments)
        if wait != "works":
            raise (bridge.ExchangeError if wait == "is refused" else bridge.DeviceError)("no")

    kept = list(streams._leaked)
    for method in ("copy_from_host", "copy_to_host", "copy_strided_to_host"):
        monkeypatch.setattr(plugin, method, interrupted)
    monkeypatch.setattr(plugin, "synchronize", synchronize)
    ways = {
        "in": lambda: bridge.copy_(tensor, np.ones((4, 6), "float32")),
        "out": lambda: bridge.to_device(tensor, "cpu", copy=True),
        "strided out": lambda: bridge.to_device(tensor[:, ::2], "cpu", copy=True),
    }
    with pytest.raises(KeyboardInterrupt):
        ways[way]()
    assert waited
    assert len(streams._leaked) - len(kept) == (wait == "fails")
    streams._leaked[:] = kept
