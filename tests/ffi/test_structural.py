"""Structural equality, hash, serialization, and conversion."""

from __future__ import annotations

import json
import pickle
import sys
import types

import numpy as np
import pytest

import dlbridge
from dlbridge import ffi
from dlbridge.ffi.objects import MAX_DEPTH


@pytest.fixture
def pair(testing):
    assert testing("nop") is not None
    return ffi.object_class("testing.TestIntPair")(1, 2)


def test_structural_equality():
    value = [1, {"a": (2.5, None)}]
    assert ffi.structural_equal(value, [1, {"a": (2.5, None)}])
    assert ffi.structural_hash(value) == ffi.structural_hash([1, {"a": (2.5, None)}])
    assert not ffi.structural_equal(value, [1, {"a": (2.5, 3)}])
    assert 0 <= ffi.structural_hash("x") < 2**64


def test_structural_equality_of_tensors():
    one, same, other = (dlbridge.from_dlpack(np.array(x)) for x in ([1.0], [1.0], [2.0]))
    assert ffi.structural_equal([one], [same])
    assert not ffi.structural_equal([one], [other])
    assert ffi.structural_equal([one], [other], skip_tensor_content=True)
    assert ffi.structural_hash([one], skip_tensor_content=True) == ffi.structural_hash(
        [other], skip_tensor_content=True
    )


def test_first_mismatch():
    assert ffi.get_first_structural_mismatch([1], [1]) is None
    ours, theirs = ffi.get_first_structural_mismatch({"k": [1, [2]]}, {"k": [1, [3]]})
    assert repr(ours) == repr(theirs) == '<root>["k"][1][0]'
    assert [step.key for step in ours._to_steps()] == ["k", 1, 0]


def test_structural_key():
    table = {ffi.StructuralKey([1, 2]): "value"}
    assert table[ffi.StructuralKey((1, 2))] == "value"
    assert ffi.StructuralKey([1]) != ffi.StructuralKey([2])
    assert ffi.StructuralKey([1]) != [1]
    assert ffi.Map({ffi.StructuralKey([1]): 5})[ffi.StructuralKey([1])] == 5
    assert ffi.StructuralKey("x").key == "x"


# --- What C++ would overflow its stack on -----------------------------------------


def cyclic():
    values = ffi.List([1])
    values.append(ffi.Dict({"again": [values]}))
    return values


def deep():
    values = ffi.Array()
    for _ in range(20_000):
        values = ffi.Array([values])
    return values


CALLS = [
    lambda value: ffi.structural_equal(value, 1),
    lambda value: ffi.structural_equal(1, value),
    ffi.structural_hash,
    lambda value: ffi.get_first_structural_mismatch(value, 1),
    ffi.StructuralKey,
    ffi.serialization.to_json_graph_str,
]


@pytest.mark.parametrize("call", CALLS)
def test_what_contains_itself_is_refused(call):
    with pytest.raises(ValueError, match="contains itself"):
        call(cyclic())


@pytest.mark.parametrize("call", CALLS)
def test_what_is_nested_too_deep_is_refused(call):
    with pytest.raises(RecursionError, match=f"{MAX_DEPTH} levels"):
        call(deep())


def test_cycle_through_a_field_is_refused(pair):
    holder = ffi.object_class("testing.TestDeepCopyEdges")(None, pair)
    holder.v_any = ffi.List([holder])
    with pytest.raises(ValueError, match="TestDeepCopyEdges contains itself"):
        ffi.structural_hash(holder)
    holder.v_any = None


def test_what_is_shared_is_no_cycle():
    shared = ffi.List([1])
    assert (
        ffi.structural_equal([shared, [shared], {"a": shared}], [[1], [[1]], {"a": [1]}]) is False
    )
    assert ffi.structural_hash([shared, shared]) == ffi.structural_hash([shared, shared])


# --- Serialization and conversion -------------------------------------------------


def test_json_graph():
    shared = ffi.List([1])
    text = ffi.serialization.to_json_graph_str([shared, shared], {"note": "text"})
    again = ffi.serialization.from_json_graph_str(text)
    assert [list(item) for item in again] == [[1], [1]]
    assert again[0] is again[1]
    assert "note" in text
    with pytest.raises(ValueError, match="Expecting value"):
        ffi.serialization.from_json_graph_str("no json")


def graph(*nodes, root=0):
    return json.dumps({"root_index": root, "nodes": nodes})


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("[" * 100_000, RecursionError, "recursion|Stack overflow"),
        ("5", ValueError, "object"),
        ("{}", ValueError, "root_index"),
        (graph(root=5), ValueError, "node index 5"),
        (graph({"type": "ffi.Array", "data": [0]}), ValueError, "node 0 .* itself"),
        (graph({"type": "ffi.List", "data": [1]}, {"type": "int", "data": 1}), ValueError, "later"),
        (graph({"type": "ffi.Map", "data": [-1, -1]}), ValueError, "node index -1"),
        (graph({"type": "no.such.type", "data": 1}), ValueError, "no type"),
        (graph({"type": 5}), (TypeError, ValueError), "str"),
        (graph(5), (TypeError, ValueError), "Cannot|Expected"),
        (
            graph({"type": "testing.TestDeepCopyEdges", "data": {"v_any": 0, "v_obj": 0}}),
            ValueError,
            "node 0 .* itself",
        ),
        (
            graph(
                {"type": "ffi.Array", "data": []},
                *({"type": "ffi.Array", "data": [i]} for i in range(20_000)),
                root=20_000,
            ),
            RecursionError,
            "2000 levels",
        ),
    ],
)
def test_json_graph_that_the_library_did_not_write(testing, text, error, message):
    # It would descend in it until its stack overflows.
    testing("nop")
    with pytest.raises(error, match=message):
        ffi.serialization.from_json_graph_str(text)


@pytest.mark.parametrize(
    "value",
    [5, "text", None, (0, 1), {"k": [1, 2.5]}, ffi.Shape((0, 7)), dlbridge.device("opencl:9")],
    ids=repr,
)
def test_json_graph_of_values(value):
    text = ffi.serialization.to_json_graph_str([value, value])
    assert ffi.serialization.from_json_graph_str(text)[1] == ffi.convert(value)


def test_json_graph_of_objects(pair):
    holder = ffi.object_class("testing.TestObjectPtrHolder")
    base = ffi.object_class("testing.TestObjectBase")(v_i64=99)  # an index beyond all nodes
    again = pickle.loads(pickle.dumps(ffi.Array([holder(base), base])))
    assert again[0].value.v_i64 == again[1].v_i64 == 99
    assert type(again[1]) is type(base)


def test_convert():
    for value, cls in (
        ((1,), ffi.Array),
        ({}, ffi.Map),
        (len, ffi.Function),
        (np.float32(1), float),
    ):
        assert type(ffi.convert(value)) is cls
    for value in (None, 5, "text of some length", b"bytes of some length", range(3)):
        assert ffi.convert(value) == value
    x = np.arange(3)
    assert np.shares_memory(np.from_dlpack(ffi.convert(x)), x)


def test_object_convertible(testing, echo):
    class Point(ffi.ObjectConvertible):
        def asobject(self):
            return ffi.Array([1, 2])

    assert echo(Point()) == [1, 2]
    assert ffi.convert(Point()) == [1, 2]
    assert testing("object_use_count")(Point()) == 1  # alive, though nobody else holds it

    class Value:
        def __tvm_ffi_value__(self):
            return ffi.Array([1, 2])

    assert testing("object_use_count")(Value()) == 1

    class Nothing(ffi.ObjectConvertible):
        pass

    with pytest.raises(NotImplementedError):
        echo(Nothing())


def test_init_ffi_api(monkeypatch, testing):
    testing("nop")
    module = types.ModuleType("made_here")
    monkeypatch.setitem(sys.modules, "made_here", module)
    ffi.init_ffi_api("testing", "made_here")
    assert module.add_one(41) == 42
    ffi.init_ffi_api("tvm.ffi.json", "made_here")
    assert module.Parse("[1]") == [1]
    assert not hasattr(module, "json.Parse")


def test_readonly_tensors_are_hashed():
    array = np.arange(3.0)
    expected = ffi.structural_hash(array)
    array.flags.writeable = False
    assert ffi.structural_hash(ffi.readonly(array)) == expected
    assert ffi.structural_hash([ffi.readonly(array)]) == ffi.structural_hash([array.copy()])


def test_an_error_names_what_was_passed():
    array = np.zeros(3)
    array.setflags(write=False)
    with pytest.raises(dlbridge.ExchangeError, match=r"numpy\.ndarray"):
        ffi.structural_hash(array)
