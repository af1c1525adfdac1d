"""Tensor: metadata, views, numpy, lists, pickles, words."""

from __future__ import annotations

import copy
import ctypes
import gc
import operator
import pickle
import sys
import weakref

import numpy as np
import pytest
from hypothesis import given, strategies as st

import dlbridge as bridge
from tests.support.peers import peer

EXT = "ext_dev:1"


def array(shape=(4, 6), dtype="float32"):
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape).copy()


@pytest.fixture(params=["cpu", EXT])
def pair(request):
    """A tensor, and a numpy array with the same elements."""
    values = array()
    return bridge.to_device(values, request.param, copy=True), values


# Metadata ---------------------------------------------------------------------


def test_metadata(pair):
    t, _ = pair
    assert (t.shape, t.ndim, t.size, t.itemsize, t.nbytes) == ((4, 6), 2, 24, 4, 96)
    assert t.strides == (6, 1)  # elements, as in DLPack
    assert t.dtype is bridge.dtype("float32")
    assert t.is_contiguous()
    assert not t.readonly
    assert len(t) == 4


@pytest.mark.parametrize("name", ["torch", "jax.numpy", "tvm_ffi"])
def test_the_repr_says_whose_memory_it_is(name):
    library = peer(name)
    x = library.from_dlpack(array()) if name == "tvm_ffi" else library.zeros((2, 3))
    assert type(x).__qualname__ in repr(bridge.from_dlpack(x))


# Views ------------------------------------------------------------------------


@pytest.mark.parametrize("index", [-1, (1, 2), (..., 2), ..., (), np.int64(2)], ids=repr)
def test_indexing_equals_numpys(pair, index):
    """Of slices and None: `test_any_basic_index_equals_numpys`."""
    t, a = pair
    view = t[index]
    assert view.shape == a[index].shape
    assert view.tolist() == a[index].tolist()


def test_views_share_memory(pair):
    t, a = pair
    bridge.copy_(t[1:3, 2:4], np.full((2, 2), 7, "float32"))
    a[1:3, 2:4] = 7
    assert t.tolist() == a.tolist()


def test_views_keep_memory_alive():
    a = array()
    alive = weakref.ref(a)
    view = bridge.from_dlpack(a)[1:].transpose()
    del a
    gc.collect()
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("index", [[0, 1], np.array([0]), True, "a", 1.0], ids=repr)
def test_other_indices_are_refused(pair, index):
    t, _ = pair
    with pytest.raises(TypeError, match="indexed by int, slice, None and Ellipsis"):
        t[index]


@pytest.mark.parametrize("shape", [(24,), (2, 12), (-1, 3), (1, 4, 6, 1), (2, -1, 3)])
def test_reshape(pair, shape):
    t, a = pair
    assert t.reshape(shape).tolist() == a.reshape(shape).tolist()
    assert t.reshape(*shape).data_ptr() == t.data_ptr()


def test_reshape_never_copies(pair):
    t, _ = pair
    with pytest.raises(BufferError, match="copy=True"):
        t.transpose().reshape(24)


def test_reshape_to_another_size(pair):
    with pytest.raises(ValueError, match="25"):
        pair[0].reshape(25)
    with pytest.raises(ValueError, match="cannot reshape"):  # no copy would help
        pair[0].reshape(5, -1)


@pytest.mark.parametrize("axes", [(0, 1), (0, 0, 1), (0, 1, 3)])
def test_transpose_of_other_axes_says_how(axes):
    """torch swaps the two that it gets."""
    t = bridge.zeros((2, 3, 4))
    with pytest.raises(ValueError, match=r"name each axis once, as in t\.transpose\(2, 1, 0\)$"):
        t.transpose(*axes)
    assert t.transpose(2, 1, 0).shape == (4, 3, 2)


def test_transpose(pair):
    t, a = pair
    assert t.T.tolist() == a.T.tolist()
    assert t.transpose(1, 0).strides == (1, 6)
    with pytest.raises(ValueError, match="2 dimensions"):
        t.reshape(24).T


def test_views_of_packed_elements_begin_at_whole_bytes():
    """P37: two elements of four bits in a byte, the first in the low bits."""
    t = bridge.empty((8,), "float4_e2m1fn")
    assert t.nbytes == 4
    assert t[2:].data_ptr() == t.data_ptr() + 1
    with pytest.raises(BufferError, match="whole byte"):
        t[1:]


@given(st.lists(st.one_of(st.integers(-4, 3), st.slices(4), st.none()), max_size=4))
def test_any_basic_index_equals_numpys(index):
    a = array((4, 4, 4), "int16")
    index = tuple(index)
    if sum(part is not None for part in index) > 3:
        return
    for t in (bridge.from_dlpack(a), bridge.to_device(a, EXT)):
        assert t[index].tolist() == a[index].tolist()


# Out ----------------------------------------------------------------------------


def test_the_array_protocol():
    a = array()
    t = bridge.from_dlpack(a)
    assert np.shares_memory(np.asarray(t), a)
    assert np.asarray(t, dtype="float64").dtype == "float64"
    assert not np.shares_memory(np.array(t), a)
    with pytest.raises(ValueError, match="float32 cannot become float64 without a copy"):
        t.__array__(np.dtype("float64"), copy=False)
    # numpy asks by the array interface, or by the buffer protocol (3.12), and refuses by itself.
    with pytest.raises(ValueError, match="Unable to avoid copy"):
        np.asarray(t, dtype="float64", copy=False)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the buffer protocol in Python is PEP 688's")
def test_the_buffer_protocol():
    a = array()
    with memoryview(bridge.from_dlpack(a)) as view:
        assert (view.shape, view.format) == ((4, 6), "f")
        assert view[1, 1] == 7


def test_views_of_a_devices_memory_are_refused():
    t = bridge.to_device(array(), EXT)
    for read in (lambda: t.numpy(copy=False), lambda: memoryview(t), lambda: t.__buffer__(0)):
        with pytest.raises((BufferError, TypeError), match=r"to_device|bytes-like"):
            read()


def test_item():
    assert bridge.asarray([7]).item() == 7
    assert bridge.to_device(array(), EXT)[1, 2].item() == 8.0
    with pytest.raises(ValueError, match="one element"):
        bridge.asarray([1, 2]).item()


@pytest.mark.parametrize("name", ["int4", "int4x2", "int4x3", "float4_e2m1fn", "float32x4"])
def test_lists_of_packed_elements_and_of_vectors(name):
    t = bridge.full((2, 4), 1, name, EXT)
    element = 1 if t.dtype.lanes == 1 else [1] * t.dtype.lanes
    assert t.tolist() == [[element] * 4] * 2
    assert t[1, 0].item() == element


def test_truth_and_membership():
    assert bridge.asarray([7])
    assert not bridge.to_device(np.zeros(1), EXT)
    with pytest.raises(ValueError, match="neither true nor false"):
        bool(bridge.asarray([1, 2]))
    for vector in ("int4x2", "int4x3", "float32x4"):
        with pytest.raises(ValueError, match="neither true nor false"):
            bool(bridge.zeros(1, vector))
    assert 1.0 in bridge.asarray([1.0])
    assert 2.0 not in bridge.to_device(np.ones(3), EXT)
    for use in (len, list):  # without dimensions
        with pytest.raises(TypeError, match="len"):
            use(bridge.asarray(3))
    assert [row.tolist() for row in bridge.asarray([[1, 2], [3, 4]])] == [[1, 2], [3, 4]]


def test_matrix_transpose():
    a = np.arange(24).reshape(2, 3, 4)
    assert bridge.from_dlpack(a).mT.tolist() == a.mT.tolist()


# Pickles ------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize("device", ["cpu", EXT])
@pytest.mark.parametrize(
    "dtype",
    ["bfloat16", "float4_e2m1fn", "int4", "float32x3", "complex128", "bool", "float8_e4m3fn"],
)
def test_pickle_of_other_types(dtype, device, protocol):
    t = bridge.empty((6,), dtype)
    address, nbytes = t.data_ptr(), t.nbytes
    ctypes.memmove(address, bytes(range(nbytes)), nbytes)
    t = bridge.to_device(t, device)
    assert t.tobytes() == bytes(range(nbytes))
    again = pickle.loads(pickle.dumps(t, protocol))
    assert (again.dtype, again.shape, again.device) == (t.dtype, t.shape, t.device)
    assert again.tobytes() == bytes(range(nbytes))


@pytest.mark.parametrize("device", ["cpu", EXT])
@pytest.mark.parametrize(
    "a",
    [
        np.array([1, 2, 3], "i4"),
        np.array(5),
        np.array([300], "i4"),
        np.array([[1, 2], [3, 4]], "u1"),
        np.arange(3.0),
        np.array([], "i8"),
    ],
    ids=str,
)
def test_bytes_are_the_memory_and_no_numbers(a, device):
    """Before Python 3.12 there is no buffer: `bytes` would make one byte of each number."""
    t = bridge.to_device(a, device)
    assert bytes(t) == t.tobytes() == a.tobytes()


def test_copy_and_deepcopy(pair):
    t, a = pair
    again = copy.deepcopy(t)
    assert again.tolist() == a.tolist()
    bridge.copy_(again, np.zeros_like(a))
    assert t.tolist() == a.tolist()


# Numbers (array API 2025.12: __float__, __int__, __complex__, __index__) -------


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("device", ["cpu", EXT])
def test_one_element_is_a_number(shape, device):
    one = bridge.full(shape, 2.5, "float32", device)
    assert (float(one), int(one), complex(one)) == (2.5, 2, 2.5)
    assert type(float(bridge.full(shape, 2, "int8", device))) is float
    assert float(bridge.full(shape, 1.5, "bfloat16", device)) == 1.5
    assert complex(bridge.full(shape, 1j, "complex64", device)) == 1j


@pytest.mark.parametrize("convert", [float, int, complex])
def test_several_elements_are_no_number(convert):
    with pytest.raises(ValueError, match="needs exactly one element, this tensor has 2"):
        convert(bridge.ones(2))


def test_a_complex_number_is_no_float():
    with pytest.raises(TypeError):
        float(bridge.full((), 1j))


@pytest.mark.parametrize("name", ["int8", "uint64"])
def test_one_integer_is_an_index(name):
    two = bridge.full((), 2, name)
    assert operator.index(two) == 2
    assert [1, 2, 3][two] == 3
    assert bridge.asarray([1, 2, 3])[two].item() == 3


@pytest.mark.parametrize(
    "tensor",
    [bridge.ones(1, "int32"), bridge.ones((), "float32"), bridge.ones((), "bool")],
)
def test_what_is_no_index(tensor):
    with pytest.raises(TypeError, match="is not an index"):
        operator.index(tensor)


def test_numpy_takes_a_tensor_of_one_dimension_as_an_array_of_indices():
    assert np.arange(5)[bridge.asarray([3])].tolist() == [3]
    assert np.arange(5)[bridge.asarray([True, False, False, False, True])].tolist() == [0, 4]


# to_device, the method --------------------------------------------------------


def test_the_method_takes_what_the_function_takes():
    tensor = bridge.ones(3)
    assert type(tensor.to_device("cpu", like="numpy")) is np.ndarray
    copied = tensor.to_device("cpu", copy=True)
    assert copied.data_ptr() != tensor.data_ptr()
    assert tensor.to_device(tensor.device) is tensor
    assert tensor.to_device(tensor.device, copy=True) is not tensor
    assert type(tensor.to_device(tensor.device, like="numpy")) is np.ndarray
    with pytest.raises(bridge.ExchangeError, match="copy=False"):
        bridge.ones(3, device=EXT).to_device("cpu", copy=False)


# Classes that are not called ---------------------------------------------------------

KINDS = {
    "of numpy's types": lambda: bridge.zeros(3),
    "of others": lambda: bridge.zeros(3, "bfloat16"),
    "without elements": lambda: bridge.zeros(0),
    "on a device": lambda: bridge.zeros(3, device="ext_dev:1"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "call",
    [
        lambda t: type(t)(),
        lambda t: type(t)([1, 2]),
        lambda t: type(t)(shape=3),
        lambda t: type("Mine", (type(t),), {})(),
        lambda _: bridge.Tensor(),
    ],
)
def test_a_call_of_the_class_says_how_tensors_are_made(kind, call):
    with pytest.raises(TypeError, match=r"not made by calling its class: dlbridge\.from_dlpack"):
        call(KINDS[kind]())


@pytest.mark.parametrize("kind", KINDS)
def test_copies_are_whole(kind):
    t = KINDS[kind]()
    for again in (copy.copy(t), copy.deepcopy(t)):
        assert type(again) is type(t)
        assert again.tobytes() == t.tobytes()
        assert again.device is t.device


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_made_without_the_class_is_not_used(kind):
    """`object.__new__` makes what no class can prevent: it has no memory, and no use of it ends well."""
    for unfinished in (object.__new__(type(KINDS[kind]())), bridge.Tensor.__new__(bridge.Tensor)):
        for use in (
            bridge.from_dlpack,
            bridge.asarray,
            bridge.ffi.from_dlpack,
            np.from_dlpack,
            copy.copy,
            repr,
            bytes,
            lambda x: bridge.to_device(x, "cpu", copy=True),
            lambda x: bridge.ffi.Array([x]),
            lambda x: x.operand(),
            lambda x: x.host_view(),
        ):
            with pytest.raises((AttributeError, TypeError)):
                use(unfinished)
