"""device_of: where an array is, without a copy, and without drivers that it does not need."""

from __future__ import annotations

import array

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.expected_parts import backend_or_skip
from tests.support.peers import peer

ON_THE_CPU = {
    "numpy": lambda: np.ones(3),
    "numpy, of objects": lambda: np.array([object()]),
    "a scalar": lambda: np.float32(3),
    "masked": lambda: np.ma.masked_array([1]),
    "list": lambda: [[1, 2], [3, 4]],
    "number": lambda: 2.5,
    "bytes": lambda: b"abc",
    "array": lambda: array.array("d", [1]),
    "tensor": lambda: bridge.ones(3),
    "torch": lambda: peer("torch").ones(3),
    "torch, with a gradient": lambda: peer("torch").ones(3, requires_grad=True),
    "jax": lambda: peer("jax.numpy").ones(3),
    "tvm_ffi": lambda: peer("tvm_ffi").from_dlpack(np.ones(3)),
}


@pytest.mark.parametrize("name", ON_THE_CPU)
def test_on_the_cpu(name):
    assert bridge.device_of(ON_THE_CPU[name]()) is bridge.device("cpu")


@pytest.mark.parametrize("device", ["ext_dev:1", "opencl:0", "opencl:1", "vulkan:0"])
def test_on_a_device(device):
    backend_or_skip(device.partition(":")[0])
    if bridge.device(device) not in bridge.devices(device.partition(":")[0]):
        pytest.skip(f"there is no {device}")
    tensor = bridge.ones(3, device=device)
    for x in (tensor, tensor[1:], tensor.to_native()):
        assert bridge.device_of(x) is tensor.device


@pytest.mark.parametrize("kind", [1, 2, 3, 8, 9, 99])
def test_the_device_of_a_producer(kind):
    """Also one that no backend here serves."""
    from tests.support.raw_producer import Producer

    found = bridge.device_of(Producer(device=(kind, 0)))
    assert found.dlpack == (kind, 0)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ones(3).__dlpack__(), "consume the capsule"),
        (np.ndarray, "the class numpy.ndarray is not a tensor"),
        ("cpu", "builtins.str is not a tensor"),
        (None, "NoneType is not a tensor"),
    ],
)
def test_what_is_refused(x, message):
    with pytest.raises(TypeError, match=message):
        bridge.device_of(x)


def test_a_tensor_without_memory_is_refused_as_everywhere():
    torch = peer("torch")
    with pytest.raises(bridge.ExchangeError, match="a meta or fake tensor"):
        bridge.device_of(torch.ones(2, device="meta"))
