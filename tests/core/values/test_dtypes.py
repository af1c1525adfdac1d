"""`dlbridge.dtype`: the names and numbers of data types, against the libraries that own them."""

from __future__ import annotations

import pickle
import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from dlbridge import DLDataTypeCode, DType, dtype, pack_bits, unpack_bits
from dlbridge.abi import ffi
from dlbridge.core.values.dtypes import check_numbers
from dlbridge.errors import ExchangeError
from tests.support.peers import peer
from tests.support.raw_producer import struct_in
from tests.support.scripts import run_script

NUMBERS = {  # P34: every type of dlpack.h 1.3, by the name that its owners print
    "bool": (6, 8, 1),
    **{f"int{bits}": (0, bits, 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (1, bits, 1) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (2, bits, 1) for bits in (16, 32, 64)},
    "bfloat16": (4, 16, 1),
    **{f"complex{bits}": (5, bits, 1) for bits in (32, 64, 128)},
    "float8_e3m4": (7, 8, 1),
    "float8_e4m3": (8, 8, 1),
    "float8_e4m3b11fnuz": (9, 8, 1),
    "float8_e4m3fn": (10, 8, 1),
    "float8_e4m3fnuz": (11, 8, 1),
    "float8_e5m2": (12, 8, 1),
    "float8_e5m2fnuz": (13, 8, 1),
    "float8_e8m0fnu": (14, 8, 1),
    "float6_e2m3fn": (15, 6, 1),
    "float6_e3m2fn": (16, 6, 1),
    "float4_e2m1fn": (17, 4, 1),
    **{f"int{bits}": (0, bits, 1) for bits in (1, 2, 4)},
    **{f"uint{bits}": (1, bits, 1) for bits in (1, 2, 4)},
    "handle": (3, 64, 1),
    "float32x4": (2, 32, 4),
    "complex64x2": (5, 64, 2),
    "boolx4": (6, 8, 4),
    "handlex2": (3, 64, 2),
    "bfloat16x8": (4, 16, 8),
    "float8_e4m3b11fnuzx16": (9, 8, 16),
    "float4_e2m1fnx2": (17, 4, 2),
}
NATIVE = [*list(NUMBERS)[:12], "complex64", "complex128"]  # what numpy has by itself
EXTENDED = [name for name in NUMBERS if hasattr(ml_dtypes, name)]  # what it adds to numpy
any_numbers = st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 65535))


def exported(array) -> tuple[int, int, int]:
    """``(code, bits, lanes)`` in the struct of the legacy capsule that *array* exports."""
    capsule = array.__dlpack__()
    found = struct_in(capsule).dl_tensor.dtype
    return found.code, found.bits, found.lanes


# -- The value -----------------------------------------------------------------


def test_codes_are_those_of_the_header():  # P34
    elements = {int(value): name for value, name in ffi.typeof("DLDataTypeCode").elements.items()}
    not_released = {18: "kDLBcomplex"}  # dlpack.h of DLPack's main branch, 2026-11
    assert {int(code): code.name for code in DLDataTypeCode} == elements | not_released


@pytest.mark.parametrize("name", NUMBERS)
def test_every_type_has_its_numbers_and_its_name(name):  # P34, P35
    found = DType.of(*NUMBERS[name])
    assert (found.code, found.bits, found.lanes) == NUMBERS[name]
    assert (found.name, str(found), repr(found)) == (name, name, f"dlbridge.dtype({name!r})")
    assert dtype(name) is found


@given(any_numbers)
def test_any_numbers_make_one_value_with_a_name_of_its_own(numbers):  # P34, C16: open enum
    found = DType.of(*numbers)
    assert found is DType(*numbers)
    assert (found.code, found.bits, found.lanes) == numbers
    assert found.__dlpack_data_type__() == numbers
    assert found == str(found)
    if not found.lanes and found.name != "void":  # a broken struct may say so; a name may not
        with pytest.raises(ValueError, match="lanes are 1 to 65535"):
            dtype(str(found))
        return
    try:  # the name means these numbers and no others, if there is such a type
        assert dtype(str(found)) is found
    except TypeError:
        with pytest.raises(ExchangeError, match=f"not {found.bits} "):
            check_numbers(*numbers)
    assert dtype(numbers) is found
    assert pickle.loads(pickle.dumps(found)) is found


def test_the_attributes_are_plain_ints():
    found = DType.of(DLDataTypeCode.kDLFloat4_e2m1fn, np.int64(4), np.uint8(9))
    assert [type(value) for value in found.__dlpack_data_type__()] == [int, int, int]


@pytest.mark.parametrize(
    "numbers", [(256, 8, 1), (-1, 8, 1), (0, 256, 1), (0, 8, 65536), (0, 8, -1)]
)
def test_numbers_that_the_struct_cannot_hold(numbers):
    with pytest.raises(ValueError, match="does not fit DLDataType"):
        DType.of(*numbers)


def test_importing_it_imports_no_library():
    run_script(
        """
        import sys
        from dlbridge.core.values.dtypes import check_numbers, dtype
        import dlbridge.core.values.devices
        dtype("float4_e2m1fn").nbytes(3), dtype(float), check_numbers(0, 8)
        assert not {"numpy", "ml_dtypes", "torch", "jax", "tvm_ffi"} & sys.modules.keys()
        """
    )


# -- Sizes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "itemsize", "subbyte", "packed7"),
    [
        ("bool", 1, False, 7),
        ("float32", 4, False, 28),
        ("complex128", 16, False, 112),
        ("float32x4", 16, False, 112),
        ("int4", 1, True, 4),
        ("uint1", 1, True, 1),
        ("float6_e2m3fn", 1, True, 6),
        ("float4_e2m1fn", 1, True, 4),
        ("float4_e2m1fnx2", 1, False, 7),
        ("int4x3", 2, True, 11),
        ("handle", 8, False, 56),
        ("type_code(42)_24", 3, False, 21),
    ],
)
def test_sizes(name, itemsize, subbyte, packed7):  # P35, C17, C31
    found = dtype(name)
    assert (found.itemsize, found.is_subbyte) == (itemsize, subbyte)
    assert found.nbytes(7) == packed7
    assert found.nbytes(7, padded=True) == 7 * itemsize
    assert found.nbytes(0) == found.nbytes(0, padded=True) == 0


def test_equality_takes_other_spellings():
    np = pytest.importorskip("numpy")
    found = dtype("float32")
    assert found == "float32"
    assert found == np.float32
    assert found == np.dtype("<f4")
    assert found != "float64"
    assert found != dtype("float64")
    assert found != None  # noqa: E711 - what a user may write
    assert found != object()
    assert {found: 1}[dtype("float32")] == 1


# -- What may cross ------------------------------------------------------------


@pytest.mark.parametrize("name", NUMBERS)
def test_every_type_of_the_header_may_cross(name):  # C16
    assert check_numbers(*NUMBERS[name]) is dtype(name)


@pytest.mark.parametrize(
    ("numbers", "rule"),
    [
        ((42, 8, 1), r"type code 42 is not in dlpack\.h 1\.3"),
        ((18, 32, 1), r"type code 18 is not in .*kDLBcomplex is in DLPack's main .* not released"),
        ((19, 8, 1), r"type code 19 is not in"),
        ((255, 8, 1), r"type code 255 is not in"),
        ((17, 8, 1), r"kDLFloat4_e2m1fn comes in 4 bits, not 8"),
        ((15, 8, 1), r"kDLFloat6_e2m3fn comes in 6 bits, not 8"),
        ((16, 4, 1), r"kDLFloat6_e3m2fn comes in 6 bits, not 4"),
        ((6, 1, 1), r"kDLBool comes in 8 bits, not 1"),
        ((4, 32, 1), r"kDLBfloat comes in 16 bits, not 32"),
        ((12, 16, 1), r"kDLFloat8_e5m2 comes in 8 bits, not 16"),
        ((2, 8, 1), r"kDLFloat comes in 16 or 32 or 64 bits, not 8"),
        ((2, 80, 1), r"kDLFloat comes in .* not 80"),
        ((2, 128, 1), r"kDLFloat comes in .* not 128"),
        ((5, 255, 1), r"kDLComplex comes in 32 or 64 or 128 bits, not 255"),
        ((0, 0, 1), r"kDLInt comes in .* not 0"),
        ((1, 24, 1), r"kDLUInt comes in .* not 24"),
        ((3, 8, 1), r"kDLOpaqueHandle comes in 64 bits, not 8"),
        ((3, 0, 0), r"kDLOpaqueHandle comes in 64 bits, not 0"),
        ((2, 32, 0), r"lanes must be at least 1"),
    ],
)
def test_what_may_not_cross_names_the_rule(numbers, rule):  # C16
    with pytest.raises(ExchangeError, match=rule) as caught:
        check_numbers(*numbers)
    assert isinstance(caught.value, BufferError)
    assert "code={}, bits={}, lanes={}".format(*numbers) in str(caught.value)


def test_the_name_of_a_type_that_is_not_released_is_known():  # C16
    assert dtype("bcomplex32") is DType.of(18, 32)
    assert dtype("float32") != "bcomplex32"


@given(any_numbers)
def test_whatever_passes_the_check_is_of_the_header(numbers):  # C16
    code, bits, lanes = numbers
    try:
        found = check_numbers(code, bits, lanes)
    except ExchangeError:
        one_lane = {numbers[:2] for numbers in NUMBERS.values()}
        assert lanes == 0 or (code, bits) not in one_lane
    else:
        assert lanes > 0
        assert code in set(DLDataTypeCode)
        assert found is DType.of(code, bits, lanes)


# -- Names ---------------------------------------------------------------------


SPELLINGS = {
    "bool": ["?", "bool8", bool],
    "int8": ["|i1"],
    "uint8": ["u1"],
    "int64": ["int", int, np.longlong, np.intp],
    "uint64": [np.ulonglong],
    "float16": ["f2", "half"],
    "float32": ["=f4", "f", "float32x1", np.dtype("f4", metadata={"unit": "m"})],
    # "float" has numpy's meaning, not TVM-FFI's.
    "float64": ["=f8", "d", "float", float, type("Meters", (np.float64,), {})],
    "complex64": ["c8"],
    "complex128": ["complex", complex],
    "handle": ["handle64"],
    "float4_e2m1fnx2": ["float4_e2m1fn_x2"],  # torch's spelling
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_other_spellings(name):
    for spelling in SPELLINGS[name]:
        assert dtype(spelling) is dtype(name)


class Foreign:
    """A dtype of a library that dlbridge does not know."""


Foreign.__module__, Foreign.__qualname__ = "tensorstore", "dtype"

NO_NAMES = ["", "nonsense", "float32x", "xx4", "float32 ", "type_code(x)_8", "torch.float32"]
NO_NAMES += ["float\u0663\u0662"]
NOTHING = [None, 3, 1.5, [], {}, list, DType, np.zeros(2), np.float32(1), b"f4"]
NOTHING += [np.floating, np.generic, np.integer]
NO_NUMBERS = [(0, 8), (0, 8, 1, 1), ("0", 8, 1), (0, 8.0, 1), (0, None, 1), ()]
REFUSED = [
    *((text, TypeError, "is not the name of a dtype") for text in NO_NAMES),
    *((nothing, TypeError, "is not a dtype") for nothing in NOTHING),
    (Foreign(), TypeError, r"^a tensorstore\.dtype is not a dtype: give a name"),
    (Foreign, TypeError, r"^the class tensorstore\.dtype is not a dtype: give a name"),
    (bytearray, TypeError, "^the class bytearray is not a dtype: give a name"),
    *((pair, TypeError, "three integers") for pair in NO_NUMBERS),
    # Names with bits that no type has: these were dtypes, and failed later, as if another
    # library had exported such elements.
    ("float8", TypeError, "float comes in 16 or 32 or 64 bits; did you mean .*'float8_e4m3fn' or"),
    ("float8x4", TypeError, "'float8x4'.*did you mean .*'float8_e4m3fn' or"),
    ("float6", TypeError, "'float6_e2m3fn' or 'float6_e3m2fn'"),
    ("float4", TypeError, "did you mean 'float4_e2m1fn'"),
    ("float99", TypeError, "float comes in 16 or 32 or 64 bits$"),
    ("bfloat17", TypeError, "bfloat comes in 16 bits$"),
    ("int0", TypeError, "int comes in 1 or 2 .* or 64 bits$"),
    ("uint256x2", TypeError, "uint comes in 1 or 2 .* or 64 bits$"),
    ("bool1", TypeError, "bool comes in 8 bits$"),
    ("complex16", TypeError, "complex comes in 32 or 64 or 128 bits$"),
    ("float32x65536", ValueError, "does not fit DLDataType"),
    ("float32x0", ValueError, "does not fit DLDataType"),
    ("type_code(256)_8", ValueError, "does not fit DLDataType"),
    # Foreign byte order: P32. What DLPack cannot carry: P33.
    *(
        (
            np.dtype(kind).newbyteorder(),
            ExchangeError,
            r"endianness.*numpy\.asarray\(x\)\.astype\('",
        )
        for kind in ("f4", "i8", ml_dtypes.bfloat16)
    ),
    ("O", ExchangeError, "objects.*convert"),
    ("S3", ExchangeError, r"strings.*ascontiguousarray\(x\)\.view\('uint8'\)"),
    ("U3", ExchangeError, r"strings.*ascontiguousarray\(x\)\.view\('uint32'\)"),
    ("M8[s]", ExchangeError, r"dates.*numpy\.asarray\(x\)\.view\('int64'\)"),
    ("m8[s]", ExchangeError, r"time spans.*numpy\.asarray\(x\)\.view\('int64'\)"),
    ("V3", ExchangeError, r"raw memory.*ascontiguousarray\(x\)\.view\('uint8'\)"),
    ("i4,f4", ExchangeError, r"structured.*each field"),
    ("2f4", ExchangeError, r"structured"),
    (np.dtypes.StringDType(), ExchangeError, "strings.*encode"),
    (object, ExchangeError, "objects"),
    (str, ExchangeError, "strings"),
    (bytes, ExchangeError, "strings"),
]
if hasattr(ml_dtypes, "bcomplex32"):
    REFUSED.append((ml_dtypes.bcomplex32, ExchangeError, "no such type.*uint8"))


@pytest.mark.parametrize(("given", "error", "says"), REFUSED)
def test_what_is_refused_says_why(given, error, says):  # P32, P33
    with pytest.raises(error, match=says):
        dtype(given)


# -- numpy and ml_dtypes -------------------------------------------------------


@pytest.mark.parametrize("name", NATIVE)
def test_numpy_both_ways(name):  # P34
    theirs = np.dtype(name)
    assert dtype(theirs) is dtype(theirs.type) is dtype(theirs.str) is dtype(name)
    assert dtype(name).numpy is theirs
    assert exported(np.zeros(2, theirs)) == NUMBERS[name]


@pytest.mark.parametrize("name", EXTENDED)
def test_ml_dtypes_both_ways(name):  # P34
    scalar = getattr(ml_dtypes, name)
    assert dtype(scalar) is dtype(np.dtype(scalar)) is dtype(name)
    assert dtype(name).numpy == np.dtype(scalar)
    assert dtype(name).itemsize == np.dtype(scalar).itemsize  # sub-byte: padded, C31


def test_ml_dtypes_has_all_small_floats():  # P34: the list above is not empty by accident
    assert {name for name in NUMBERS if "_e" in name and NUMBERS[name][2] == 1} <= set(EXTENDED)
    assert {"bfloat16", "int2", "int4", "uint2", "uint4"} <= set(EXTENDED)


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("float32x4", "no vector types.*tobytes"),  # C17
        ("float4_e2m1fnx2", "no vector types.*tobytes"),
        ("int3", "neither numpy nor ml_dtypes .*tobytes"),
        ("handle", "neither numpy nor ml_dtypes .*tobytes"),
        ("type_code(42)_8", "neither numpy nor ml_dtypes .*tobytes"),
    ],
)
def test_types_that_numpy_lacks_name_the_way_out(name, way_out):
    with pytest.raises(ExchangeError, match=way_out):
        dtype(name).numpy


def test_without_ml_dtypes_the_error_says_what_to_install():
    printed = run_script(
        """
        import sys; sys.modules["ml_dtypes"] = None
        from dlbridge import dtype
        try: dtype("bfloat16").numpy
        except BufferError as error: print(type(error.__cause__).__name__, error)
        """
    )
    assert printed.startswith(("ImportError", "ModuleNotFoundError"))
    assert "pip install ml_dtypes" in printed
    assert "tobytes" in printed


# -- The other libraries -------------------------------------------------------


def test_torch_dtypes_are_what_torch_exports():  # P34, P35
    torch = peer("torch")
    warnings.simplefilter("ignore", UserWarning)  # some dtypes are experimental, some deprecated
    seen, refused = {}, set()
    for theirs in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        try:
            ours = exported(torch.empty((2,), dtype=theirs))
        except (BufferError, RuntimeError):  # torch itself cannot
            refused.add(str(theirs))
            continue
        seen[str(theirs).removeprefix("torch.")] = (dtype(theirs), ours)
    subbyte = {name for name, (found, _) in seen.items() if found.is_subbyte}
    for name, (found, ours) in seen.items():
        if name in subbyte:  # torch exports its int4 as int8: the wrong type, silently
            assert ours == (found.code, 8, 1)
        else:
            assert found.__dlpack_data_type__() == ours
    assert len(seen) >= 20
    assert {"bfloat16", "float8_e4m3fn", "float4_e2m1fn_x2", "complex32", "uint16"} <= set(seen)
    assert dtype(torch.float4_e2m1fn_x2) is DType.of(17, 4, 2)
    assert dtype(torch.int4) is dtype("int4")  # what it holds, not what torch exports
    for name in refused:
        with pytest.raises(ExchangeError, match="torch refuses to export it too"):
            dtype(getattr(torch, name.removeprefix("torch.")))


def test_jax_dtypes_are_what_jax_exports():  # P34
    jax = peer("jax")
    names = "bool int8 uint16 int32 float16 float32 complex64 bfloat16 float8_e4m3fn float8_e5m2 float4_e2m1fn"
    for name in names.split():
        array = jax.numpy.zeros(2, name)
        assert dtype(array.dtype) is dtype(name)
        assert exported(array) == NUMBERS[name]
        scalar = getattr(jax.numpy, "bool_" if name == "bool" else name)
        assert dtype(scalar) is dtype(name)
    with pytest.raises(ExchangeError, match="structured"):
        dtype(jax.dtypes.float0)
    with pytest.raises(TypeError, match="is not a dtype"):
        dtype(jax.random.key(0).dtype)


@pytest.mark.parametrize("name", NUMBERS)
def test_names_are_those_of_tvm_ffi(name):  # P34, P35
    tvm_ffi = peer("tvm_ffi")
    if NUMBERS[name][0] == DLDataTypeCode.kDLComplex:  # unknown to it in 0.1.15
        with pytest.raises(ValueError, match="unknown"):
            tvm_ffi.dtype(name)
        return
    theirs = tvm_ffi.dtype(name)
    assert (theirs.type_code, theirs.bits, theirs.lanes) == NUMBERS[name]
    assert dtype(theirs) is dtype(name)
    echoed = tvm_ffi.get_global_func("testing.echo")(dtype(name))  # as an argument
    assert (echoed.type_code, echoed.bits, echoed.lanes) == NUMBERS[name]
    if name != "handlex2":  # it prints every handle alike
        assert echoed == name


@pytest.mark.parametrize(
    ("name", "numbers"), [("float", (2, 32, 1)), ("int", (0, 32, 1)), ("void", (3, 0, 0))]
)
def test_a_tvm_ffi_dtype_keeps_its_own_meaning(name, numbers):
    tvm_ffi = peer("tvm_ffi")
    assert dtype(tvm_ffi.dtype(name)).__dlpack_data_type__() == numbers
    assert dtype(tvm_ffi.dtype("")) is dtype("void")


@given(st.tuples(st.sampled_from([0, 1, 2, 4, 6]), st.integers(1, 255), st.integers(1, 32767)))
def test_our_names_mean_the_same_to_tvm_ffi(numbers):
    tvm_ffi = peer("tvm_ffi")
    name = str(DType.of(*numbers))
    assert str(tvm_ffi.dtype.from_dlpack_data_type(numbers)) == name
    if numbers[0] == DLDataTypeCode.kDLBfloat and numbers[1] != 16:
        return  # it prints "bfloat8", and cannot read it
    theirs = tvm_ffi.dtype(name)
    assert (theirs.type_code, theirs.bits, theirs.lanes) == numbers


def test_objects_with_the_dtype_protocol():
    class Theirs:
        def __dlpack_data_type__(self):
            return (17, 4, 2)

    assert dtype(Theirs()) is DType.of(17, 4, 2)


# -- Packing -------------------------------------------------------------------


@given(st.integers(1, 7), st.lists(st.integers(0, 255), max_size=60), st.data())
def test_packing_is_little_bit_endian(bits, values, data):  # P37: element i is (D >> i*bits) & mask
    lanes = data.draw(st.sampled_from([n for n in range(1, 5) if len(values) % n == 0]))
    kind = DType.of(1, bits, lanes)
    count, mask = len(values) // lanes, (1 << bits) - 1
    packed = pack_bits(np.array(values, np.uint8), kind)
    assert len(packed) == kind.nbytes(count)
    as_number = sum((value & mask) << (i * bits) for i, value in enumerate(values))
    assert int.from_bytes(packed, "little") == as_number
    codes = unpack_bits(memoryview(packed), kind, count)
    assert codes.dtype == np.uint8
    assert codes.tolist() == [value & mask for value in values]


@pytest.mark.parametrize(
    "name", ["float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "int4", "uint4", "int2", "uint2"]
)
def test_unpacked_codes_are_the_values_of_ml_dtypes(name):  # P37, C31
    kind = dtype(name)
    every = np.arange(1 << kind.bits, dtype=np.uint8)
    values = unpack_bits(pack_bits(every, kind), kind, every.size).view(kind.numpy)
    known = {
        "float4_e2m1fn": [0, 0.5, 1, 1.5, 2, 3, 4, 6],
        "float6_e2m3fn": [0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875],
        "float6_e3m2fn": [0, 0.0625, 0.125, 0.1875, 0.25, 0.3125, 0.375, 0.4375],
        "int4": [0, 1, 2, 3, 4, 5, 6, 7, -8],
        "uint4": list(range(16)),
        "int2": [0, 1, -2, -1],
        "uint2": [0, 1, 2, 3],
    }[name]
    assert values.astype("f8")[: len(known)].tolist() == known


def test_packing_refuses_values_in_place_of_codes():
    values = np.array([0.5, 1], ml_dtypes.float4_e2m1fn)
    with pytest.raises(TypeError, match=r"view\(numpy\.uint8\)"):
        pack_bits(values, dtype("float4_e2m1fn"))
    assert pack_bits(values.view(np.uint8), dtype("float4_e2m1fn")) == b"\x21"
    with pytest.raises(TypeError, match=r"not float64: dlbridge\.astype\(x, 'float4_e2m1fn'\)"):
        pack_bits([0.5, 1], "float4_e2m1fn")
    assert pack_bits([], dtype("int4")) == b""


def test_the_codes_of_integers_are_their_low_bits():
    for codes in ([-1, 7], np.array([-1, 7], np.int8), np.array([15, 7 + 16], np.uint64)):
        assert pack_bits(codes, "int4") == b"\x7f"
    assert dtype("int4").numpy is not None
    assert unpack_bits(b"\x7f", "int4", 2).view(dtype("int4").numpy).tolist() == [-1, 7]


@pytest.mark.parametrize("kind", ["int4", dtype("int4"), (0, 4, 1), ml_dtypes.int4])
def test_packing_takes_every_dtype(kind):
    assert pack_bits([1, 2], kind) == b"\x21"
    assert unpack_bits(b"\x21", kind, 2).tolist() == [1, 2]
    for wrong in ("int4x", object()):
        with pytest.raises(TypeError, match="dtype"):
            pack_bits([1], wrong)
        with pytest.raises(TypeError, match="dtype"):
            unpack_bits(b"a", wrong, 1)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: unpack_bits(b"ab", "int4", 5), "5 elements of int4 take 3 bytes; there are 2"),
        (lambda: unpack_bits(b"ab", "int4", -1), "-1 elements"),
        (lambda: unpack_bits(b"ab", "int8", 1), "int8 is not a sub-byte type"),
        (lambda: pack_bits([1], "float32"), "float32 is not a sub-byte type"),
        (
            lambda: pack_bits([1, 2, 3], "float4_e2m1fnx2"),
            "3 codes are not a whole number of float4",
        ),
        (lambda: dtype("int4x0"), "lanes are 1 to 65535"),
    ],
)
def test_packing_errors(call, says):
    with pytest.raises(ValueError, match=says):
        call()
