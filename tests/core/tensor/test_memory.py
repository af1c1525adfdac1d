"""The owners of memory: what they take, and the stream that they write."""

from __future__ import annotations

import re

import pytest

import dlbridge as bridge
from dlbridge.errors import BackendError
from dlbridge.protocol import PlainAllocation
from tests.support.peers import peer


@pytest.mark.parametrize("data", [0, -1, 1 << 64, True, "1", 1.5, None], ids=repr)
@pytest.mark.parametrize("member", ["allocate", "import_host"])
def test_data_is_an_integer_that_c_can_hold_and_not_0(monkeypatch, member, data):
    """0 is no memory: every library takes it for an empty tensor's."""
    peer("dlbridge_fake")
    plugin = bridge.backend("ext_dev")
    monkeypatch.setattr(plugin, "shared", True)
    source = bridge.empty(64, "uint8", alignment=4096)
    monkeypatch.setattr(plugin, member, lambda *arguments: PlainAllocation(data, 64))
    shown = r"PlainAllocation .*" if data is None else f"of data {re.escape(repr(data))}"
    with pytest.raises(
        BackendError, match=rf"returned .*{shown} from {member}, .*from 1 to 2\*\*64"
    ):
        bridge.to_device(source, "ext_dev:0", copy=member == "allocate")


@pytest.mark.parametrize("given", [None, 7, (7, 0)], ids=repr)
def test_what_is_no_allocation_is_shown(monkeypatch, given):
    """A backend of another idea returns the number itself."""
    peer("dlbridge_fake")
    monkeypatch.setattr(bridge.backend("ext_dev"), "allocate", lambda *arguments: given)
    with pytest.raises(
        BackendError, match=rf"returned {re.escape(repr(given))} from allocate, .* an Allocation"
    ):
        bridge.zeros(9, "float32", "ext_dev:0")


def test_the_stream_of_the_last_work_is_written(monkeypatch):
    """Also by the end of a block, after which its stream may be gone."""
    fake = peer("dlbridge_fake")
    tensor = bridge.zeros(9, "float32", "ext_dev:0")
    allocation, stream = tensor.operand().memory.allocation, fake.Stream()
    assert allocation.stream == 0
    with bridge.use_stream("ext_dev:0", stream):
        bridge.copy_(tensor, [1.0] * 9)
        assert allocation.stream == stream.handle
        fresh = bridge.zeros(9, "float32", "ext_dev:0")
        assert fresh.operand().memory.allocation.stream == stream.handle
    assert allocation.stream == 0
    assert fresh.operand().memory.allocation.stream == 0


def test_an_operand_keeps_its_memory():
    """Until it is dropped, though nothing else has the tensor any more."""
    peer("dlbridge_fake")
    alive = bridge.backend("ext_dev").live_allocations
    before = alive()
    operand = bridge.zeros(9, "float32", "ext_dev:0").operand()
    assert alive() == before + 1
    del operand
    assert alive() == before
