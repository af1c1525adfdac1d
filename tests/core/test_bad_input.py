"""Wrong values in lists, files and arguments, and what each way in does with them.

One call and its message: a row of ``test_messages.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from dlbridge_fake import Array

import dlbridge as bridge
from dlbridge.core.values.layout import shares_places
from dlbridge.extending import Memory, tensor_on
from tests.support.peers import peer


@pytest.mark.parametrize("index", [10**30, -(10**30), 1 << 63])
def test_an_index_that_no_dimension_has(index):
    with pytest.raises(IndexError, match=rf"index {index} is out of bounds"):
        bridge.zeros((2, 3))[index]


@pytest.mark.parametrize("shape", [np.array([2, 3]), range(2, 4), (np.int8(2), 3), [2, -1]])
def test_a_shape_of_any_integers(shape):
    """As `zeros` takes it."""
    assert bridge.ones(6).reshape(shape).shape == (2, 3)
    assert bridge.ones(6).reshape(np.array(6)).shape == (6,)


@pytest.mark.parametrize("shape", [{2, 3}, {2: 0, 3: 0}])
def test_a_shape_has_an_order(shape):
    with pytest.raises(TypeError, match="pass the extents"):
        bridge.ones(6).reshape(shape)


def test_only_minus_one_is_inferred():
    t = bridge.zeros((2, 3))
    assert t.reshape(-1, 2).shape == (3, 2)
    for shape in ((-5,), (-2, 3), ((-5, 2),)):
        with pytest.raises(ValueError, match="only -1 is inferred"):
            t.reshape(*shape)


def test_any_later_version_is_ours():
    for t in (bridge.zeros(3, "bfloat16"), bridge.empty((0, 2))):
        for version in ((2**70, 0), (1, 2**70), (2, 0)):
            assert "versioned" in repr(t.__dlpack__(max_version=version))
        for version in (None, (-(2**70), 0), (0, 8)):
            assert "versioned" not in repr(t.__dlpack__(max_version=version))


def test_shapes_that_no_struct_holds():
    where = Memory(bridge.device("cpu:0"), 0, "nowhere")
    with pytest.raises(bridge.ExchangeError, match="more than numpy can describe"):
        tensor_on(where, bridge.dtype("float32"), (0, 2**63))


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("call", [bridge.from_dlpack, bridge.asarray, bridge.explain])
def test_torchs_extents_that_numpy_cannot_describe(call, kind):
    torch = peer("torch")
    x = torch.zeros((0, 2**62), dtype=getattr(torch, kind))
    with pytest.raises(bridge.ExchangeError, match=f"{2**62}.*{kind}.*smaller extents"):
        call(x, *(["cpu"] if call is bridge.explain else []))
    assert bridge.from_dlpack(x.reshape(0)).shape == (0,)


@pytest.mark.parametrize(
    ("stream", "error"),
    [("a", TypeError), (True, TypeError), (1.5, TypeError), (7, ValueError), (0, ValueError)],
)
def test_host_memory_has_no_streams(stream, error):
    torch = peer("torch")
    for source in (
        np.zeros(3),
        torch.zeros(3),
        bridge.zeros(3),
        torch.zeros(3).__dlpack__(),
        peer("jax").numpy.zeros(3),
    ):
        with pytest.raises(error, match="host memory has no streams"):
            bridge.from_dlpack(source, stream=stream)
        if type(source).__name__ != "PyCapsule":
            assert bridge.from_dlpack(source, stream=-1).shape == (3,)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 21])
def test_a_type_by_number_is_the_type(number):
    assert bridge.device(f"type{number}:0") is bridge.device((number, 0))
    assert bridge.Device(number, 0, f"type{number}") is bridge.device((number, 0))


def test_a_class_is_no_tensor():
    for cls in (np.ndarray, peer("torch").Tensor, bridge.Tensor):
        for take in (bridge.asarray, bridge.from_dlpack):
            with pytest.raises(TypeError, match=rf"the class .*{cls.__name__} is not a tensor"):
                take(cls)


def test_the_command_line_and_a_closed_pipe():
    command = [sys.executable, "-m", "dlbridge"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"dlbridge {bridge.__version__}\n"
    process = subprocess.Popen(
        [*command, "info"],
        env={**os.environ, "DLBRIDGE_BACKENDS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 1


CHANGED = [
    ([99], "int4", r"99 at \[0\]"),
    ([[1, 2], [3, 9]], "int4", r"9 at \[1, 1\]"),
    ([300], "uint8", "300"),
    (500, "uint8", "500"),
    ([-1], "uint8", "-1"),
    ([2**70], "int64", "too large"),
    ([1.5], "int32", r"1.5 at \[0\]"),
    ([1e30], "int32", "1e\\+30"),
    ([float("nan")], "int32", "NaN"),
    ([2], "bool", r"2 at \[0\]"),
    (2, "bool", "value 2 cannot"),
    (2**64, "bool", f"value {2**64} cannot"),
    ([2**64], "bool", rf"value {2**64} at \[0\] cannot"),
    (2**5000, "bool", r"value \d{80} cannot"),
    ([1 + 2j], "float32", "complex"),
    ([np.complex64(1 + 1j)], "int32", "1\\+1j"),
    ([np.complex64(1 + 1j)], "float32", "1\\+1j"),
    ([0.0, 1e40], "float32", r"1e\+40 at \[1\]"),
    ([2**1100], "float64", "too large"),
    ([7.0], "float4_e2m1fn", "7.0"),
    ([1e3], "float8_e4m3fn", "1000.0"),
    ([float("inf")], "float8_e4m3fn", "inf"),
    ([float("nan")], "float4_e2m1fn", "nan"),
    ([2**63 + 1, -1], None, r"9223372036854775809 at \[0\]"),
    ([2**53 + 1, 1.5], None, r"9007199254740993 at \[0\]"),
    # A NaN beside it, in either part.
    ([2**53 + 1, float("nan")], None, r"9007199254740993 at \[0\]"),
    ([complex(0, float("nan")), 2**53 + 1], None, r"9007199254740993 at \[1\]"),
    # The other sign, with the same bits or with more of them.
    ([np.int64(-1)], "uint64", r"-1 at \[0\]"),
    ([1, np.int8(-1)], "uint64", r"-1 at \[1\]"),
    ([np.int8(-1)], "uint8", r"-1 at \[0\]"),
    ([np.array([5, -1])], "uint64", r"-1 at \[0, 1\]"),
    ([np.array([2**63], "u8")], "int64", r"9223372036854775808 at \[0, 0\]"),
    ([np.array([200], "u1")], "int8", r"200 at \[0, 0\]"),
]


@pytest.mark.parametrize(("numbers", "dtype", "says"), CHANGED, ids=str)
def test_no_number_is_changed_in_silence(numbers, dtype, says):
    with pytest.raises(ValueError, match=rf"{says}.*astype"):
        bridge.asarray(numbers, dtype=dtype)


KEPT = [
    ([1.0, -3.0], "int32", [1, -3]),
    ([3, -8], "int4", [3, -8]),
    ([1, 0, True], "bool", [True, False, True]),
    ([2**64 - 1], "uint64", [2**64 - 1]),
    ([3.4028235e38, 0.1], "float32", [float(np.float32(3.4028235e38)), float(np.float32(0.1))]),
    ([6.5], "float4_e2m1fn", [6.0]),
    ([2**70], "float64", [2.0**70]),
    ([2**70, 1.5], "float64", [2.0**70, 1.5]),
    ([float("inf")], "float16", [float("inf")]),
    ([1 + 2j], "complex64", [1 + 2j]),
    ([2**60, 1.5], None, [2.0**60, 1.5]),
    ([2**60, float("inf")], None, [2.0**60, float("inf")]),
    ([], "int8", []),
    ([np.int8(-1), np.uint8(200)], "int16", [-1, 200]),
    ([np.array([2**63 - 1], "u8")], "int64", [[2**63 - 1]]),
    ([np.array([-1, 2**65], object)], "float64", [[-1, 2.0**65]]),
    ([np.array([-1, 3], object)], "int8", [[-1, 3]]),
    ([np.complex64(-1)], "int8", [-1]),
]


def test_small_types_of_several_libraries_in_a_list():
    ml_dtypes = peer("ml_dtypes")
    int4, float8, wider = ml_dtypes.int4, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
    with pytest.raises(ValueError, match=r"the value -3 at \[1\] cannot become uint8"):
        bridge.asarray([np.uint8(2), int4(-3)], dtype="uint8")
    assert bridge.asarray([np.uint8(2), int4(3)], dtype="uint8").tolist() == [2, 3]
    for numbers in (
        [np.uint8(255), float8(2)],
        [np.int8(127), wider(2)],
        [np.uint8(255), ml_dtypes.float8_e4m3b11fnuz(1)],
    ):
        with pytest.raises(ValueError, match="common type"):
            bridge.asarray(numbers)
    assert bridge.asarray([np.uint8(16), float8(2)]).tolist() == [16, 2]
    assert bridge.asarray([int4(-3), int4(2)]).tolist() == [-3, 2]
    assert bridge.asarray([float8(1.5), float8(2)]).tolist() == [1.5, 2]


@pytest.mark.parametrize(("numbers", "dtype", "values"), KEPT, ids=str)
def test_numbers_that_a_type_has(numbers, dtype, values):
    assert bridge.asarray(numbers, dtype=dtype).tolist() == values


def test_exact_integers_beside_a_nan():
    made = bridge.asarray([2**60, float("nan")]).tolist()
    assert made[0] == 2**60
    assert made[1] != made[1]


@pytest.mark.filterwarnings("error")
def test_half_floats_in_a_list_warn_of_nothing():
    assert bridge.asarray([np.float16(1.5), np.float16("inf")]).tolist() == [1.5, float("inf")]


def test_complex_numbers_of_ml_dtypes():
    if not hasattr(peer("ml_dtypes"), "complex32"):
        pytest.skip("complex32 is new in ml_dtypes 0.6")
    assert bridge.asarray([1 + 2j, 3], dtype="complex32").tolist() == [1 + 2j, 3]
    assert bridge.full(2, 1 + 2j, "complex32").tolist() == [1 + 2j] * 2
    half = bridge.asarray([1 + 2j], dtype="complex32").numpy()
    assert bridge.asarray([half], dtype="complex64").tolist() == [[1 + 2j]]
    for number in (1e9 + 2j, 1 + 1e9j):
        with pytest.raises(ValueError, match="cannot become complex32"):
            bridge.asarray([number], dtype="complex32")
    for wanted in ("float32", "bfloat16", "int8"):
        with pytest.raises(ValueError, match=r"at \[0, 0\] cannot become"):
            bridge.asarray([half], dtype=wanted)


def test_the_sign_of_small_types():
    """The types of ml_dtypes have another kind than numpy's integers."""
    ml_dtypes = peer("ml_dtypes")
    with pytest.raises(ValueError, match=r"-1 at \[0, 0\]"):
        bridge.asarray([np.array([-1], ml_dtypes.int4)], dtype="uint8")
    assert bridge.asarray([np.array([7], ml_dtypes.int4)], dtype="uint8").tolist() == [[7]]
    assert bridge.asarray([ml_dtypes.bfloat16(-1)], dtype="int8").tolist() == [-1]


FLOATS = [code.name[3:].lower() for code in bridge.DLDataTypeCode if "Float" in code.name[3:]]
FLOATS = [name for name in FLOATS if name not in ("float", "bfloat")]


@pytest.mark.parametrize("dtype", [*FLOATS, "bfloat16", "float16", "float32", "float64"])
def test_every_float_takes_what_it_has(dtype):
    peer("ml_dtypes")
    assert bridge.asarray([1.0, 2.0], dtype=dtype).tolist() == [1, 2]
    if dtype != "float64":
        with pytest.raises(ValueError, match=r"1e\+40 at \[1\]"):
            bridge.asarray([1.0, 1e40], dtype=dtype)


NO_NUMBERS = [
    ([None, 1], r"None at \[0\] is not a number.*; make a number of it"),
    ([[1, 2], [3, "a"]], r"'a' at \[1, 1\] is not a number.*; make a number of it"),
    (["5"], r"'5' at \[0\] is not a number"),
    ([b"x"], r"b'x' at \[0\] is not a number"),
    ([object()], r"at \[0\] is not a number"),
    ([{}], r"{} at \[0\] is not a number"),
    ([Fraction(1, 2)], r"Fraction\(1, 2\) at \[0\] is not a number"),
    ([np.datetime64("2020-01-01")], r"datetime64\(.*\) at \[0\] is not a number.*view\('int64'\)"),
]


@pytest.mark.parametrize("dtype", [None, "float32"])
@pytest.mark.parametrize(("numbers", "says"), NO_NUMBERS, ids=lambda it: str(it).partition("0x")[0])
def test_the_element_that_is_no_number_is_named(numbers, says, dtype):
    with pytest.raises(TypeError, match=says):
        bridge.asarray(numbers, dtype=dtype)


def test_objects_need_a_type():
    with pytest.raises(TypeError, match=r"arrays of Python objects.*dtype='float64'"):
        bridge.asarray([np.array([1, 2], object)])


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ([2**64], rf"the integer {2**64} at \[0\] is beyond every integer type"),
        ([[1], [-(2**63) - 1]], rf"the integer {-(2**63) - 1} at \[1, 0\] is beyond"),
        (2**64, f"the integer {2**64} is beyond"),
        ([1.5, 2**100_000], r"the integer of 100001 bits at \[1\] is beyond"),
    ],
    ids=["first", "negative", "alone", "long"],
)
def test_an_integer_that_no_type_has_is_named(numbers, says):
    with pytest.raises(ValueError, match=f"{says}.*dtype='float64'"):
        bridge.asarray(numbers)


@pytest.mark.parametrize("ask", [bridge.plan, bridge.explain])
def test_a_plan_does_not_use_a_capsule_up(ask):
    capsule = np.arange(3.0).__dlpack__()
    with pytest.raises(TypeError, match=r"from_dlpack\(capsule\)"):
        ask(capsule, "cpu")
    assert bridge.from_dlpack(capsule).tolist() == [0, 1, 2]


@pytest.mark.parametrize("take", [bridge.asarray, bridge.from_dlpack])
@pytest.mark.parametrize("wrong", [{"device": "nowhere"}, {"copy": 3}], ids=str)
def test_a_wrong_argument_does_not_use_a_capsule_up(take, wrong):
    capsule = np.arange(3.0).__dlpack__()
    with pytest.raises((TypeError, ValueError)):
        take(capsule, **wrong)
    assert bridge.from_dlpack(capsule).tolist() == [0, 1, 2]


def test_no_copy_into_elements_that_share_memory():
    base = np.zeros((1, 3))
    wide = np.ndarray((2, 3), "f8", base, strides=(0, 8))
    # (Some releases of numpy export such an array as read-only, which is refused before.)
    with pytest.raises(bridge.ExchangeError, match=r"share one place in memory|is read-only"):
        bridge.copy_(wide, np.ones((2, 3)))
    assert not base.any()
    bridge.copy_(np.ndarray((1, 3), "f8", base, strides=(0, 8)), np.ones((1, 3)))
    assert base.all()


@pytest.mark.parametrize("device", ["cpu", "ext_dev:0"])
@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        *(((3, 2), (1, 1)), ((2, 3), (1, 1)), ((3, 1, 2), (1, 9, 1)), ((4, 4), (3, 1))),
        *(((3, 2), (1, -1)), ((2, 2, 2), (3, 2, 1)), ((1000, 1000), (999, 1))),
    ],
    ids=str,
)
def test_no_copy_into_windows_that_overlap(device, shape, strides):
    memory = bridge.zeros(1 << 20, "uint8", device)
    operand = memory[10:].operand()
    where = 0, operand.data, operand.byte_offset, "uint8", shape, strides
    native = bridge.protocol.NativeArray(*where, False, memory)
    if device == "cpu":
        target = np.ndarray(shape, "u1", memory.numpy(), 10, strides)
    else:
        target = bridge.asarray(Array(native), device=device)
    with pytest.raises(bridge.ExchangeError, match=r"share one place in memory.*windows"):
        bridge.copy_(target, np.ones(shape, "u1"))
    assert not bridge.to_device(memory, "cpu").numpy().any()


def test_more_elements_than_numpy_can_describe_overlap():
    assert shares_places((2,) * 64, (1,) * 64)
    assert shares_places((1 << 40, 1 << 40), (2, 2))
    assert not shares_places((1 << 40, 1 << 20), (1 << 21, 2))


def test_which_strides_overlap():
    """The decision is that of all offsets, one by one; others are written, each element once."""
    random = np.random.default_rng(7)
    both = [0, 0]
    for _ in range(3000):
        ndim = int(random.integers(1, 5))
        shape = tuple(map(int, random.integers(0 if ndim == 4 else 1, 6, ndim)))
        strides = tuple(map(int, random.integers(-20, 21, ndim)))
        index = np.indices(shape).reshape(ndim, -1)
        offsets = np.asarray(strides) @ index
        wanted = len(set(offsets.tolist())) < offsets.size
        assert shares_places(shape, strides) is wanted, (shape, strides)
        both[wanted] += 1
        if not wanted:
            memory, source = np.zeros(400, "u1"), random.integers(1, 255, shape, "u1")
            target = np.ndarray(shape, "u1", memory, -offsets.min(initial=0), strides)
            bridge.copy_(target, source)
            assert np.array_equal(target, source), (shape, strides)
            assert np.count_nonzero(memory) == source.size, (shape, strides)
    assert min(both) > 300


@pytest.mark.parametrize(
    ("dtype", "what"),
    [
        ("type_code(42)_8", "type code 42 is not in"),
        ("void", "64 bits, not 0"),
        ((0, 0, 1), "bits, not 0"),
        ((2, 7, 1), "16 or 32 or 64 bits, not 7"),
        ((2, 32, 0), "lanes must be at least 1"),
    ],
)
@pytest.mark.parametrize("shape", [(4,), (0,), ()])
def test_new_tensors_are_of_dtypes_that_can_be_exchanged(dtype, what, shape):
    """What is made here can be handed on: every import, ours too, refuses the others."""
    for make in (bridge.empty, bridge.zeros):
        with pytest.raises(BufferError, match=rf"{what}.*dlpack\.h 1\.3|{what} dlpack\.h 1\.3"):
            make(shape, dtype)
    with pytest.raises(BufferError, match=f"{what}"):
        bridge.zeros(4, "uint8").view(dtype)


NO_SHAPES = ["x", 2.5, None, (2, None), (2, "3"), {"a": 1}]
NEW = [
    *(
        ({"alignment": each}, TypeError, r"alignment .* is not a number of bytes")
        for each in ("a", None, 1.5, True)
    ),
    *(
        ({"alignment": each}, ValueError, r"alignment .* is not a power of two from 1 to")
        for each in (-256, 3, 1 << 40, 1 << 70)
    ),
    *(
        ({"shape": each}, ValueError, "extents are 0 or more and int64")
        for each in ((0, 2**63), (2**70,), -1)
    ),
    *(
        ({"shape": each}, TypeError, r"shape .* is not an integer, or integers")
        for each in NO_SHAPES
    ),
]


@pytest.mark.parametrize(("given", "error", "says"), NEW, ids=str)
def test_new_tensors_that_cannot_be(given, error, says):
    with pytest.raises(error, match=says) as caught:
        bridge.empty(**{"shape": 3, **given})
    if given.get("shape") in NO_SHAPES and "shape" in given:
        assert isinstance(caught.value.__cause__, TypeError)
