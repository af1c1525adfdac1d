"""Tensor.view to an element of another size: the same memory, on every device."""

from __future__ import annotations

import gc
import mmap
import re
import weakref

import numpy as np
import pytest
from hypothesis import given, strategies as st

import dlbridge as bridge
from tests.support.expected_parts import backend_or_skip

WHOLE = ["uint8", "int16", "bfloat16", "float32", "float64", "complex64", "complex128", "float32x2"]
PACKED = ["int4", "uint2", "float4_e2m1fn", "uint1", "float6_e2m3fn", "int4x3", "float32x3"]


def octets(count=96):
    return np.arange(count, dtype="uint8")


@pytest.fixture(params=["cpu", "ext_dev:1"])
def place(request):
    return request.param


@pytest.mark.parametrize("dtype", [*WHOLE, *PACKED])
def test_bytes_become_elements_and_bytes_again(place, dtype):
    t = bridge.to_device(octets().reshape(2, 48), place, copy=True)
    kind = bridge.dtype(dtype)
    view = t.view(dtype)
    assert view.dtype is kind
    assert view.shape == (2, 48 * 8 // (kind.bits * kind.lanes))
    assert view.device is t.device
    assert view.nbytes == t.nbytes
    assert view.data_ptr() == t.data_ptr()
    assert view.tobytes() == octets().tobytes()
    back = view.view("uint8")
    assert (back.shape, back.tolist()) == (t.shape, t.tolist())


@pytest.mark.parametrize("first", WHOLE[:-1])
@pytest.mark.parametrize("second", WHOLE[:-1])
def test_every_pair_as_numpy_does(first, second):
    a = octets(192).view(bridge.dtype(first).numpy).reshape(4, -1)
    view = bridge.asarray(a).view(second)
    expected = a.view(bridge.dtype(second).numpy)
    assert view.shape == expected.shape
    assert view.tobytes() == expected.tobytes()


@given(
    st.sampled_from(["uint8", "int16", "float32", "complex64"]),
    st.sampled_from(["uint8", "int16", "float32", "complex64"]),
    st.lists(st.one_of(st.slices(4), st.none()), max_size=3),
    st.booleans(),
)
def test_strided_views_are_those_of_numpy_or_refused(first, second, index, turned):
    a = octets(4 * 4 * 4 * 8).view(first)[: 4 * 4 * 4].copy().reshape(4, 4, 4)
    a = a.transpose(1, 0, 2) if turned else a
    a = a[tuple(index[: 3 + index.count(None)])] if len(index) - index.count(None) <= 3 else a
    try:
        view = bridge.from_dlpack(a).view(second)
    except BufferError:
        return
    expected = a.view(second)
    assert view.shape == expected.shape
    assert view.tobytes() == expected.tobytes()
    if view.size:
        assert view.data_ptr() == expected.ctypes.data


def test_the_low_bits_come_first():
    """P37: as dlpack.h packs elements below a byte."""
    t = bridge.asarray(np.array([0x21, 0xF3], "uint8"))
    codes = bridge.unpack_bits(t.view("uint4").tobytes(), bridge.dtype("uint4"), 4)
    assert codes.tolist() == [1, 2, 3, 15]
    assert t.view("uint4")[2:].view("uint8").tolist() == [0xF3]
    assert t.view("int4").view("uint2").shape == (8,)


@pytest.mark.parametrize("where", ["cpu", "ext_dev:1", "opencl:0", "vulkan:0"])
@pytest.mark.parametrize("index", [np.s_[:], np.s_[::2], np.s_[:, 1:], np.s_[::-1, ::2], np.s_[3]])
@pytest.mark.parametrize("second", ["float64", "int16", "float32x3", "float6_e2m3fn", "complex128"])
def test_whoever_follows_the_hint_gets_the_view(where, index, second):
    backend_or_skip(where.partition(":")[0])
    a = np.arange(77, dtype="float32").reshape(7, 11)[index]
    for t in (
        bridge.to_device(np.arange(77, dtype="float32").reshape(7, 11), where, copy=True)[index],
        bridge.to_device(a, where, copy=True)[..., 1:],
    ):
        try:
            t.view(second)
        except BufferError as exc:
            (way,) = re.findall(r"to_device\(t.*copy=True\)", str(exc))
            view = eval(way, {"to_device": bridge.to_device, "t": t}).view(second)
            assert view.size
            numbers = np.frombuffer(view.tobytes(), "float32")
            assert set(numbers.tolist()) <= set(np.ravel(t.tolist()))


def test_outer_strides_are_counted_in_new_elements(place):
    t = bridge.to_device(octets().reshape(6, 16), place, copy=True)
    view = t[::2, 4:12].view("uint32")
    assert (view.shape, view.strides) == ((3, 2), (8, 1))
    assert view.byte_offset == t[::2, 4:12].byte_offset
    expected = octets().reshape(6, 16)[::2, 4:12].copy().view("uint32")
    assert view.tolist() == expected.tolist()
    assert t[::2, 4:12].view("int4").strides == (64, 1)
    assert t[::-1].view("uint64").tolist() == octets().view("uint64").reshape(6, 2)[::-1].tolist()


REFUSED = [
    (lambda t: t.reshape(96)[0].view("float32"), "reshape\\(1\\)"),
    (lambda t: t[:, :15].view("uint16"), "15 elements has 120 bits.*t\\[..., :14\\]"),
    (lambda t: t[:, :14].view("float6_e2m3fn"), "112 bits"),
    (lambda t: t[:, ::2].view("uint16"), "stride 2.*copy=True"),
    (lambda t: t.T.view("uint16"), "stride 16.*copy=True"),
    (lambda t: t.reshape(8, 12)[:, :8].view("uint64"), "96 bits apart.*copy=True"),
    (lambda t: t.reshape(96)[2:94].view("float32"), "multiple of 4 bytes.*2 past one.*copy=True"),
    (lambda t: t.reshape(96)[1:13].view("float32x3"), "multiple of 4 bytes.*1 past one"),
    (lambda t: t.view(bridge.DType.of(2, 31)), "31"),
]


@pytest.mark.parametrize(("attempt", "message"), REFUSED)
def test_refusals_name_the_rule_and_the_way_out(place, attempt, message):
    t = bridge.to_device(octets().reshape(6, 16), place, copy=True)
    with pytest.raises(BufferError, match=f"(?s){message}"):
        attempt(t)
    assert t.view("uint16").shape == (6, 8)


def test_complex_numbers_are_aligned_as_their_parts():
    t = bridge.to_device(octets(), "ext_dev")[8:72]
    assert t.view("complex128").shape == (4,)


def test_the_copy_that_the_message_names_helps():
    t = bridge.asarray(octets())[2:94]
    copied = bridge.to_device(t, t.device, copy=True).view("float32")
    assert copied.tobytes() == octets()[2:94].tobytes()


def test_tensors_without_elements(place):
    t = bridge.empty((3, 0), "float32", place)
    assert t.view("uint8").shape == (3, 0)
    assert t.view("int4").shape == (3, 0)
    assert bridge.empty((0, 4), "uint8", place).view("uint16").shape == (0, 2)


def test_one_element_may_have_any_stride():
    a = octets()[::96]
    assert bridge.from_dlpack(a).view("int4").shape == (2,)


def test_a_view_of_read_only_memory_is_read_only():
    a = octets()
    a.flags.writeable = False
    assert bridge.from_dlpack(a).view("float32").readonly
    assert bridge.from_dlpack(a).view("int4").readonly
    assert not bridge.from_dlpack(octets()).view("float32").readonly


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int4"])
def test_a_view_keeps_the_memory_and_writes_into_it(dtype):
    a = octets()
    died = weakref.ref(a)
    view = bridge.from_dlpack(a).view(dtype)
    assert "numpy.ndarray" in repr(view)
    a[:8] = 7
    view.view("uint8").numpy()[0] = 9
    assert a[0] == 9
    del a
    gc.collect()
    assert view.tobytes()[:2] == bytes([9, 7])
    del view
    gc.collect()
    assert died() is None


@pytest.mark.parametrize("dtype", ["uint8", "float64", "int4", "complex64"])
@pytest.mark.parametrize("given_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_a_host_view_knows_of_its_views(device, dtype, given_dtype):
    """Its block may not end while somebody has the memory."""
    backend_or_skip(device)
    t = bridge.to_device(octets(), device, copy=True).view(given_dtype)
    with pytest.raises(BufferError, match="still used"), t.host_view() as h:
        kept = h.view(dtype)
    del kept, h


def test_padded_elements_take_a_byte_each():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    t = bridge.asarray(np.array([1, -2, 3, 4], ml_dtypes.int4))
    assert t.is_padded
    as_bytes = t.view("uint8")
    assert (as_bytes.shape, as_bytes.is_padded, as_bytes.nbytes) == ((4,), False, 4)
    assert t.view("uint4").is_padded
    assert t.view("int32").shape == (1,)
    with pytest.raises(BufferError, match="view\\('uint8'\\)"):
        t.view("uint2")


ROWS = {"gaps": slice(None, None, 2), "backwards": slice(None, None, -1)}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_a_device_gets_all_of_the_memory_of_packed_elements_with_gaps(device, rows):
    backend_or_skip(device)
    memory = mmap.mmap(-1, 4 * mmap.PAGESIZE)  # it begins at a page
    array = np.frombuffer(memory, "u1").reshape(4, -1)
    array[:] = np.arange(array.size).reshape(array.shape) % 251
    part = array[ROWS[rows]]
    packed = bridge.asarray(part).view("int4")
    there = bridge.to_device(packed, device, copy=False)
    assert (there.shape, there.strides) == (packed.shape, packed.strides)
    assert bridge.to_device(there.view("uint8"), "cpu").tolist() == part.tolist()


@pytest.mark.parametrize("dtype", ["int4", "float6_e2m3fn"])
@pytest.mark.parametrize("rows", ROWS)
def test_the_span_of_packed_elements_with_gaps(dtype, rows):
    part = bridge.asarray(octets(48).reshape(4, 12)[ROWS[rows]])
    assert part.view(dtype).operand().span() == part.operand().span()
