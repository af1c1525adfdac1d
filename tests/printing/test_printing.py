"""print(t): the elements as numpy prints them, by a copy of what is shown; it does not fail."""

from __future__ import annotations

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge import printing
from tests.support.expected_parts import backend_or_skip
from tests.support.peers import peer
from tests.support.scripts import run_script

ARRAYS = {
    "small": np.arange(6.0).reshape(2, 3),
    "no dimensions": np.array(2.5),
    "empty": np.zeros((0, 3)),
    "long": np.arange(2000),
    "wide": np.arange(6000.0).reshape(40, 50, 3),
    "transposed": np.arange(4000).reshape(2, 2000).T,
    "reversed": np.arange(4000)[::-3],
    "bools": np.arange(1400).reshape(7, 200) % 3 == 0,
    "complex": np.arange(1200) * 1j,
    "small numbers": np.arange(1001) * 1e-7,
    "nan": np.array([1, np.nan, -np.inf]),
}


def elements_of(tensor):
    """What ``print(tensor)`` shows of the elements: all before the line about the type."""
    text = str(tensor)
    assert f"{tensor}" == text
    described = f"{tensor.dtype} {tensor.shape} on {tensor.device}"
    elements = text.removesuffix(described)
    assert elements != text
    gap = "\n" if "\n" in elements[:-1] else "  "
    assert elements.endswith(gap)
    return elements.removesuffix(gap)


@pytest.mark.parametrize("device", ["cpu", "ext_dev:1", "opencl:0"])
@pytest.mark.parametrize("name", ARRAYS)
def test_it_looks_as_numpys(name, device):
    backend_or_skip(device.partition(":")[0])
    tensor = bridge.to_device(ARRAYS[name], device)
    assert elements_of(tensor) == str(ARRAYS[name])


def test_numpys_options_count():
    array = np.arange(100.0).reshape(10, 10) / 3
    with np.printoptions(precision=2, threshold=5, edgeitems=1):
        assert elements_of(bridge.to_device(array, "ext_dev:0")) == str(array)
    sevens = np.full((10, 10), 7.0)
    with np.printoptions(threshold=5, edgeitems=0):
        assert elements_of(bridge.to_device(sevens, "ext_dev:0")) == str(sevens)


@pytest.mark.parametrize("shape", [(10_000, 10_000), (10**8,)])
def test_only_what_is_shown_is_copied(shape):
    large = bridge.empty(shape, "uint8", "ext_dev:0")
    with bridge.trace() as moves:
        text = str(large)
    assert "..." in text
    assert moves.nbytes == 6 ** len(shape)


@pytest.mark.parametrize("device", ["cpu", "ext_dev:1"])
@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        ("int4", -3, "[-3 -3 -3]"),
        ("uint2", 3, "[3 3 3]"),
        ("float4_e2m1fn", 1.5, "[1.5 1.5 1.5]"),
        ("int4x2", -3, "[[-3 -3]\n [-3 -3]\n [-3 -3]]"),
        ("bfloat16", 0.5, "[0.5 0.5 0.5]"),
        ("float32x2", 0.5, "[[0.5 0.5]\n [0.5 0.5]\n [0.5 0.5]]"),
    ],
)
def test_types_that_numpy_does_not_have(device, dtype, value, text):
    peer("ml_dtypes")
    assert elements_of(bridge.full(3, value, dtype, device)) == text


@pytest.mark.parametrize("device", ["cpu", "ext_dev:1"])
@pytest.mark.parametrize("name", ["uint4", "uint1", "uint6", "uint3x3"])
@pytest.mark.parametrize("shape", [(20_001,), (301, 403), (7, 101, 203), (4, 30_001)])
def test_packed_elements_look_as_numpys_wherever_rows_begin(device, name, shape):
    """A row may begin at any bit of a byte."""
    dtype = bridge.dtype(name)
    size = int(np.prod(shape))
    codes = np.arange((size + 8) // 8 * 8 * dtype.lanes) * 7 % 11 % (1 << dtype.bits)
    packed = np.frombuffer(bridge.pack_bits(codes.astype("u1"), dtype), "u1")
    tensor = bridge.to_device(packed, device, copy=True).view(dtype)[:size].reshape(shape)
    tail = (dtype.lanes,) if dtype.lanes > 1 else ()
    wanted = codes.astype("u1")[: size * dtype.lanes].reshape(*shape, *tail)
    assert elements_of(tensor) == str(wanted)


def test_packed_elements_with_gaps_and_without_dimensions():
    large = bridge.full((60, 4000), 1, "uint4")
    assert "only compact tensors" in str(large[:, :2000])
    with np.printoptions(threshold=0):
        assert elements_of(bridge.full((), 1, "uint4")) == "1"
        assert elements_of(bridge.full((3,), 1, "uint4")) == "[1 1 1]"


@pytest.mark.parametrize("shape", [(10_000, 10_001), (10**8 + 1,)])
def test_many_packed_elements_are_not_copied_to_be_shown(shape):
    large = bridge.empty(shape, "uint4", "ext_dev:0")
    with bridge.trace() as moves:
        text = str(large)
    assert "elements cannot be shown" in text
    assert "print a part, t.reshape(-1)[:1000]" in text
    assert not moves.plans
    assert elements_of(large.reshape(-1)[:2]).startswith("[")


def test_vectors_of_a_large_tensor():
    text = elements_of(bridge.full(2000, 2, "int8x2", "ext_dev:0"))
    assert text.count("[2 2]") == 6
    assert "..." in text


def test_what_cannot_be_read_says_why():
    with bridge.ones(3).host_view() as view:
        assert elements_of(view) == "[1. 1. 1.]"
    assert repr(view) == "dlbridge.Tensor(a host view that has expired)"
    assert str(view).startswith(f"{view!r}, whose elements cannot be shown: ExchangeError: ")
    other = bridge.ones(3, device="ext_dev:0")
    with other.host_view() if not bridge.plan(other, "cpu").nbytes else bridge.ones(3).host_view():
        assert "Tensor" in repr(other)


def test_a_type_that_nobody_knows():
    assert "elements cannot be shown" in str(bridge.empty(3, "handle"))


def test_an_interrupt_passes(monkeypatch):
    """A Ctrl-C while the copy runs is not taken for a fault of the tensor."""

    def interrupted(_tensor, _device):
        raise KeyboardInterrupt

    monkeypatch.setattr(printing, "to_device", interrupted)
    with pytest.raises(KeyboardInterrupt):
        str(bridge.ones(3))


def test_repr_in_a_child_and_of_a_device_without_a_backend():
    backend_or_skip("opencl")
    run_script(
        """
        import os, ctypes, dlbridge as bridge
        t = bridge.ones(3, device="opencl:0")
        pid = os.fork()
        if not pid:
            text = repr(t) + str(t)
            os._exit(0 if "opencl:0" in text and "cannot be shown" in text else 1)
        assert os.waitpid(pid, 0)[1] == 0
        """
    )
