"""Strided copies take the cheaper way: one call for each run, or all that lies between them."""

from __future__ import annotations

import collections

import numpy as np
import pytest
from dlbridge_fake import Fake

import dlbridge as bridge

NAME = "costs_of_a_test"
DEVICE = f"{NAME}:0"


class CopiesRegions(Fake):
    """Counts the calls of its strided copies, each of which takes two strided dimensions."""

    def __init__(self):
        super().__init__()
        self.calls = collections.Counter()

    def copy_strided(self, *given):
        self.calls["copy"] += 1
        super().copy_strided(*given)

    def copy_strided_from_host(self, *given):
        self.calls["from host"] += 1
        super().copy_strided_from_host(*given)


class CopiesRuns:
    """A backend with `SupportsCopy` and no other capability; counts the calls of its copies."""

    api = 2
    device_type = 12

    def __init__(self):
        self.fake = Fake()
        self.calls = collections.Counter()

    def device_count(self):
        return 2

    def allocate(self, device_id, nbytes, alignment, stream, content=None):
        return self.fake.allocate(device_id, nbytes, alignment, stream)

    def copy_from_host(self, target, source, stream):
        self.calls["from host"] += 1
        self.fake.copy_from_host(target, source, stream)

    def copy_to_host(self, source, into, stream):
        self.calls["to host"] += 1
        self.fake.copy_to_host(source, into, stream)

    def copy(self, target, source, stream):
        self.calls["copy"] += 1
        self.fake.copy(target, source, stream)

    def current_stream(self, device_id):
        return 0


@pytest.fixture
def regions(register):
    return register(NAME, CopiesRegions)


@pytest.fixture
def plugin(register):
    return register(NAME, CopiesRuns)


VIEWS = {
    "backwards": (1, lambda x: x[::-2]),
    "transposed": (1, lambda x: x.reshape(20, 60)[1:, ::3].T),
    "transposed, all of it": (0, lambda x: x.reshape(20, 60).T),
    "backwards in one of two": (1, lambda x: x.reshape(20, 60)[::2, 50:3:-3]),
    "as it lies": (1, lambda x: x.reshape(20, 60)[::2, 3::3]),
    "a short one between": (2, lambda x: x.reshape(20, 2, 30)[::2, :, ::7]),
    "a short one inside": (3, lambda x: x.reshape(10, 3, 2, 20)[::2, :2, :, ::7]),
}


VIEW = {
    # 4096 runs of 4 bytes: two calls, and not 4096.
    "many short runs": (4096, 1024, np.s_[:, 5:6], DEVICE, {"to host": 1, "from host": 1}),
    # The host would move half a megabyte twice.
    "few long runs": (8, 65536, np.s_[:, : 1 << 15], DEVICE, {"copy": 8}),
    # Two rows of a large tensor: not all that lies between them.
    "few far runs": (512, 8192, np.s_[::511], "cpu", {"to host": 2}),
}


@pytest.mark.parametrize("name", VIEW)
def test_the_cheaper_way(plugin, name):
    rows, columns, view, target, calls = VIEW[name]
    array = np.arange(rows * columns, dtype="u4").reshape(rows, columns)
    part = bridge.to_device(array, DEVICE)[view]
    plan = bridge.plan(part, target, copy=True)
    through_the_host = "so many calls that the host is faster" in str(plan)
    assert through_the_host is (name == "many short runs")
    assert through_the_host is ([step.kind for step in plan.steps] == ["download", "upload"])
    plugin.calls.clear()
    moved = bridge.to_device(part, target, copy=True)
    assert plugin.calls == calls
    assert (bridge.to_device(moved, "cpu", like="numpy") == array[view]).all()
    if target == "cpu":
        assert plan.nbytes == part.nbytes


def test_a_strided_target_is_not_made_worse(plugin):
    """Its runs take as many calls from the host: then the device copies them itself."""
    array = np.zeros((1000, 100), "u1")
    there, source = bridge.to_device(array, DEVICE), bridge.to_device(array + 7, DEVICE)
    plugin.calls.clear()
    bridge.copy_(there[:, 3:5], source[:, 9:11])
    assert plugin.calls == {"copy": 1000}
    array[:, 3:5] = 7
    assert (bridge.to_device(there, "cpu", like="numpy") == array).all()


@pytest.mark.parametrize(("calls", "view"), VIEWS.values(), ids=VIEWS)
def test_a_target_of_any_order_takes_few_calls(regions, calls, view):
    """Forwards in the order of memory, and the longest dimensions in one call."""
    want = np.frombuffer(np.random.default_rng(0).bytes(1200), "u2").view("u1").copy()
    there = bridge.to_device(want, DEVICE, copy=True)
    new = np.arange(view(want).size, dtype="u2").astype("u1").reshape(view(want).shape)
    bridge.copy_(view(there), new)
    view(want)[...] = new
    assert (bridge.to_device(there, "cpu", copy=True).numpy() == want).all()
    assert regions.calls["from host"] == calls
    other = bridge.to_device(255 - want, DEVICE, copy=True)
    bridge.copy_(view(there), view(other))
    view(want)[...] = 255 - view(want)
    assert (bridge.to_device(there, "cpu", copy=True).numpy() == want).all()
    assert regions.calls["copy"] == calls
