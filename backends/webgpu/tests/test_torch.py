"""torch in and out, by the host; what torch does not have is refused."""

from __future__ import annotations

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.errors import ExchangeError


@pytest.fixture
def torch(webgpu, peer):
    return peer("torch")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "uint8", "bool"])
def test_there_and_back(torch, dtype):
    source = (torch.arange(35).reshape(5, 7) % 5).to(getattr(torch, dtype))
    for given in (source, source.t(), source[1:, ::3], source[2, 3], source[:0]):
        there = bridge.to_device(given, "webgpu:0")
        assert (str(there.device), tuple(there.shape)) == ("webgpu:0", tuple(given.shape))
        back = bridge.to_device(there, "cpu", like="torch")
        assert (type(back), back.dtype) == (torch.Tensor, given.dtype)
        assert torch.equal(back, given)


def test_a_gradient_is_refused_and_detached_is_taken(torch):
    source = torch.ones(3, requires_grad=True)
    with pytest.raises(ExchangeError, match="grad"):
        bridge.to_device(source, "webgpu:0")
    assert bridge.to_device(source.detach(), "webgpu:0").shape == (3,)


def test_torch_has_no_tensor_there(torch):
    tensor = bridge.to_device(torch.ones(3), "webgpu:0")
    with pytest.raises(ExchangeError, match="torch has no arrays on webgpu:0"):
        bridge.to_device(tensor, "webgpu:0", like="torch")


def test_copy_into_a_torch_tensor(torch):
    target = torch.zeros(4, 5)
    bridge.copy_(target[:, 1:3], bridge.to_device(np.ones((4, 2), "float32"), "webgpu:0"))
    assert target.sum() == 8
    assert target[:, 1:3].min() == 1
