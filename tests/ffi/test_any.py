"""Values to C and back. Sections are those of the notes on the TVM-FFI C API."""

from __future__ import annotations

import ctypes
import fractions
import gc
import re
import sys
import weakref

import numpy as np
import pytest
from hypothesis import given, strategies as st
from peers import peer

from dlbridge import Device, DType, device as as_device, dtype as as_dtype, ffi
from dlbridge.ffi.any import WeakTable

SAME = [
    None,
    True,
    False,
    0,
    -1,
    2**63 - 1,
    -(2**63),
    0.0,
    -1.5,
    float("inf"),
    "",
    "seven77",
    "eight888",
    "äöü€",
    "a\0b",
    "with \0 in a long string",
    "x" * 10_000,
    b"",
    b"seven77",
    b"eight888",
    b"\0\0\0",
    bytes(range(256)),
]


@pytest.mark.parametrize("value", SAME, ids=lambda value: repr(value)[:20])
def test_echo_gives_the_value_back(echo, value):  # 1.3, 3: POD, str, bytes small and heap
    result = echo(value)
    assert result == value
    assert type(result) is type(value)


def test_nan(echo):
    assert np.isnan(echo(float("nan")))


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**64, 2**70, -(2**70) - 5, 10**100])
def test_big_int(echo, value):  # 1.1 BigIntFromByteArray
    assert echo(value) == value


@given(st.one_of(st.text(), st.binary(), st.integers(), st.floats(allow_nan=False)))
def test_any_value_goes_round(testing, value):
    assert testing("echo")(value) == value


def test_bytes_that_are_no_text_come_as_surrogates_and_go_back(echo):
    # A C string is bytes; nothing says that they are UTF-8.
    broken = b"\xff\xfe and more".decode("utf-8", "surrogateescape")
    assert echo(broken) == broken
    assert echo(broken[:3]) == broken[:3]


def test_bytearray_arrives_as_bytes(echo):
    assert echo(bytearray(b"12345678")) == b"12345678"


def test_int_like_and_float_like(echo):
    assert echo(np.int32(7)) == 7
    assert type(echo(np.int32(7))) is int
    assert echo(np.uint64(2**64 - 1)) == 2**64 - 1
    assert echo(np.float32(0.5)) == 0.5
    assert echo(fractions.Fraction(1, 4)) == 0.25


def test_numpy_bool_is_a_bool(echo):  # 2.2: goes through as opaque in tvm_ffi
    assert echo(np.bool_(True)) is True


@pytest.mark.parametrize(
    "name",
    ["int8", "uint16", "float32", "bfloat16", "float8_e4m3fn", "bool", "complex64", "float32x4"],
)
def test_dtype(echo, name):  # 2.7: complex is not printable in tvm_ffi
    dtype = as_dtype(name)
    assert echo(dtype) is dtype
    assert str(echo(dtype)) == name


def test_foreign_dtypes(echo):
    assert echo(np.dtype("float32")) == as_dtype("float32")
    assert echo(np.dtype("bool")) == as_dtype("bool")  # 2.7: not convertible in tvm_ffi
    assert echo(np.dtype("complex128")) == as_dtype("complex128")
    assert echo(peer("torch").complex64) == as_dtype("complex64")


@pytest.mark.parametrize("kind", [1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18])
def test_every_device_type(echo, kind):  # 2.7: half of them are unknown to tvm_ffi
    assert echo(Device.of(kind, 3)).dlpack == (kind, 3)


def test_dtype_and_device_parameters_take_names(testing):
    assert testing("schema_id_dtype")("float16") == as_dtype("float16")
    assert testing("schema_id_device")("cuda:1") == as_device("cuda:1")
    assert isinstance(testing("schema_id_dtype")("int8"), DType)


def test_opaque_pointer(echo):
    assert echo(ctypes.c_void_p(0x1234)).value == 0x1234
    assert echo(ctypes.c_void_p(2**64 - 8)).value == 2**64 - 8
    assert echo(ctypes.c_void_p(None)).value is None


class Thing:
    """Nothing that C knows."""


def test_opaque_object_identity_and_counts(echo):  # 1.1 ObjectCreateOpaque
    thing = Thing()
    before = sys.getrefcount(thing)
    for _ in range(100):
        assert echo(thing) is thing
    assert sys.getrefcount(thing) == before
    alive = weakref.ref(thing)
    del thing
    assert alive() is None


@pytest.mark.parametrize("value", [range(3), {1, 2}, 1 + 2j])
def test_what_C_cannot_know_is_carried(echo, value):
    assert echo(value) is value


@pytest.mark.parametrize("value", [object, Thing])
def test_classes_arrive_as_functions(echo, value):  # they are callable
    assert isinstance(echo(value)(), value)


def test_protocols(echo):  # 2.2
    class AsInt:
        def __tvm_ffi_int__(self):
            return 41

    class AsFloat:
        def __tvm_ffi_float__(self):
            return 0.5

    class AsValue:
        def __tvm_ffi_value__(self):
            return "text that is long"

    class AsPointer:
        def __tvm_ffi_opaque_ptr__(self):
            return 0x77

    class AsObject:
        def __tvm_ffi_object__(self):
            return echo

    class Stream:
        def __cuda_stream__(self):
            return (0, 0x99)

    assert echo(AsInt()) == 41
    assert echo(AsFloat()) == 0.5
    assert echo(AsValue()) == "text that is long"
    assert echo(AsPointer()).value == 0x77
    assert echo(AsObject()) is echo
    assert echo(Stream()).value == 0x99


class AsPointer:
    def __init__(self, word):
        self.word = word

    def __tvm_ffi_opaque_ptr__(self):
        return self.word


class AsStream(AsPointer):
    def __cuda_stream__(self):
        return (0, self.word)


@pytest.mark.parametrize("cls", [AsPointer, AsStream])
def test_pointers_of_protocols(echo, cls):
    assert echo(cls(np.uint32(5))).value == 5
    assert echo(cls((1 << 64) - 1)).value == (1 << 64) - 1
    assert echo(cls(-1)).value == (1 << 64) - 1
    assert echo(cls(ctypes.c_void_p(5))).value == 5
    assert echo(cls(0)).value is None


@pytest.mark.parametrize(
    ("word", "error", "said"),
    [
        (1 << 70, ValueError, "0x400000000000000000"),
        (-1 << 64, ValueError, "-0x10000000000000000"),
        ("x", TypeError, "a str"),
        (1.5, TypeError, "a float"),
    ],
)
@pytest.mark.parametrize(
    ("cls", "name"), [(AsPointer, "__tvm_ffi_opaque_ptr__"), (AsStream, "__cuda_stream__")]
)
def test_pointers_that_do_not_fit(echo, cls, name, word, error, said):
    what = re.escape(f"{cls.__name__}.{name} gave {said}: a pointer is an int of 64 bits")
    with pytest.raises(error, match=what):
        echo(cls(word))


class AsFloat:
    def __init__(self, number):
        self.number = number

    def __tvm_ffi_float__(self):
        return self.number


@pytest.mark.parametrize("large", [10**400, -(10**400)], ids=["positive", "negative"])
def test_numbers_too_large_for_a_float(echo, large):
    with pytest.raises(OverflowError, match=r"the fractions\.Fraction is too large for a 64-bit"):
        echo(fractions.Fraction(large))
    with pytest.raises(OverflowError, match=r"AsFloat\.__tvm_ffi_float__ gave, an int, is too la"):
        echo(AsFloat(large))


def test_a_float_protocol_takes_numbers_only(echo):
    assert echo(AsFloat(3)) == 3.0
    assert echo(AsFloat(fractions.Fraction(1, 4))) == 0.25
    assert str(echo(AsFloat(-0.0))) == "-0.0"
    with pytest.raises(
        TypeError, match=r"AsFloat\.__tvm_ffi_float__ gave, a str, is no real number"
    ):
        echo(AsFloat("3"))


def test_subclasses_of_plain_types(echo):
    class Text(str):
        __slots__ = ()

    class Number(int):
        pass

    assert echo(Text("a longer text")) == "a longer text"
    assert echo(Number(2**65)) == 2**65


def test_implicit_conversions_of_the_callee(testing):  # 3: free
    assert testing("schema_id_int")(True) == 1
    assert testing("schema_id_float")(3) == 3.0
    assert testing("schema_id_bool")(3) is True
    assert testing("schema_id_string")("text of some length") == "text of some length"
    assert testing("schema_id_bytes")(b"bytes of some length") == b"bytes of some length"
    assert testing("schema_id_variant_int_str")("s") == "s"
    assert testing("schema_id_opt_int")(None) is None
    assert testing("schema_id_opt_str")("a string here") == "a string here"
    assert testing("schema_id_any")(1.5) == 1.5


def test_unchanged(echo):  # 1.3, type index 13
    assert echo(ffi.UNCHANGED) is ffi.UNCHANGED


def test_values_do_not_leak(echo):  # ownership of results, 1.1
    import resource

    def work():
        for _ in range(3000):
            echo("a string of more than seven bytes")
            echo(2**100)
            echo(b"bytes that are not inline")
            echo(Thing())
            echo(lambda: None)

    work()
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(5):
        work()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 1024  # KiB; one leaked object per turn would be 5000


# --- Weak tables: entries of dead objects, and changes while they are looked for ------


class Thing:
    """What a table knows."""


@pytest.fixture
def _always_collecting():
    before = gc.get_threshold()
    gc.set_threshold(1)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("_always_collecting")
def test_a_finalizer_that_adds_an_entry_while_the_table_is_swept():
    """A collection ran while the entries were listed: "dictionary changed size"."""
    table, kept = WeakTable(), [Thing() for _ in range(50)]
    for number, thing in enumerate(kept):
        table.add(number, thing)

    class Adding:
        """Garbage, whose finalizer makes one more, for the next collection."""

        left = 200

        def __init__(self):
            self.me = self

        def __del__(self):
            Adding.left -= 1
            if Adding.left > 0:
                kept.append(Thing())
                table.add(1000 + Adding.left, kept[-1])
                Adding()

    Adding()
    while Adding.left > 0:
        assert len(table) >= 50
