"""New tensors: their values, their memory, and what is refused."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.peers import peer

SHAPES = [(), 0, 3, (2, 0), (2, 3, 4), [5]]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bool", "complex64", "int16", "uint8"])
def test_ones_and_zeros_are_numpys(device, shape, dtype):
    for name in ("ones", "zeros"):
        made = getattr(bridge, name)(shape, dtype, device)
        wanted = getattr(np, name)(shape, dtype)
        assert (str(made.device), made.shape) == (str(bridge.device(device)), wanted.shape)
        assert made.tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        *((7, "uint8"), (-1, "int64"), (0.1, "float32"), (1.5, "float16"), (2 - 1j, "complex128")),
        *((float("nan"), "float64"), (2**64 - 1, "uint64"), (np.float32(0.5), "float64")),
    ],
)
def test_full_is_numpys(device, value, dtype):
    made = bridge.full((3, 5), value, dtype, device)
    assert made.tobytes() == np.full((3, 5), value, dtype).tobytes()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        *((True, "bool"), (3, "int64"), (3.0, "float32"), (3j, "complex64")),
        *((np.int16(3), "int16"), (np.float64(3), "float64")),
        *((2**63 - 1, "int64"), (-(2**63), "int64"), (2**63, "uint64")),  # as `asarray` does it
    ],
)
def test_the_type_follows_the_number(value, name):
    made = bridge.full(2, value)
    assert (str(made.dtype), made.tolist()) == (name, [value, value])


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_types_that_numpy_does_not_have(device, dtype):
    peer("ml_dtypes")
    assert bridge.ones(3, dtype, device).tolist() == [1, 1, 1]


@pytest.mark.parametrize("size", [1, 7, 8, 9])
@pytest.mark.parametrize(("dtype", "value", "code"), [("int4", -3, 13), ("uint2", 2, 2)])
def test_packed_elements(device, dtype, value, code, size):
    peer("ml_dtypes")
    made = bridge.full(size, value, dtype, device)
    assert not made.is_padded
    assert bridge.unpack_bits(made.tobytes(), made.dtype, size).tolist() == [code] * size
    assert made.tolist() == [value] * size
    one = made[:1].reshape(())
    assert (one.item(), bridge.full(size, one, device=device).tolist()) == (value, [value] * size)


def test_each_lane_is_filled(device):
    made = bridge.full(3, 1.5, "float32x4", device)
    assert made.tobytes() == np.full(12, 1.5, "float32").tobytes()


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_blocks(more):
    """A device is filled from a block of 4 MiB, again and again; the last part may be shorter."""
    made = bridge.full((2 << 20) + more, 0.1, "float32", "ext_dev:0")
    assert made.tobytes() == np.full((2 << 20) + more, 0.1, "float32").tobytes()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bridge.full(3, 300, "uint8"), ValueError, "300"),
        (lambda: bridge.full(3, 0.5, "int32"), ValueError, "0.5"),
        (lambda: bridge.full(3, "x", "int8"), TypeError, "str, not a number"),
        (lambda: bridge.full(3, [1], "int8"), TypeError, "list, not a number"),
        (lambda: bridge.full(3, None), TypeError, "NoneType, not a number"),
        (lambda: bridge.ones_like(np.float32), TypeError, "the class numpy.float32"),
        (lambda: bridge.zeros_like(object()), TypeError, "object is not a tensor"),
        (lambda: bridge.ones(2**60, "float64"), MemoryError, "bytes"),
    ],
)
def test_what_is_refused(call, error, message):
    plugin = bridge.backend("cpu")
    gc.collect()
    before = plugin.live_allocations()
    with pytest.raises(error, match=message):
        call()
    gc.collect()
    assert plugin.live_allocations() == before


@pytest.mark.parametrize("make", [bridge.empty, bridge.zeros, bridge.ones])
@pytest.mark.parametrize("alignment", [1, 512, 4096, 1 << 16])
def test_the_address_is_aligned(make, alignment):
    assert make(3, alignment=alignment).data_ptr() % max(alignment, 256) == 0
    assert bridge.full(3, 7, alignment=alignment).data_ptr() % max(alignment, 256) == 0
    assert bridge.ones_like([1, 2], alignment=alignment).data_ptr() % max(alignment, 256) == 0


LIKE = {
    "empty_like": bridge.empty_like,
    "zeros_like": bridge.zeros_like,
    "ones_like": bridge.ones_like,
    "full_like": lambda x, **more: bridge.full_like(x, 2, **more),
}


@pytest.mark.parametrize("name", LIKE)
def test_like_another(name, device):
    model = bridge.to_device(np.arange(6, dtype="int16").reshape(2, 3), device).transpose()
    made = LIKE[name](model)
    assert (made.shape, made.dtype, made.device) == (model.shape, model.dtype, model.device)
    assert made.is_contiguous()
    assert made.data_ptr() != model.data_ptr()
    if name != "empty_like":
        wanted = {"zeros_like": 0, "ones_like": 1, "full_like": 2}[name]
        assert made.tolist() == [[wanted] * 2] * 3


@pytest.mark.parametrize("name", LIKE)
def test_like_another_with_a_type_and_a_device(name):
    made = LIKE[name](np.zeros((2, 0, 3)), dtype="uint8", device="ext_dev:1")
    assert (made.shape, str(made.dtype), str(made.device)) == ((2, 0, 3), "uint8", "ext_dev:1")


@pytest.mark.parametrize("library", ["torch", "jax.numpy"])
def test_like_an_array_of_another_library(library):
    array = peer(library).ones((2, 3))
    assert bridge.zeros_like(array).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_elements_that_are_several_packed_numbers_in_whole_bytes():
    """Each second number of an int4x2 was 0."""
    tensor = bridge.full(3, -3, "int4x2")
    assert tensor.tobytes() == b"\xdd" * 3
    assert bridge.full(2, 3, "uint2x4").tobytes() == b"\xff" * 2
    assert bridge.full(2, 1, "uint4x4").tobytes() == b"\x11" * 4


@pytest.mark.parametrize("make", [bridge.empty, bridge.zeros, bridge.ones])
def test_none_is_no_dtype(make):
    with pytest.raises(TypeError, match="NoneType is not a dtype"):
        make(3, None)
