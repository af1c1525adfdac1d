"""What the compiled binding does, and this one does too: values, equality, small tools."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import dlbridge
from dlbridge import ffi
from dlbridge.ffi._lib import C
from tests.ffi.producers import c_function
from tests.support.peers import peer


@pytest.mark.parametrize("value", ["12345678", "text with\0NUL", b"12345678", b"\0" * 9, "x" * 500])
def test_long_text_and_bytes_go_as_objects(value):
    """A callee that takes an object refuses a ``const char *``."""
    seen = []

    @c_function
    def look(_self, arguments, _count, _result):
        seen.append(arguments[0].type_index)
        return 0

    for _ in range(3):  # found in a cache, later
        look(value)
    kind = C.kTVMFFIStr if isinstance(value, str) else C.kTVMFFIBytes
    assert seen == [kind] * 3


def test_the_cache_of_texts_is_bounded(echo):
    from dlbridge.ffi import any as words

    for i in range(3 * words._CACHED_TEXTS):
        assert echo(f"number {i}") == f"number {i}"
    assert len(words._texts) <= words._CACHED_TEXTS
    long = "y" * 10_000
    assert echo(long) == long
    assert long not in words._texts


def test_a_text_of_another_class_is_not_taken_for_one_in_the_cache(echo):
    class Same(str):
        __slots__ = ()

        def __eq__(self, other):
            return True

        def __hash__(self):
            return hash("a text in the cache")

    assert echo("a text in the cache") == "a text in the cache"
    assert str.__eq__(echo(Same("quite another text")), "quite another text")


@pytest.mark.parametrize("kind", [ffi.Array, ffi.List])
def test_membership_is_strict(kind):
    values = kind([1, 2.5, "x", None, [1, 2], float("nan")])
    for inside in (1, 2.5, "x", None, [1, 2], (1, 2), float("nan"), np.int64(1)):
        assert inside in values
        assert values.count(inside) == 1
    for outside in (1.0, True, 2, "y", b"x", [1, 2.0], [2, 1]):
        assert outside not in values
        assert values.count(outside) == 0
        with pytest.raises(ValueError, match="is not in the"):
            values.index(outside)
    assert values.index("x") == 2
    assert values.index([1, 2], -3) == 4
    with pytest.raises(ValueError, match="is not in the"):
        values.index("x", 3)


@pytest.mark.parametrize("kind", [ffi.Array, ffi.List])
def test_membership_of_tensors(kind):
    one, other = dlbridge.zeros(3), dlbridge.zeros(3)
    values = kind([one, "x"])
    assert one in values
    assert other not in values  # a tensor of three elements has no truth value
    assert "x" in values


def test_a_list_removes_what_is_strictly_equal():
    values = ffi.List([True, 1.0, 1])
    values.remove(1)
    assert [type(item) for item in values] == [bool, float]


def test_repr_of_complex_tensors():
    tensor = np.ones(2, "complex64")
    assert "complex64" in repr(ffi.Array([1, tensor]))
    assert "complex64" in repr(ffi.Dict({"a": tensor}))


def nested(depth, kind=ffi.List):
    value = kind([])
    for _ in range(depth):
        value = kind([value])
    return value


def test_repr_of_what_is_nested_deep():
    assert repr(nested(1000)).count("[") == 1001
    assert repr(nested(100_000)) == "<List of size 1, nested more than 2000 levels deep>"


def test_the_depth_of_shared_parts_counts_where_they_lie_deepest():
    """Each element alone is looked at first, and is a level deeper than the one before."""
    parts = [ffi.List([])]
    for _ in range(5000):
        parts.append(ffi.List([parts[-1]]))
    with pytest.raises(RecursionError, match="nested more than 2000"):
        ffi.structural_hash(ffi.List(parts))
    assert "nested more than" in repr(ffi.List(parts))


def test_pickling_what_contains_itself():
    loop = ffi.List([1])
    loop.append(loop)
    with pytest.raises(ValueError, match="a List contains itself"):
        pickle.dumps(loop)
    table = ffi.Dict()
    table["me"] = [table]
    with pytest.raises(ValueError, match="contains itself"):
        pickle.dumps(table)


@pytest.mark.parametrize("size", [2**63, -(2**63) - 1, 10**30])
def test_dimensions_have_64_bits(size):
    with pytest.raises(ValueError, match="int of 64 bits"):
        ffi.Shape((1, size))
    assert ffi.Shape((2**63 - 1,))[0] == 2**63 - 1


def test_dtype_constants(echo):
    assert ffi.float32 == dlbridge.dtype("float32")
    assert echo(ffi.bfloat16) == dlbridge.dtype("bfloat16")
    tvm_ffi = peer("tvm_ffi")
    for name in dir(tvm_ffi):
        if isinstance(getattr(tvm_ffi, name), tvm_ffi.dtype) and name != "bool":
            assert str(getattr(ffi, name)) == str(getattr(tvm_ffi, name)), name


def test_release_gil(echo):
    assert echo.release_gil is True
    echo.release_gil = True
    with pytest.raises(ValueError, match="always releases the GIL"):
        echo.release_gil = False


# --- dataclasses ------------------------------------------------------------------


@pytest.fixture
def pair(testing):
    """An object with fields of each kind."""
    return ffi.object_class("testing.TestIntPair")(3, 4)


def test_fields(pair):
    assert [field.name for field in ffi.dataclasses.fields(pair)] == ["a", "b"]
    assert ffi.dataclasses.fields(type(pair)) == ffi.dataclasses.fields(pair)
    assert ffi.dataclasses.is_dataclass(pair)
    assert ffi.dataclasses.is_dataclass(type(pair))
    assert not ffi.dataclasses.is_dataclass(3)
    for wrong in (3, int, ffi.Array([1]), None):
        with pytest.raises(TypeError, match="registered type"):
            ffi.dataclasses.fields(wrong)


def test_asdict_and_astuple(pair):
    assert ffi.dataclasses.asdict(pair) == {"a": 3, "b": 4}
    assert ffi.dataclasses.astuple(pair) == (3, 4)
    for convert in (ffi.dataclasses.asdict, ffi.dataclasses.astuple, ffi.dataclasses.replace):
        with pytest.raises(TypeError, match="not its class"):
            convert(type(pair))


def test_replace(testing):
    cls = ffi.object_class("testing.TestCxxClassBase")
    before = cls(1, 2)
    after = ffi.dataclasses.replace(before, v_i32=5)
    assert type(after) is type(before)
    assert (after.v_i64, after.v_i32) == (1, 5)
    assert (before.v_i64, before.v_i32) == (1, 2)
    assert ffi.dataclasses.asdict(ffi.dataclasses.replace(before)) == ffi.dataclasses.asdict(
        copy.copy(before)
    )
    with pytest.raises(TypeError, match=r"no field 'z'.*v_i32"):
        ffi.dataclasses.replace(before, z=1)


# --- Names and values that scripts for tvm_ffi use -------------------------------------

LANES = ["float32x4", "float32xvscalex4", "boolxvscalex8", "int8xvscalex1", "float32xvscalex32768"]
REFUSED = ["float32x0", "float32xvscalex0", "float32x65536", "float32xvscalex65536"]


@pytest.mark.parametrize("name", LANES)
def test_lanes(name):
    theirs = peer("tvm_ffi").dtype(name)
    ours = ffi.dtype(name)
    assert (ours.code, ours.bits, ours.lanes) == (
        theirs.type_code,
        theirs.bits,
        theirs.lanes % 65536,
    )
    assert ours.name == name
    assert ffi.dtype(theirs) is ours


@pytest.mark.parametrize("name", REFUSED)
def test_lanes_that_are_refused(name):
    for dtype in (peer("tvm_ffi").dtype, ffi.dtype):
        with pytest.raises(ValueError, match=r"[Ll]anes"):
            dtype(name)


@pytest.mark.parametrize("name", ["cpu", "cuda", "opencl", "vulkan", "rocm", "ext_dev"])
def test_the_type_of_a_device_equals_its_name(name):
    ours, theirs = ffi.device(name).type, peer("tvm_ffi").device(name)
    assert theirs.type == name
    assert ours == name
    assert name == ours
    assert not ours != name  # noqa: SIM202 - the operator itself
    assert ours != "metal"
    assert ours == theirs.dlpack_device_type()
    assert hash(ours) == hash(int(ours))
    assert {int(ours): "found"}[ours] == "found"


def test_methods_of_tensors():
    array = np.ones((2, 3))
    for tensor in (peer("tvm_ffi").from_dlpack(array), ffi.from_dlpack(array)):
        assert tensor.numel() == 6
        assert tensor.same_as(tensor)
        assert not tensor.same_as(type(tensor))


def test_requirements():
    array = np.ones((4, 6))
    odd = np.frombuffer(bytes(17), "u1")[1:].view("u4")
    for from_dlpack in (peer("tvm_ffi").from_dlpack, ffi.from_dlpack):
        assert from_dlpack(array, require_contiguous=True).shape == (4, 6)
        assert from_dlpack(array[:, ::2]).shape == (4, 3)
        # tvm_ffi's documentation says ValueError, and 0.1.15 raises RuntimeError.
        with pytest.raises((ValueError, RuntimeError), match="contiguous"):
            from_dlpack(array[:, ::2], require_contiguous=True)
    with pytest.raises(ValueError, match="aligned to 4096"):
        ffi.from_dlpack(odd, require_alignment=4096)
