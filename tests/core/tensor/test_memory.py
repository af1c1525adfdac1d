"""The owners of memory: what they do when a backend fails."""

from __future__ import annotations

import sys

import pytest
from peers import peer

import dlbridge as bridge
from dlbridge.errors import BackendError


@pytest.mark.parametrize("data", [0, -1, 1 << 64, True, "1", 1.5, None], ids=repr)
@pytest.mark.parametrize("member", ["allocate", "import_host"])
def test_data_is_an_integer_that_c_can_hold_and_not_0(monkeypatch, member, data):
    """0 is no memory: every library takes it for an empty tensor's."""
    peer("dlbridge_fake")
    plugin = bridge.backend("ext_dev")
    monkeypatch.setattr(plugin, "shared", True)
    source = bridge.empty(64, "uint8", alignment=4096)
    given = data if member == "allocate" else (data, 0)
    monkeypatch.setattr(plugin, member, lambda *arguments: given)
    with pytest.raises(
        BackendError, match=rf"returned {data!r} from {member}: .*from 1 to 2\*\*64"
    ):
        bridge.to_device(source, "ext_dev:0", copy=member == "allocate")


def test_a_free_that_fails_is_called_once(monkeypatch):
    """A function of one line was taken for one that had not begun, and was called again."""
    peer("dlbridge_fake")
    tensor = bridge.zeros(9, "float32", "ext_dev:0")
    plugin, called = bridge.backend("ext_dev"), []
    free = plugin.free

    def fail(*arguments): called.append(arguments); free(*arguments); raise OSError("the driver's")  # fmt: skip # noqa: E702

    monkeypatch.setattr(plugin, "free", fail)
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", lambda given: printed.append(str(given.exc_value)))
    before = plugin.live_allocations()
    del tensor
    assert len(called) == 1
    assert printed == ["the driver's"]
    assert plugin.live_allocations() == before - 1
