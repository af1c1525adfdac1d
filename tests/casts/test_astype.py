"""astype: layouts, packed and padded elements, sources, refusals, memory, threads."""

from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

import dlbridge as bridge
from tests.support.astype_values import NAMES, bits_of, numpy_of, reference, result_bits, tensor_of
from tests.support.peers import peer
from tests.support.scripts import run_script
from tests.support.threads import at_once


@given(
    st.sampled_from([(7, 11, 5), (40, 9), (301,), (2, 3, 4, 5)]),
    st.data(),
    st.sampled_from(["int4", "bfloat16", "float8_e4m3fn", "float64", "float6_e2m3fn"]),
)
def test_strided_sources(shape, data, target):
    a = np.arange(np.prod(shape), dtype="float32").reshape(shape) % 7
    a = a.transpose(data.draw(st.permutations(range(a.ndim))))
    index = data.draw(st.lists(st.slices(8), max_size=a.ndim))
    a = a[tuple(index)]
    t = bridge.astype(a, target)
    assert t.shape == a.shape
    assert t.is_contiguous()
    assert np.array_equal(result_bits(t), bits_of(reference(a, target)))


@pytest.mark.parametrize("target", ["int4", "uint2", "float6_e3m2fn", "bfloat16", "float32"])
def test_strided_sources_of_several_chunks(target):
    for shape in ((70000, 3, 2), (3, 70000, 2), (2, 3, 70001), (1, 300, 301, 2)):
        a = (np.arange(np.prod(shape), dtype="int16") % 8).reshape(shape)[..., ::-1]
        a = a.swapaxes(0, 1)
        t = bridge.astype(a, target)
        expected = bits_of(reference(a, target))
        assert np.array_equal(result_bits(t), expected), shape


def test_broadcast_and_empty_and_single_elements():
    one = np.broadcast_to(np.float32(3), (300, 300))
    assert bridge.astype(one, "int4").tobytes() == b"\x33" * 45000
    for shape in ((0,), (3, 0), (0, 5)):
        t = bridge.astype(np.zeros(shape, "float32"), "int4")
        assert (t.shape, t.nbytes) == (shape, 0)
    t = bridge.astype(np.float32(2.5).reshape(()), "float8_e5m2")
    assert (t.shape, float(t.item())) == ((), 2.5)
    assert bridge.astype(np.array(5, "int8"), "int4").tobytes() == b"\x05"


PACKED = {"int4", "uint2", "uint1", "float6_e2m3fn", "int8"}


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 9, 32767, 32768, 32769, 65537])
@pytest.mark.parametrize("source", [name for name in NAMES if name in PACKED])
def test_packed_elements_of_any_number(source, count):
    codes = (np.arange(count) % (1 << min(bridge.dtype(source).bits, 7))).astype("u1")
    array = codes.view(numpy_of(source))
    for target in {"uint4", "int2", "uint1", "float6_e3m2fn", "float32"} & set(NAMES):
        t = bridge.astype(tensor_of(array, source), target)
        assert t.shape == (count,)
        assert np.array_equal(result_bits(t), bits_of(reference(array, target)))
        spare = -count * t.dtype.bits % 8
        assert spare == 0 or t.tobytes()[-1] >> 8 - spare == 0, "unused bits are zero"


def test_padded_elements_whose_high_bits_mean_nothing():
    raw = np.array([0xF3, 0x0F, 0x88], "u1").view(ml_dtypes.int4)
    t = bridge.asarray(raw)
    assert t.is_padded
    assert bridge.astype(t, "float32").tolist() == [3.0, -1.0, -8.0]
    assert not bridge.astype(t, "int4").is_padded
    assert bridge.astype(t[::2], "int8").tolist() == [3, -8]


@pytest.mark.parametrize("target", ["float32", "int8", "bfloat16", "int4", "float8_e4m3fn", "bool"])
def test_bytes_of_bool_that_are_neither_0_nor_1_are_true(target):
    t = bridge.asarray(np.array([2, 0, 1, 255], "u1")).view("bool")
    numbers = bridge.astype(bridge.astype(t, target), "int16")
    assert numbers.tolist() == [1, 0, 1, 1]


def test_one_element_may_have_any_stride():
    numbers = np.lib.stride_tricks.as_strided(np.arange(8.0), (1, 3, 1), (7992, 8, 616))
    for target in ("int4", "float8_e4m3fn", "bfloat16", "float64"):
        back = bridge.astype(bridge.astype(numbers, target), "float32")
        assert back.tolist() == numbers.tolist()


def test_vectors_of_several_lanes():
    numbers = np.arange(24, dtype="float32")
    for lanes in (2, 3, 4):
        t = bridge.asarray(numbers).view(f"float32x{lanes}").reshape(2, -1)
        half = bridge.astype(t, f"float16x{lanes}")
        assert (half.shape, half.dtype) == (t.shape, f"float16x{lanes}")
        assert half.tobytes() == numbers.astype("float16").tobytes()
        four = bridge.astype(t, f"uint4x{lanes}")
        assert four.tobytes() == bridge.pack_bits(
            np.arange(24, dtype="u1") % 16, bridge.dtype("uint4")
        )
        assert (
            bridge.astype(four, f"int8x{lanes}").tobytes()
            == (np.arange(24) % 16).astype("i1").tobytes()
        )
        turned = bridge.astype(t.transpose(), f"float64x{lanes}")
        assert (
            turned.tobytes()
            == np.ascontiguousarray(numbers.reshape(2, -1, lanes).swapaxes(0, 1))
            .astype("f8")
            .tobytes()
        )


def test_memory_that_is_not_aligned():
    raw = np.zeros(4 * 70000 + 1, "u1")
    a = raw[1:].view("float32")
    a[...] = np.arange(70000) % 100
    for target in ("bfloat16", "float8_e4m3fn", "int4", "float64"):
        assert np.array_equal(
            result_bits(bridge.astype(a, target)), bits_of(reference(a.copy(), target))
        )


def test_the_result_is_new_memory_and_the_source_stays():
    a = np.arange(4, dtype="float32")
    a.flags.writeable = False
    t = bridge.astype(a, "float32")
    assert not t.readonly
    assert not np.shares_memory(t.numpy(), a)
    assert t.tolist() == a.tolist()
    assert t.data_ptr() % 256 == 0


def test_any_librarys_tensors():
    torch = peer("torch")
    x = torch.linspace(-500, 500, 70001)
    t = bridge.astype(x.bfloat16(), torch.float32)
    assert torch.equal(bridge.from_dlpack(t, like="torch"), x.bfloat16().float())
    t = bridge.astype(x, torch.float8_e5m2)
    assert torch.equal(
        bridge.from_dlpack(t, like="torch").view(torch.uint8),
        x.to(torch.float8_e5m2).view(torch.uint8),
    )
    assert bridge.astype([[1, 2], [3, 4]], float).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert bridge.astype(b"\x01\x02", "int16").tolist() == [1, 2]
    assert bridge.astype(True, "int8").item() == 1


def test_without_ml_dtypes():
    """numpy's own types are converted, others refused with the way out."""
    said = run_script(
        """
        import sys
        sys.modules["ml_dtypes"] = None
        import numpy as np, dlbridge as bridge
        a = np.array([1.5, -300.0, 1e9])
        assert bridge.astype(a, "float16").tolist() == [1.5, -300.0, float("inf")]
        assert bridge.astype(a, "int8", saturate=True).tolist() == [1, -128, 127]
        assert bridge.astype(np.arange(70000, dtype="uint16"), "float16").shape == (70000,)
        for source, target in ((a, "bfloat16"), (bridge.zeros(2, "int4"), "int8")):
            try:
                bridge.astype(source, target)
            except BufferError as error:
                print(error)
        """
    )
    for line, name in zip(said.splitlines(), ("bfloat16", "int4"), strict=True):
        assert f"astype cannot convert {name}" in line
        assert "pip install ml_dtypes" in line


def test_expired_tensors_are_refused():
    with bridge.zeros(3).host_view() as h:
        assert bridge.astype(h, "int8").tolist() == [0, 0, 0]
    with pytest.raises(BufferError, match="expired"):
        bridge.astype(h, "int8")
    with pytest.raises(BufferError, match="expired"):
        h.view("uint8")


@pytest.mark.parametrize("target", ["float32", "int4"])
def test_the_host_converts_what_is_on_a_device(target):
    t = bridge.to_device(np.arange(3, dtype="float16"), "ext_dev")
    with bridge.trace() as trace:
        made = bridge.astype(t, target)
    assert (made.device, made.tolist()) == ("cpu", [0, 1, 2])
    # To the host first, and the conversion: nothing is unsaid.
    assert [plan.nbytes for plan in trace] == [t.nbytes, made.nbytes]


REFUSED = [
    ("float32", "float32x2", "lanes.*view"),
    ("float32", "uint3", "uint3.*pip install|neither.*uint3"),
    ("float32", "handle", "handle"),
    ("float32", "type_code(42)_8", "42"),
]


@pytest.mark.parametrize(("source", "target", "message"), REFUSED)
def test_refusals(source, target, message):
    with pytest.raises(BufferError, match=f"(?s){message}"):
        bridge.astype(np.zeros(4, source), target)


def test_what_is_refused_is_not_copied_before():
    t = bridge.to_device(np.zeros(4, "float32"), "ext_dev")
    with bridge.trace() as trace, pytest.raises(BufferError, match="lanes"):
        bridge.astype(t, "float32x2")
    assert not list(trace)


def test_other_refusals():
    with pytest.raises(TypeError, match="dtype"):
        bridge.astype(np.zeros(2), object())
    with pytest.raises(TypeError):
        bridge.astype(object(), "int8")
    with pytest.raises(TypeError, match="True or False, not 'yes'"):
        bridge.astype([1], "int8", saturate="yes")
    with pytest.raises(BufferError, match="uint5"):
        bridge.astype(bridge.empty(8, "uint5"), "uint8")
    packed = bridge.empty((4, 8), "int4")[:, ::2]
    with pytest.raises(BufferError, match="take the part of the result"):
        bridge.astype(packed, "int8")
    pad = bridge.zeros(2, "int4x3")
    assert bridge.astype(pad, "int8x3").tobytes() == bytes(6)


def test_temporary_memory_is_bounded():
    a = np.zeros((4096, 1024), "float32").T
    bridge.astype(a, "float8_e4m3fn")
    for target in ("float8_e4m3fn", "int4", "bfloat16", "float64"):
        tracemalloc.start()
        t = bridge.astype(a, target)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < t.nbytes + (2 << 20), target


def test_threads():
    """Each call has its own temporary arrays; the tables are shared."""
    a = np.linspace(-400, 400, 1 << 18, dtype="float32")
    expected = bits_of(reference(a, "float8_e4m3fn"))

    def work():
        return [result_bits(bridge.astype(a, "float8_e4m3fn")) for _ in range(3)]

    for found in at_once(4, work):
        assert all(np.array_equal(each, expected) for each in found)
