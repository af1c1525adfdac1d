"""Structural equality, hash, walks and rewrites, serialization, and conversion."""

from __future__ import annotations

import json
import pickle
import sys
import types

import numpy as np
import pytest
from peers import peer

import dlbridge
from dlbridge import ffi
from dlbridge.ffi.graphs import bounds
from dlbridge.ffi.graphs.bounds import MAX_DEPTH


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
    ffi.structural_walk,
    ffi.structural_visit,
    ffi.structural_map,
    ffi.structural_mutate,
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


# --- Walks and rewrites -----------------------------------------------------------


def test_walk():
    seen = []
    assert ffi.structural_walk([1, "a", [2.5, {"k": b"b"}]], ((int, float), seen.append)) is None
    assert seen == [1, 2.5]
    order = []
    ffi.structural_walk([[1]], [(int, order.append), (ffi.Array, order.append)], order="pre")
    assert order == [[[1]], [1], 1]
    order.clear()
    ffi.structural_walk([[1]], order.append, order=ffi.WalkOrder.POSTORDER)
    assert order == [1, [1], [[1]]]


def test_walk_that_skips_or_stops():
    seen = []

    def look(value):
        seen.append(value)
        return ffi.WalkResult.SKIP if value == [2] else None

    ffi.structural_walk([1, [2], 3], [(object, look)], order="pre")
    assert 2 not in seen
    found = ffi.structural_walk(
        [1, 2, 3], (int, lambda x: ffi.VisitInterrupt(x) if x == 2 else None)
    )
    assert found.value == 2
    with pytest.raises(ZeroDivisionError):
        ffi.structural_walk([0], (int, lambda x: 1 // x))


def test_walk_sees_where_names_are_defined(testing):
    graph = testing("make_visit_region_graph")(False)
    seen = {}
    ffi.structural_walk(graph, with_def_region_kind=(int, seen.__setitem__))
    assert seen == {
        1: ffi.DefRegionKind.DEF_SIMPLE,
        2: ffi.DefRegionKind.DEF_PATTERN,
        3: ffi.DefRegionKind.NONE,
    }


def test_visit():
    seen = []

    def array(value, visitor):
        assert isinstance(visitor, ffi.StructuralVisitor)
        assert visitor.def_region_kind() is ffi.DefRegionKind.NONE
        seen.append(len(value))
        return visitor.default_visit(value)

    def number(value, visitor):
        seen.append(value)
        inside = visitor.with_def_region_kind(ffi.DefRegionKind.DEF_SIMPLE, visitor.def_region_kind)
        assert inside == ffi.DefRegionKind.DEF_SIMPLE  # by way of C it is an integer

    assert ffi.structural_visit([1, [2]], [(ffi.Array, array), (int, number)]) is None
    assert seen == [2, 1, 1, 2]
    seen.clear()
    ffi.structural_visit(
        [5, [6]], [(ffi.Array, lambda v, visitor: visitor.visit(v[0])), (int, number)]
    )
    assert seen == [5]


def test_map():
    before = ffi.Array([1, [2, "a"], {"k": 3}])
    after = ffi.structural_map(before, (int, lambda x: x * 10))
    assert after == [10, [20, "a"], {"k": 30}]
    assert before == [1, [2, "a"], {"k": 3}]
    assert ffi.structural_map(before, (bytes, len)) is before  # nothing changed
    assert ffi.structural_map([1], with_def_region_kind=(int, lambda x, kind: str(kind.name))) == [
        "NONE"
    ]
    assert ffi.structural_map(ffi.Array([1])._move(), (int, str)) == ["1"]


def test_mutate(pair):
    modes = []

    def array(value, mutator, mode):
        modes.append(ffi.InplaceMode(mode))
        assert isinstance(mutator, ffi.StructuralMutator)
        assert mutator.def_region_kind() is ffi.DefRegionKind.NONE
        return mutator.default_mutate(value)

    def number(value, mutator):
        assert mutator.mutate("text") == "text"
        assert mutator.with_def_region_kind(0, lambda: 7) == 7
        return -value

    assert ffi.structural_mutate([1, [2]], [(ffi.Array, array), (int, number)]) == [-1, [-2]]
    assert set(modes) <= set(ffi.InplaceMode)


def test_variables(pair):
    seen = []

    def remap(value, mutator):
        seen.append(mutator.var_remap_get(pair))
        mutator.var_remap_set(pair, "mapped")
        seen.append(mutator.var_remap_get(pair))
        return value

    assert ffi.structural_mutate([1], (int, remap)) == [1]
    assert seen == [None, "mapped"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ffi.structural_walk([1], (set, print)), "class of the library's objects"),
        (lambda: ffi.structural_walk([1], [print]), r"function or \(type, function\)"),
        (lambda: ffi.structural_walk([1], [(int, 5)]), r"function or \(type, function\)"),
    ],
)
def test_callbacks_of_the_wrong_form(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_wrong_order():
    with pytest.raises(ValueError, match='"pre", "post"'):
        ffi.structural_walk([1], print, order="in")


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
        ("[" * 100_000, RecursionError, "recursion"),
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


def test_convert():
    assert type(ffi.convert([1, {"a": (2,)}])[1]) is ffi.Map
    assert type(ffi.convert((1,))) is ffi.Array
    assert type(ffi.convert(len)) is ffi.Function
    assert type(ffi.convert(np.float32(1.5))) is float
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


def test_every_public_name_is_there():
    for name in ffi.__all__:
        assert getattr(ffi, name) is not None, name


@pytest.mark.parametrize(
    ("walk", "go_on"),
    [
        ("visit", "visit"),
        ("visit", "default_visit"),
        ("mutate", "mutate"),
        ("mutate", "default_mutate"),
    ],
)
def test_a_callback_goes_on_to_what_contains_itself(run_script, walk, go_on):
    """Only the root was looked at, and C++ overflowed the stack of the process."""
    code, output = run_script(
        f"""
from dlbridge import ffi
endless = ffi.List()
endless.append(endless)
def go_on(value, running):
    return running.{go_on}(endless)
try:
    ffi.structural_{walk}([1], (int, go_on))
except ValueError as error:
    print(error)
""",
        prelude="",
        timeout=60,
    )
    assert (code, output.strip()) == (0, "a List contains itself")


def test_parts_of_the_root_are_looked_at_once(monkeypatch):
    looked = []
    children = bounds._children
    monkeypatch.setattr(bounds, "_children", lambda value: looked.append(value) or children(value))
    root = ffi.Array([ffi.Array([n]) for n in range(20)])
    ffi.structural_visit(root, (ffi.Array, lambda value, visitor: visitor.default_visit(value)))
    assert len(looked) == 21


ENDLESS = """
from dlbridge import ffi
endless = ffi.List()
endless.append(endless)
class Convertible(ffi.ObjectConvertible):
    def asobject(self):
        return endless
def attempt(function, *arguments, **keywords):
    try:
        function(*arguments, **keywords)
    except (ValueError, RuntimeError) as error:
        print(type(error).__name__, error)
"""
TOO_DEEP = "RuntimeError what the callbacks return or change is nested too deep"
REFUSED = "ValueError a List contains itself"


@pytest.mark.parametrize(
    "value",
    ["ffi.readonly(endless)", "[ffi.readonly(endless)]", "Convertible()", "{1: Convertible()}"],
)
def test_what_becomes_a_list_that_contains_itself_is_refused(run_script, value):
    """C sees another value than the argument: the list."""
    code, output = run_script(
        ENDLESS
        + f"""
attempt(ffi.structural_hash, {value})
attempt(ffi.structural_equal, {value}, {value})
attempt(ffi.StructuralKey, {value})
attempt(ffi.structural_walk, {value})
attempt(ffi.structural_map, {value})
attempt(ffi.serialization.to_json_graph_str, {value})
attempt(ffi.structural_visit, [1], (ffi.Array, lambda v, visitor: visitor.visit({value})))
attempt(ffi.structural_mutate, [1], (ffi.Array, lambda v, run: run.default_mutate({value})))
""",
        prelude="",
    )
    assert (code, output.splitlines()) == (0, [REFUSED] * 8)


@pytest.mark.parametrize("value", ["theirs", "[theirs]"])
def test_a_list_of_tvm_ffi_that_contains_itself_is_refused(run_script, value):
    peer("tvm_ffi")
    code, output = run_script(
        "import sys; sys.modules['torch'] = None; import tvm_ffi\n"
        + ENDLESS
        + f"""
theirs = tvm_ffi.List([1])
theirs.append(theirs)
attempt(ffi.structural_hash, {value})
""",
        prelude="",
    )
    assert (code, output.strip()) == (0, REFUSED)


def test_keys_that_contain_themselves_later_are_not_compared(run_script):
    code, output = run_script(
        ENDLESS
        + """
a, b = ffi.List(), ffi.List()
one, other = ffi.StructuralKey(a), ffi.StructuralKey(b)
a.append(a)
b.append(b)
attempt(lambda: one == other)
""",
        prelude="",
    )
    assert (code, output.strip()) == (0, REFUSED)


def test_readonly_tensors_are_hashed():
    array = np.arange(3.0)
    expected = ffi.structural_hash(array)
    array.flags.writeable = False
    assert ffi.structural_hash(ffi.readonly(array)) == expected
    assert ffi.structural_hash([ffi.readonly(array)]) == ffi.structural_hash([array.copy()])
    assert ffi.structural_walk(ffi.readonly([array])) is None


@pytest.mark.parametrize(
    ("walk", "root", "callback", "error"),
    [
        ("map", "[1]", "(ffi.Array, lambda value: [value])", TOO_DEEP),
        ("map", "[1]", "(int, lambda value: [value])", TOO_DEEP),
        ("map", "[1]", "(int, lambda value: endless)", REFUSED),
        ("map", "[1]", "(int, lambda value: ffi.readonly(endless))", REFUSED),
        ("walk", "[ffi.List()]", "(ffi.List, lambda v: v.append(ffi.List()))", TOO_DEEP),
        ("walk", "[ffi.List()]", "(ffi.List, lambda v: v.append(v))", REFUSED),
    ],
)
def test_what_a_callback_makes_is_looked_at_before_it_is_walked(
    run_script, walk, root, callback, error
):
    code, output = run_script(
        ENDLESS + f"attempt(ffi.structural_{walk}, {root}, {callback}, order='pre')\n",
        prelude="",
    )
    assert code == 0, output
    assert output.startswith(error)


def test_pre_order_goes_as_deep_as_is_allowed():
    root, seen = ffi.Map(), []
    for _ in range(MAX_DEPTH - 2):
        root = ffi.Map({1: root})
    ffi.structural_walk(root, (ffi.Map, lambda value: seen.append(1)), order="pre")
    assert len(seen) == MAX_DEPTH - 1


def test_pre_order_map_of_many_values():
    many = ["x"] * 10_000
    found = ffi.structural_map(many, (str, lambda value: [1, 2]), order="pre")
    assert len(found) == 10_000
    assert found[9_999] == ffi.Array([1, 2])
