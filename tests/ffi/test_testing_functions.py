"""Every function of the library's test library is called, and every type that it knows goes round."""

from __future__ import annotations

import numpy as np
import pytest

import dlbridge
from dlbridge import Device, dtype as as_dtype, ffi
from dlbridge.core._cdefs import ffi as cffi
from dlbridge.ffi.containers import tensors_in


def tensor():
    return dlbridge.from_dlpack(np.arange(6.0).reshape(2, 3))


def obj(name, *arguments, **keywords):
    return ffi.object_class(f"testing.{name}")(*arguments, **keywords)


def same(*arguments):
    """The result is the first argument, and of its type if that is the library's own."""

    def check(result):
        expected = arguments[0]
        assert result is expected or result == expected
        if isinstance(expected, (int, str, bytes, ffi.Object)):
            assert type(result) is type(expected)

    return arguments, check


def gives(expected, *arguments):
    def check(result):
        assert result == expected
        assert type(result) is type(expected) or isinstance(result, ffi.Object)

    return arguments, check


def shares(path, *arguments):
    """The value at *path* in the result is a tensor on the first argument's memory."""

    def check(result):
        for step in path:
            result = result[step]
        assert isinstance(result, dlbridge.Tensor)
        assert result.shape == (2, 3)
        assert np.shares_memory(np.from_dlpack(result), np.from_dlpack(arguments[0]))

    return arguments, check


def raises(error, *arguments):
    return arguments, error


def symbol(add_one):
    def check(address):
        assert add_one(address)(41) == 42

    return (), check


def mixed(result):
    assert result[1:] == [5, "hello"]


def nested(result):
    found = tensors_in(result)
    assert [tensor.shape for tensor in found] == [(2, 3)] * len(found)
    assert len(found) >= 2


def unregistered(result):
    assert (result.v1, result.v2) == (41, 42)


def regions(result):
    fields = result.child if hasattr(result, "child") else result
    assert (fields.simple, fields.pattern, fields.ordinary) == (1, 2, 3)


LIST = ffi.List
DICT = ffi.Dict
TEXT = "a text of more than seven bytes"


def cases():
    """Function name -> one or more calls: arguments, and what checks the result."""
    pair, function = obj("TestIntPair", 3, 4), ffi.convert_func(lambda *args: None)
    add_one = ffi.get_global_func("testing.add_one")
    return {
        "TestIntPairSum": [gives(7, pair)],
        "add_one": [gives(42, 41), raises(TypeError, "x"), raises(TypeError)],
        "apply": [gives(42, add_one, 41), raises(TypeError, add_one, "x")],
        "echo": [same(pair), same(TEXT), same(2**70), same(None), same(b"")],
        "enum_variant_get": [raises(ValueError, "no such name")],
        "get_add_one_c_symbol": [symbol(ffi.Function.__from_extern_c__)],
        "get_mlir_add_one_c_symbol": [symbol(ffi.Function.__from_mlir_packed_safe_call__)],
        "make_array_with_mixed": [
            shares([0], tensor(), 5),
            ((tensor(), 5), mixed),
        ],
        "make_array_with_tensor": [shares([0], tensor())],
        "make_dict_with_tensor": [shares(["tensor"], tensor())],
        "make_empty_array_with_tensor_input": [gives(ffi.Array(), tensor())],
        "make_list_with_tensor": [shares([0], tensor(), 5)],
        "make_map_with_tensor": [shares(["tensor"], tensor())],
        "make_nested_array_with_tensor": [shares([0, 0], tensor()), shares([1], tensor())],
        "make_nested_map_with_tensor": [((tensor(), tensor()), nested)],
        "make_unregistered_object": [((), unregistered)],
        "make_visit_region_graph": [((False,), regions), ((True,), regions)],
        "nop": [gives(None), gives(None, pair, TEXT, 1, tensor(), *range(20))],
        "object_use_count": [gives(1, obj("TestIntPair", 1, 2))],
        "optional_tensor_view_has_value": [gives(True, tensor()), gives(False, None)],
        "run_check_signal": [gives(None, 0)],
        "schema_arr_map_opt": [
            gives({"a": [1]}, [1, None], {"a": [1]}, None),
            raises(TypeError, ["x"], {}, None),
        ],
        "schema_id_any": [same(1.5), same(pair), gives([1, [2]], [1, [2]])],
        "schema_id_arr": [same(ffi.Array([1, "a", None])), gives([1], (1,))],
        "schema_id_arr_int": [same(ffi.Array([1, 2])), raises(TypeError, ["x"])],
        "schema_id_arr_obj": [same(ffi.Array([pair, pair]))],
        "schema_id_arr_str": [same(ffi.Array(["a", TEXT])), raises(TypeError, [1])],
        "schema_id_bool": [same(True), same(False), gives(True, 3)],
        "schema_id_bytes": [same(b"12345678"), same(b"")],
        "schema_id_device": [same(Device.of(2, 1)), gives(Device.of(1, 0), "cpu")],
        "schema_id_dict_str_int": [same(DICT({"a": 1}))],
        "schema_id_dict_str_str": [same(DICT({"a": TEXT}))],
        # The library refuses to own what it got borrowed.
        "schema_id_dltensor": [raises(RuntimeError, tensor())],
        "schema_id_dtype": [same(as_dtype("bfloat16")), gives(as_dtype("int8"), "int8")],
        "schema_id_float": [same(2.5), gives(3.0, 3)],
        "schema_id_func": [same(function)],
        "schema_id_func_typed": [same(function)],
        "schema_id_int": [same(-5), raises(TypeError, 2.5), raises(TypeError, None)],
        "schema_id_list_int": [same(LIST([1, 2])), raises(TypeError, LIST(["x"]))],
        "schema_id_list_obj": [same(LIST([pair]))],
        "schema_id_list_str": [same(LIST(["a"]))],
        "schema_id_map": [same(ffi.Map({1: "a", "b": None})), gives({1: 2}, {1: 2})],
        "schema_id_map_str_int": [same(ffi.Map({"a": 1})), raises(TypeError, {"a": "x"})],
        "schema_id_map_str_obj": [same(ffi.Map({"a": pair}))],
        "schema_id_map_str_str": [same(ffi.Map({"a": TEXT}))],
        "schema_id_object": [same(pair), same(ffi.Array([1])), same(LIST()), same(function)],
        "schema_id_opt_int": [same(None), same(5), raises(TypeError, "x")],
        "schema_id_opt_obj": [same(None), same(pair)],
        "schema_id_opt_str": [same(None), same("a"), same(TEXT)],
        "schema_id_string": [same(""), same(TEXT), raises(TypeError, 1)],
        "schema_id_tensor": [shares([], tensor())],
        "schema_id_variant_int_str": [same(1), same("a"), same(TEXT), raises(TypeError, 1.5)],
        "schema_no_args": [gives(1)],
        "schema_no_args_no_return": [gives(None)],
        "schema_no_return": [gives(None, 1)],
        "schema_packed": [gives(None, 1, "a", pair)],
        "schema_tensor_view_input": [gives(None, tensor()), gives(None, np.arange(3))],
        "schema_variant_mix": [same(1), same(TEXT), same(ffi.Array([1, 2]))],
        "test_raise_error": [
            raises(ValueError, "ValueError", "a message"),
            raises(RuntimeError, "KindThatNobodyKnows", "a message"),
        ],
    }


def known():
    names = ffi.list_global_func_names()
    return {name.removeprefix("testing.") for name in names if name.startswith("testing.")}


@pytest.fixture(scope="module")
def all_cases(testing):
    testing("nop")
    return cases()


# The library is asked while the tests are collected, so that each is a test of its own.
_library = cffi.dlopen(
    ffi.library_path.replace("libtvm_ffi.", "libtvm_ffi_testing."), cffi.RTLD_NOW
)


def test_every_function_has_a_case(all_cases):
    assert set(all_cases) == known()


@pytest.mark.parametrize("name", sorted(known()))
def test_call(all_cases, testing, name):
    for arguments, check in all_cases[name]:
        if isinstance(check, type):
            with pytest.raises(check):
                testing(name)(*arguments)
        else:
            check(testing(name)(*arguments))


# --- Every type goes round ------------------------------------------------------

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
    "testing.TestCxxIntEnum": lambda: make("testing.TestCxxIntEnum", **ENUM, value=5),
    "testing.TestCxxStrEnum": lambda: make("testing.TestCxxStrEnum", **ENUM, value="five"),
    "testing.TestEnumVariant": lambda: make("testing.TestEnumVariant", **ENUM),
    "testing.TestCxxEnumHolder": lambda: obj(
        "TestCxxEnumHolder",
        make("testing.TestCxxIntEnum", **ENUM, value=5),
        make("testing.TestCxxStrEnum", **ENUM, value="five"),
    ),
    "testing.TestCxxNoAutoInit": lambda: make("testing.TestCxxNoAutoInit", x=1, y=2),
    "ffi.StructuralKey": lambda: ffi.StructuralKey([1, 2]),
    "ffi.VisitInterrupt": lambda: ffi.get_global_func("ffi.VisitInterrupt")("found"),
    "ffi.reflection.AccessPath": ffi.object_class("ffi.reflection.AccessPath")._root,
    "testing.SchemaAllTypes": lambda: ffi.object_class("testing.SchemaAllTypes").make_with(
        1, 2.0, "x"
    ),
    "testing.TestCompare": lambda: obj("TestCompare", 1, "a", 2),
    "testing.TestCustomCompare": lambda: obj("TestCustomCompare", 1, "a"),
    "testing.TestCustomHash": lambda: obj("TestCustomHash", 1, "a"),
    "testing.TestEqWithoutHash": lambda: obj("TestEqWithoutHash", 1, "a"),
    "testing.TestHash": lambda: obj("TestHash", 1, "a", 2),
    "testing.TestCxxAutoInit": lambda: obj("TestCxxAutoInit", 1, c=2),
    "testing.TestCxxAutoInitAllInitOff": lambda: obj("TestCxxAutoInitAllInitOff"),
    "testing.TestCxxAutoInitChild": lambda: obj("TestCxxAutoInitChild", 1, 2, child_kw_only=3),
    "testing.TestCxxAutoInitKwOnlyDefaults": lambda: obj(
        "TestCxxAutoInitKwOnlyDefaults", 1, k_required=2
    ),
    "testing.TestCxxAutoInitParent": lambda: obj("TestCxxAutoInitParent", 1),
    "testing.TestCxxAutoInitSimple": lambda: obj("TestCxxAutoInitSimple", 1, 2),
    "testing.TestCxxClassBase": lambda: obj("TestCxxClassBase", 1, 2),
    "testing.TestCxxClassDerived": lambda: obj("TestCxxClassDerived", 1, 2, 3.0),
    "testing.TestCxxClassDerivedDerived": lambda: obj(
        "TestCxxClassDerivedDerived", 1, 2, 3.0, v_bool=True
    ),
    "testing.TestCxxClassHiddenField": lambda: obj("TestCxxClassHiddenField", 1, 2),
    "testing.TestCxxClassPolymorphic": lambda: obj("TestCxxClassPolymorphic", 1),
    "testing.TestCxxInitSubset": lambda: obj("TestCxxInitSubset", 1),
    "testing.TestCxxKwOnly": lambda: obj("TestCxxKwOnly", x=1, y=2, z=3),
    "testing.TestDeepCopyEdges": lambda: obj("TestDeepCopyEdges", 1, ffi.List()),
    "testing.TestIntPair": lambda: obj("TestIntPair", 1, 2),
    "testing.TestNonCopyable": lambda: obj("TestNonCopyable", 1),
    "testing.TestObjectBase": lambda: obj("TestObjectBase"),
    "testing.TestObjectDerived": lambda: obj("TestObjectDerived", {}, []),
    "testing.TestObjectPtrHolder": lambda: obj("TestObjectPtrHolder", obj("TestObjectBase")),
    "testing.TestUnregisteredBaseObject": lambda: obj("TestUnregisteredBaseObject", 1),
    "testing.TestUnregisteredObject": lambda: obj("TestUnregisteredObject", 1, 2),
    "testing.TestVisitHook": lambda: ffi.get_global_func("testing.make_visit_region_graph")(True),
    "testing.TestVisitRegions": lambda: ffi.get_global_func("testing.make_visit_region_graph")(
        False
    ),
}

# What no value in Python stands for, each with the reason.
NOT_MADE = {
    "void*": "test_any.py: equal pointers are not one object",
    "DLTensor*": "borrowed: above, schema_id_dltensor",
    "const char*": "only an argument: test_callbacks.py",
    "TVMFFIByteArray*": "only an argument: test_callbacks.py",
    "ObjectRValueRef": "only an argument: test_callbacks.py",
    "ffi.StructuralVisitor": "made by a running visit, which is not called here",
    "ffi.StructuralMutator": "made by a running rewrite, which is not called here",
    "testing.TestFrozenCxx": "registered as a key only",
}


def keys():
    return {
        key
        for key in ffi.get_registered_type_keys()
        if key in MADE or key in NOT_MADE or key.startswith(("ffi.", "testing.")) or "." not in key
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
