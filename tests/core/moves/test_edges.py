"""Edges: overlaps, ended views, read-only memory in place, odd registrations."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.counting_backend import NAME, counting
from tests.support.peers import peer


@pytest.fixture
def shared(monkeypatch):
    """A device that uses host memory in place."""
    monkeypatch.setenv("DLBRIDGE_FAKE_SHARED", "1")
    with counting():
        yield f"{NAME}:0"


def test_overlaps_of_memory_that_is_used_in_place(shared):
    host = bridge.empty((8, 8), "float32")
    host.numpy()[...] = np.arange(64).reshape(8, 8)
    before = host.numpy().copy()
    first, second = (bridge.to_device(host, shared, copy=False) for _ in range(2))
    bridge.copy_(first.transpose(), host)
    assert first.tolist() == before.T.tolist()
    host.numpy()[...] = before
    bridge.copy_(first.transpose(), second)
    assert first.tolist() == before.T.tolist()


@pytest.mark.parametrize("half", [64, 1 << 20])
def test_memory_that_is_used_in_place_is_copied_to_itself(shared, half):
    """The left half of each row to the second half of all: each row is read before it is written."""
    host = bridge.empty((8, 2 * half), "uint8", alignment=4096)
    host.numpy()[...] = np.random.default_rng(0).integers(0, 256, host.shape)
    left = host.numpy()[:, :half].copy()
    device = bridge.to_device(host, shared, copy=False)
    behind = host.reshape(2, 8, half)[1]
    bridge.copy_(behind, device[:, :half])
    assert (behind.numpy() == left).all()


def test_memory_that_two_devices_use_in_place_is_copied_to_itself(shared, monkeypatch):
    """The two are the same bytes: the backend is not asked."""
    host = bridge.empty((8, 4096), "uint8", alignment=4096)
    host.numpy()[...] = np.random.default_rng(0).integers(0, 256, host.shape)
    first, second = (bridge.to_device(host, f"{NAME}:{i}", copy=False) for i in (0, 1))
    left = host.numpy()[:4].copy()

    def copy(*_spans):
        raise AssertionError("asked to copy between overlapping spans")

    monkeypatch.setattr(bridge.backend(NAME), "copy", copy)
    bridge.copy_(second[2:6], first[:4])
    bridge.synchronize(f"{NAME}:1")
    assert (host.numpy()[2:6] == left).all()


def test_read_only_memory_used_in_place_comes_back(shared):
    array = bridge.zeros(4096).numpy()
    array.flags.writeable = False
    assert bridge.to_device(array, shared, copy=False).tolist() == [0.0] * 4096


def test_host_views_of_no_dimension():
    with bridge.from_dlpack(np.array(5.0)).host_view() as h:
        assert h.item() == 5.0


def test_a_host_view_that_has_ended_says_so():
    view = bridge.zeros(3).host_view()
    with view:
        pass
    for use in (view.__enter__, view.__dlpack__, view.__dlpack_device__):
        with pytest.raises(BufferError, match="has expired"):
            use()


USES = {
    "numpy": np.asarray,
    "np.from_dlpack": np.from_dlpack,
    "from_dlpack": bridge.from_dlpack,
    "asarray": bridge.asarray,
    "to_device": lambda h: bridge.to_device(h, "cpu"),
    "copy_": lambda h: bridge.copy_(h, np.zeros(3, "f4")),
    "tolist": lambda h: h.tolist(),
    "shape": lambda h: h.shape,
    "a view": lambda h: h[0],
    "pickle": pickle.dumps,
    "torch": lambda h: peer("torch").from_dlpack(h),
    "jax": lambda h: peer("jax.dlpack").from_dlpack(h),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_tensor_of_an_ended_view_says_so(use, dtype):
    """Of both kinds, numpy's own and ours: not an empty tensor, which would be wrong data."""
    with bridge.zeros(3, dtype).host_view() as h:
        assert h.shape == (3,)
    with pytest.raises(BufferError, match="expired with its block"):
        use(h)
    assert "has expired" in repr(h)
    assert not hasattr(h, "no_such_thing")


@pytest.mark.parametrize(
    ("name", "cls"), [(1, int), ("", int), ("a:b", int), (None, int), ("fine", 3)]
)
def test_register_backend_checks_what_it_gets(name, cls):
    with pytest.raises(TypeError):
        bridge.register_backend(name, cls)
    assert "cpu" in bridge.backends()
