"""torch's modes of the caller: they change nothing of the memory that dlbridge makes and copies."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import dlbridge as bridge

HOST = np.arange(12, dtype="f4").reshape(3, 4)
DEVICE = "torch-late:0"


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def default_device():
    torch.set_default_device("late:1")
    try:
        yield
    finally:
        torch.set_default_device(None)


MODES = {
    "inference": torch.inference_mode,
    "no grad": torch.no_grad,
    "fake tensors": FakeTensorMode,
    "deterministic": deterministic,
    "a default device": default_device,
    "device block": lambda: torch.device("late:1"),
    "default dtype": lambda: contextlib.nullcontext(torch.set_default_dtype(torch.float32)),
}


@pytest.mark.parametrize("mode", MODES)
def test_moves_in_a_mode(backend, mode):
    with MODES[mode]():
        there = bridge.to_device(HOST, DEVICE)
        turned = bridge.to_device(there[:, ::2], DEVICE, copy=True)
        back = bridge.to_device(turned, "cpu").numpy()
    assert np.array_equal(back, HOST[:, ::2])
    bridge.copy_(there, np.zeros_like(HOST))  # what was made in the mode can be written outside
    assert not bridge.to_device(there, "cpu").numpy().any()


@pytest.mark.parametrize("mode", ["inference", "no grad", "fake tensors"])
def test_tensors_that_were_made_in_a_mode(backend, mode):
    with MODES[mode]():
        array = bridge.to_device(HOST, DEVICE, like="torch")
    assert type(array) is torch.Tensor
    assert (array.requires_grad, array.is_inference()) == (False, False)
    array.fill_(1)
    assert (array.cpu().numpy() == 1).all()


def test_a_buffer_never_requires_grad(backend):
    with torch.enable_grad():
        array = bridge.to_device(HOST, DEVICE, like="torch")
    assert not array.requires_grad
    assert array.is_leaf


def test_a_fake_tensor_is_refused(backend):
    with FakeTensorMode():
        fake = torch.empty(3, device="late:0")
    with pytest.raises(bridge.ExchangeError, match="is a meta or fake tensor"):
        bridge.from_dlpack(fake)


def test_inside_torch_compile(backend):
    """The function that calls dlbridge is left out of the graph, as torch's tracer cannot read it."""

    @torch.compiler.disable
    def there_and_back(x):
        there = bridge.to_device(x.numpy(), DEVICE)
        return torch.from_numpy(bridge.to_device(there, "cpu").numpy().copy())

    @torch.compile(backend="eager")
    def function(x):
        return there_and_back(x * 2) + 1

    result = function(torch.from_numpy(HOST.copy()))
    assert np.array_equal(result.numpy(), HOST * 2 + 1)
