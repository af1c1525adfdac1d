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

from dlbridge import Device, dtype as as_dtype, ffi
from dlbridge.ffi.any import WeakTable
from tests.support.peers import peer

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
    float("nan"),
    *(2**63, -(2**63) - 1, 2**64, 2**70, -(2**70) - 5, 10**100),
    # A C string is bytes; nothing says that they are UTF-8.
    *(b"\xff\xfe and more".decode("utf-8", "surrogateescape"), "\udcff\udcfe "),
]


@pytest.mark.parametrize("value", SAME, ids=lambda value: repr(value)[:20])
def test_values_come_back(echo, apply, value):  # 1.3, 3: POD, str, bytes small and heap, BigInt
    seen = []
    for result in (echo(value), apply(lambda x: seen.append(x) or x, value), *seen):
        assert repr(result) == repr(value)
        assert type(result) is type(value)


DTYPES = "int8 uint16 float32 bfloat16 float8_e4m3fn bool complex64 float32x4"  # complex: 2.7


@pytest.mark.parametrize(
    "value",
    [
        *map(as_dtype, DTYPES.split()),
        *(Device.of(kind, 3) for kind in range(1, 19) if kind not in (5, 6)),
    ],
    ids=str,
)
def test_every_dtype_and_type_of_device(echo, value):  # 2.7: half of them are unknown to tvm_ffi
    assert echo(value) is value or echo(value).dlpack == value.dlpack


class Text(str):
    __slots__ = ()


class Number(int):
    pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (bytearray(b"12345678"), b"12345678"),
        (np.int32(7), 7),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.float32(0.5), 0.5),
        (fractions.Fraction(1, 4), 0.25),
        (np.bool_(True), True),  # 2.2: goes through as opaque in tvm_ffi
        (np.dtype("float32"), as_dtype("float32")),
        (np.dtype("bool"), as_dtype("bool")),  # 2.7: not convertible in tvm_ffi
        (np.dtype("complex128"), as_dtype("complex128")),
        (Text("a longer text"), "a longer text"),
        (Number(2**65), 2**65),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_come_back_as_another(echo, value, expected):
    assert echo(value) == expected
    assert type(echo(value)) is type(expected)


def test_dtypes_of_torch(echo):
    assert echo(peer("torch").complex64) == as_dtype("complex64")


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


@pytest.mark.parametrize("value", [object, Thing])
def test_classes_arrive_as_functions(echo, value):  # they are callable
    assert isinstance(echo(value)(), value)


RESULTS = {  # of each protocol: 2.2
    "__tvm_ffi_int__": (41, 41),
    "__tvm_ffi_float__": (0.5, 0.5),
    "__tvm_ffi_value__": ("text that is long", "text that is long"),
    "__tvm_ffi_object__": (ffi.UNCHANGED, ffi.UNCHANGED),
}


@pytest.mark.parametrize("name", RESULTS)
def test_protocols(echo, name):
    result, expected = RESULTS[name]
    assert echo(type("Of", (), {name: lambda _self: result})()) == expected


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


# --- Weak tables: entries of dead objects, and changes while they are looked for ------


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
