"""Every type of the library goes round, and those of its test library that differ from them."""

from __future__ import annotations

import numpy as np
import pytest

import dlbridge
from dlbridge import Device, dtype as as_dtype, ffi
from dlbridge.abi import ffi as cffi

# The library is asked while the tests are collected, so that each is a test of its own.
_library = cffi.dlopen(
    ffi.library_path.replace("libtvm_ffi.", "libtvm_ffi_testing."), cffi.RTLD_NOW
)


@pytest.mark.parametrize(
    ("name", "more", "path"),
    [
        ("schema_id_tensor", [], []),
        ("make_array_with_mixed", [5], [0]),
        ("make_list_with_tensor", [5], [0]),
        ("make_dict_with_tensor", [], ["tensor"]),
        ("make_map_with_tensor", [], ["tensor"]),
        ("make_nested_array_with_tensor", [], [0, 0]),
    ],
)
def test_a_tensor_that_cpp_puts_into_a_container_shares_its_memory(testing, name, more, path):
    x = dlbridge.from_dlpack(np.arange(6.0).reshape(2, 3))
    found = testing(name)(x, *more)
    for step in path:
        found = found[step]
    assert found.shape == (2, 3)
    assert np.shares_memory(np.from_dlpack(found), np.from_dlpack(x))


# --- Every type goes round ------------------------------------------------------

TEXT = "a text of more than seven bytes"
ENUM = {"_int_index": 5, "_str_index": "five"}


def make(key, /, **fields):
    """An object of a type that has no constructor."""
    pairs = [part for pair in fields.items() for part in pair]
    return ffi.get_global_func("ffi.MakeObjectFromPackedArgs")(key, *pairs)


# How one of each type is made; the rest of the library's types are abstract.
MADE = {
    "None": lambda: None,
    "bool": lambda: True,
    "int": lambda: 5,
    "float": lambda: 2.5,
    "DataType": lambda: as_dtype("float16"),
    "Device": lambda: Device.of(4, 1),
    "ffi.SmallStr": lambda: "small",
    "ffi.SmallBytes": lambda: b"small",
    "ffi.Unchanged": lambda: ffi.UNCHANGED,
    "ffi.String": lambda: TEXT,
    "ffi.Bytes": TEXT.encode,
    "ffi.BigInt": lambda: 2**70,
    "ffi.Array": lambda: ffi.Array([1, TEXT]),
    "ffi.List": lambda: ffi.List([1, TEXT]),
    "ffi.Map": lambda: ffi.Map({TEXT: 1}),
    "ffi.Dict": lambda: ffi.Dict({TEXT: 1}),
    "ffi.Shape": lambda: ffi.Shape((2, 3)),
    "ffi.Error": lambda: ffi.Error("ValueError", "text"),
    "ffi.Function": lambda: ffi.convert_func(lambda: 5),
    "ffi.Module": lambda: ffi.system_lib("dlbridge.test."),
    "ffi.OpaquePyObject": lambda: range(3),
    "ffi.Tensor": lambda: dlbridge.from_dlpack(np.arange(3.0)),
    "ffi.Object": ffi.get_global_func("ffi.GetKwargsObject"),
    "ffi.Enum": lambda: make("ffi.Enum", **ENUM),
    "ffi.IntEnum": lambda: make("ffi.IntEnum", **ENUM, value=5),
    "ffi.StrEnum": lambda: make("ffi.StrEnum", **ENUM, value="five"),
    "ffi.EnumState": ffi.object_class("ffi.EnumState"),
    "ffi.VisitErrorContext": lambda: make(
        "ffi.VisitErrorContext", reverse_visit_pattern=ffi.List(), prev_error_context=None
    ),
    "ffi.reflection.AccessStep": lambda: make("ffi.reflection.AccessStep", kind=0, key="x"),
    "ffi.StructuralKey": lambda: ffi.StructuralKey([1, 2]),
    "ffi.VisitInterrupt": lambda: ffi.get_global_func("ffi.VisitInterrupt")("found"),
    "ffi.reflection.AccessPath": ffi.object_class("ffi.reflection.AccessPath")._root,
    "testing.TestObjectDerived": lambda: ffi.object_class("testing.TestObjectDerived")({}, []),
    "testing.TestCxxNoAutoInit": lambda: make("testing.TestCxxNoAutoInit", x=1, y=2),
}

# What no value in Python stands for, each with the reason.
NOT_MADE = {
    "void*": "test_any.py: equal pointers are not one object",
    "DLTensor*": "borrowed: test_tensors.py, schema_id_dltensor",
    "const char*": "only an argument: test_callbacks.py",
    "TVMFFIByteArray*": "only an argument: test_callbacks.py",
    "ObjectRValueRef": "only an argument: test_callbacks.py",
    "ffi.StructuralVisitor": "made by a running visit, which is not called here",
    "ffi.StructuralMutator": "made by a running rewrite, which is not called here",
}


def keys():
    return {
        key
        for key in ffi.get_registered_type_keys()
        if key in MADE or key in NOT_MADE or key.startswith("ffi.") or "." not in key
    }


def test_every_type_is_made_or_listed():
    assert keys() == set(MADE) | set(NOT_MADE)
    assert not set(MADE) & set(NOT_MADE)


@pytest.mark.parametrize("key", sorted(MADE))
def test_goes_round(testing, apply, key):
    value = MADE[key]()
    for result in (
        testing("echo")(value),
        apply(lambda x: x, value),
        testing("echo")([value])[0],
        testing("echo")({"k": value})["k"],
    ):
        if isinstance(value, ffi.Object):
            assert result is value
        elif isinstance(value, dlbridge.Tensor):
            assert np.shares_memory(np.from_dlpack(result), np.from_dlpack(value))
        else:
            assert result == value
            assert type(result) is type(value)
    assert repr(value)
    index = getattr(value, "_index", None)
    if index is not None:
        assert ffi.object_class(key) is type(value)
