"""Elements below a byte: only those that are meant change, however they are stored."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.core.moves import copies
from dlbridge.extending import Memory, tensor_on
from dlbridge.testing import TensorMachine
from dlbridge.testing.stateful import PACKED, WHOLE

DEVICES = ["cpu", "ext_dev:0"]


@pytest.mark.parametrize("used", [["cpu:0"], ["cpu:0", "ext_dev:0", "ext_dev:1"]], ids=len)
def test_random_operations(used):  # C31, P37
    """Beside a model in numpy; one device and the host: in the kit, for each backend."""

    class Machine(TensorMachine):
        devices = used
        dtypes = PACKED if len(used) == 1 else (*WHOLE, *PACKED)

    Machine.run(1000)


def codes(tensor):
    return bridge.unpack_bits(tensor.tobytes(), tensor.dtype, tensor.size).tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_numbers_into_a_part(device):  # C31
    """100 bytes were written into a view of 50."""
    target = bridge.full(1000, 3, "uint4", device)
    bridge.copy_(target[:100], [1] * 100)
    assert codes(target) == [1] * 100 + [3] * 900


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["uint4", "float6_e2m3fn"])
@pytest.mark.parametrize("more", [-1, 0, 5])
def test_many_elements_are_converted_in_chunks(device, name, more, monkeypatch):  # C31
    monkeypatch.setattr(copies, "_CHUNK", 64)
    count = 3 * 64 + more
    given = np.arange(count, dtype="u1") % (1 << bridge.dtype(name).bits)
    padded = bridge.to_device(given.view(getattr(ml_dtypes, name)), device, copy=True)
    packed = bridge.empty_like(padded)
    assert not packed.is_padded
    bridge.copy_(packed, padded)
    assert codes(packed) == given.tolist()
    back = bridge.to_device(np.zeros(count, padded.dtype.numpy), device, copy=True)
    bridge.copy_(back, packed)
    assert back.tobytes() == given.tobytes()


@pytest.mark.parametrize("device", DEVICES)
def test_lanes_of_padded_elements(device):  # C31
    raw = np.zeros((2, 1), ml_dtypes.uint4)
    with pytest.raises(bridge.ExchangeError, match=r"uint2x2.*padded uint4.*view\('uint8'\)"):
        bridge.asarray(raw).view("uint2x2")
    memory = Memory(bridge.device("cpu"), raw.ctypes.data, "a test", raw)
    kind = bridge.dtype("uint2x2")
    padded = tensor_on(memory, kind, (2,), padded=True)
    with pytest.raises(bridge.ExchangeError, match="padded uint2x2"):
        bridge.copy_(bridge.empty(2, kind, device), padded)


def test_packed_elements_with_gaps_have_no_plan():  # C31
    part = bridge.zeros((4, 8), "int4")[:, :4]
    for device in DEVICES:
        with pytest.raises(bridge.ExchangeError, match="compact"):
            bridge.plan(part, device, copy=True)
    assert bridge.to_device(part, "cpu") is part


def test_native_objects_of_packed_elements_have_no_plan():
    packed = bridge.zeros(6, "int4", "ext_dev:0")
    for move in (bridge.plan, bridge.to_device):
        with pytest.raises(bridge.ExchangeError, match=r"packed.*view\('uint8'\).*astype"):
            move(packed, "ext_dev:0", like="ext_dev")
