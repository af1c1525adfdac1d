"""Array, List, Map, Dict and Shape. Sections are those of the notes on the TVM-FFI C API."""

from __future__ import annotations

import collections
import collections.abc
import copy
import gc
import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, strategies as st

import dlbridge
from dlbridge import ffi
from dlbridge.ffi.any import use_count
from dlbridge.ffi.containers import changing
from tests.ffi.producers import TableTensor
from tests.support.stream_backend import Streams, installed

VALUES = [None, True, 7, 2**70, 1.5, "short", "a longer string", b"bytes of some length", b""]
SEQUENCES = [ffi.Array, ffi.List]
MAPPINGS = [ffi.Map, ffi.Dict]

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)


def plain(value):
    """A container as Python's own, all the way down."""
    if isinstance(value, (ffi.Array, ffi.List)):
        return [plain(item) for item in value]
    if isinstance(value, (ffi.Map, ffi.Dict)):
        return {key: plain(item) for key, item in value.items()}
    return value


# --- Arguments ------------------------------------------------------------------


@given(trees)
def test_any_tree_goes_round(testing, tree):  # 2.2: tuple, list -> Array, dict -> Map
    assert plain(testing("echo")(tree)) == tree


@pytest.mark.parametrize(
    ("value", "cls"),
    [
        ([1], ffi.Array),
        ((1, 2), ffi.Array),
        ([], ffi.Array),
        ({}, ffi.Map),
        ({1: 2}, ffi.Map),
        (collections.OrderedDict(a=1), ffi.Map),
        (collections.namedtuple("Pair", "a b")(1, 2), ffi.Array),
    ],
)
def test_python_containers_arrive_as(echo, value, cls):
    assert type(echo(value)) is cls
    assert len(echo(value)) == len(value)


def test_list_that_contains_itself_is_refused(echo):
    values = []
    values.append(values)
    with pytest.raises(RecursionError):
        echo(values)


def test_list_object_that_contains_itself_passes(echo):
    # The compiled binding scans arguments for devices, and overflows its stack here.
    values = ffi.List()
    values.append(values)
    values.append(ffi.Dict({"again": values}))
    assert echo(values) is values
    assert repr(values) == '[..., {"again": ...}]'


# --- Sequences ------------------------------------------------------------------


@pytest.mark.parametrize("cls", SEQUENCES)
def test_reading_a_sequence(cls):
    values = cls(VALUES)
    assert list(values) == VALUES
    assert len(values) == len(VALUES)
    assert [values[i] for i in range(len(VALUES))] == VALUES
    assert [values[-i - 1] for i in range(len(VALUES))] == VALUES[::-1]
    assert list(reversed(values)) == VALUES[::-1]
    assert values[1:7:2] == VALUES[1:7:2]
    assert values[-2::-3] == VALUES[-2::-3]
    assert isinstance(values, collections.abc.Sequence)
    assert 2**70 in values
    assert "absent" not in values
    assert values.index("short") == 5
    assert values.count(7) == 1
    assert list(map(type, values)) == list(map(type, VALUES))
    with pytest.raises(ValueError, match="absent"):
        values.index("absent")


@pytest.mark.parametrize("cls", SEQUENCES)
@pytest.mark.parametrize("index", [3, -4, 100, -100])
def test_index_out_of_range(cls, index):
    with pytest.raises(
        IndexError, match=rf"index {index} is out of range for {cls.__name__} of size 3"
    ):
        cls("abc")[index]
    with pytest.raises(
        TypeError, match=f"{cls.__name__} indices must be integers or slices, not str"
    ):
        cls("abc")["1"]


@pytest.mark.parametrize("cls", SEQUENCES)
@pytest.mark.parametrize(
    "values",
    [
        range(1000),
        [-(2**63), 2**63 - 1, 0],
        [2**63, 1],
        [0.5, float("inf"), -0.0],
        [1, 0.5],
        [True, 1],
        ["text"] * 300,
        ["", "a", "a text of more than seven bytes", "äöü€", ""],
        ["a", "nul\0 inside", "b" * 100],
        [b"\xff and more than that".decode("utf-8", "surrogateescape"), "\udcff"],
        [np.int32(3), 4],
    ],
)
def test_numbers_are_read_at_once(cls, values):  # 1.3 SeqCell
    read = list(cls(values))
    assert read == list(values)
    assert [type(x) for x in read] == [
        int if isinstance(x, np.integer) else type(x) for x in values
    ]


@pytest.mark.parametrize("cls", SEQUENCES)
def test_concatenation(cls):
    one, front, back = cls([1]), [0], (2,)
    assert one + back == cls([1, 2])
    assert front + one == cls([0, 1])
    assert back + one == cls([2, 1])
    assert type(one + front) is type(front + one) is cls
    with pytest.raises(TypeError):
        cls([1]) + 2
    with pytest.raises(TypeError):
        2 + cls([1])


@pytest.mark.parametrize("cls", SEQUENCES)
def test_equality_and_hash_of_sequences(cls):
    assert cls([1, "a", [2.5]]) == cls([1, "a", [2.5]])
    assert hash(cls([1, "a", [2.5]])) == hash(cls([1, "a", [2.5]]))
    assert cls([1]) == [1]
    assert tuple.__eq__((1,), cls([1])) is NotImplemented
    assert cls([1]) == (1,)
    assert cls([1]) != [2]
    assert cls([1]) != "1"
    assert cls([1]) != 1
    assert cls(["a"]) != "a"
    assert ffi.Array([1]) == ffi.List([1])
    # The library's rule: other types are other values.
    assert cls([1]) != [1.0]
    assert cls([1]) != [True]
    assert [1] in cls([[1], [2]])
    assert [3] not in cls([[1], [2]])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: ffi.Array([1, x]),
        lambda x: ffi.List([[x]]),
        lambda x: ffi.Map({"k": x}),
        lambda x: ffi.Dict({"k": [1, {"l": x}]}),
    ],
)
def test_equality_of_what_has_no_value(wrap):
    # To the library any two tensors are equal, any two functions, any two Python objects.
    zeros, ones = (dlbridge.from_dlpack(np.full(3, x)) for x in (0.0, 1.0))
    f, g = ffi.convert_func(len), ffi.convert_func(print)
    for one, other in (
        (zeros, ones),
        (f, g),
        (object(), object()),
        ({1}, {2}),
        (ffi.Error("ValueError", "a"), ffi.Error("ValueError", "b")),
        (ValueError("x"), ValueError("x")),
        (ffi.system_lib("dlbridge.a."), ffi.system_lib("dlbridge.b.")),
    ):
        same, again, different = wrap(one), wrap(one), wrap(other)
        assert same == same
        assert same == again
        assert same != different
        assert hash(same) == hash(again)
    assert wrap({1, 2}) == wrap({2, 1})  # as Python says


@pytest.mark.parametrize("beside", [[], [[1]]], ids=["alone", "beside a list"])
def test_equality_of_objects_of_cxx(testing, beside):
    """Containers of them are compared by their fields; each is found as itself only."""
    assert testing("nop")
    cls = ffi.object_class("testing.TestIntPair")
    pair = cls(1, 2)
    values = ffi.List([cls(1, 2), pair, *beside])
    assert values == ffi.List([cls(1, 2), cls(1, 2), *beside])
    assert values != ffi.List([cls(1, 2), cls(1, 3), *beside])
    assert cls(1, 2) not in values
    assert values.index(pair) == 1
    values.remove(pair)  # to the library, fields with any two tensors are equal, too
    assert pair not in values


def test_equality_of_what_contains_itself():
    one, other = ffi.List([len]), ffi.List([len])
    one.append(one)
    other.append(other)
    assert one != other  # two functions
    one[0] = other[0] = 1
    assert one == other


@pytest.mark.parametrize("cls", SEQUENCES)
def test_copies_and_pickles_of_sequences(cls):
    values = cls([1, "a", [2.5, None]])
    assert pickle.loads(pickle.dumps(values)) == values
    assert type(pickle.loads(pickle.dumps(values))) is cls
    assert copy.deepcopy(values) == values
    assert copy.copy(values) == values


def test_deep_copy_is_deep():
    inner = ffi.List([1])
    copied = copy.deepcopy(ffi.List([inner]))
    inner.append(2)
    assert copied[0] == [1]


def test_annotations():
    assert ffi.Array[int].__origin__ is ffi.Array
    assert ffi.Map[str, int].__args__ == (str, int)


# --- Lists change ---------------------------------------------------------------


def test_changing_a_list():
    """What tests/ffi/test_fuzz.py does not do, which changes lists as it changes Python's."""
    values = ffi.List([1])
    values.extend(x for x in (5, 6))
    values += [7]
    assert values == [1, 5, 6, 7]
    values.extend(values)
    assert len(values) == 8
    values[0] = [9]
    assert values[0] == [9]


class Late(ffi.ObjectConvertible):
    """Does *meanwhile* while it becomes a value."""

    def __init__(self, meanwhile):
        self.meanwhile = meanwhile

    def asobject(self):
        self.meanwhile()
        return "late"


def test_a_value_is_appended_at_the_end_that_the_list_has_then():
    values = ffi.List([1])
    values.append(Late(lambda: values.append(2)))
    assert list(values) == [1, 2, "late"]


@pytest.mark.parametrize("index", [None, "0", 1.0])
def test_insert_wants_an_integer(index):
    values = ffi.List([1])
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        values.insert(index, 2)
    assert list(values) == [1]


@pytest.mark.parametrize("cls", MAPPINGS)
@pytest.mark.parametrize(
    "ask", [lambda found, key: found.get(key), lambda found, key: key in found], ids=["get", "in"]
)
def test_a_key_error_of_a_keys_own_code_is_no_missing_key(cls, ask):
    def fail():
        raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        ask(cls({"a": 1}), Late(fail))


@pytest.mark.parametrize("constant", [ffi.Array([1]), ffi.Map({0: 2})], ids=repr)
def test_arrays_and_maps_do_not_change(constant):
    with pytest.raises(TypeError):
        constant[0] = 2
    assert not hasattr(constant, "append")
    assert not hasattr(constant, "update")


def test_finalizer_may_use_the_list_that_drops_its_object():
    # C++ frees removed elements while the List is half changed.
    seen = []

    class Watcher:
        def __init__(self, values):
            self.values = values

        def __del__(self):
            seen.append(list(self.values))

    values = ffi.List()
    for change in (
        values.clear,
        lambda: values.__delitem__(slice(None)),
        lambda: values.__delitem__(0),
        lambda: values.__setitem__(0, None),
        lambda: values.__setitem__(slice(None), []),
    ):
        values[:] = [Watcher(values), 1]
        change()
    assert [1] in seen
    assert len(seen) == 5


# --- Mappings -------------------------------------------------------------------


@pytest.mark.parametrize("cls", MAPPINGS)
def test_reading_a_mapping(cls):
    pairs = {"b": 1, "a": "text", 3: None, 1.5: [1, 2], b"k": {"x": 1}}
    mapping = cls(pairs)
    assert isinstance(mapping, collections.abc.Mapping)
    assert len(mapping) == 5
    assert list(mapping) == list(pairs)  # the order of insertion
    assert list(mapping.keys()) == list(pairs)
    assert plain(mapping) == pairs
    assert [plain(x) for x in mapping.values()] == list(pairs.values())
    assert dict(mapping.items())["a"] == "text"
    assert ("a", "text") in mapping.items()
    assert ("a", "other") not in mapping.items()
    assert "text" in mapping.values()
    assert len(mapping.items()) == len(mapping.values()) == 5
    assert mapping["a"] == "text"
    assert mapping[3] is None
    assert mapping.get("absent") is None
    assert mapping.get("absent", 5) == 5
    assert mapping.get(3, 5) is None
    assert "a" in mapping
    assert "absent" not in mapping
    assert {**cls({"x": 1})} == {"x": 1}
    with pytest.raises(KeyError, match="absent"):
        mapping["absent"]
    assert mapping.keys() & {"a", "zzz"} == {"a"}


@pytest.mark.parametrize("cls", MAPPINGS)
def test_empty_mapping(cls):  # 1.3: f(0) of an empty map's iterator dereferences its end
    mapping = cls()
    assert list(mapping) == list(mapping.items()) == list(mapping.values()) == []
    assert not mapping
    assert mapping == {}


@pytest.mark.parametrize("cls", MAPPINGS)
def test_large_mapping(cls):
    pairs = {f"key number {i}": i for i in range(500)}
    assert dict(cls(pairs)) == pairs


@pytest.mark.parametrize("cls", MAPPINGS)
def test_equality_hash_copies_of_mappings(cls):
    mapping = cls({"a": 1, "b": [2]})
    assert mapping == cls({"b": [2], "a": 1})
    assert hash(mapping) == hash(cls({"b": [2], "a": 1}))
    assert mapping == {"a": 1, "b": [2]}
    assert mapping != {"a": 1}
    assert mapping != 1
    assert ffi.Map({1: 2}) != ffi.Dict({1: 2})  # as in tvm_ffi
    for copied in (pickle.loads(pickle.dumps(mapping)), copy.deepcopy(mapping)):
        assert copied == mapping
        assert type(copied) is cls
    assert repr(mapping) == '{"a": 1, "b": (2,)}'


def test_mapping_of_pairs():
    assert ffi.Map([("a", 1)]) == {"a": 1}
    assert ffi.Dict(zip("ab", (1, 2), strict=True)) == {"a": 1, "b": 2}


def test_changing_a_dict():
    values = ffi.Dict({"a": 1})
    values["b"] = 2
    values["a"] = 3
    assert values == {"a": 3, "b": 2}
    assert values.pop("a") == 3
    assert values.pop("a", None) is None
    assert values.setdefault("c", 4) == 4
    values.update({"d": 5}, e=6)
    del values["b"]
    assert dict(values) == {"c": 4, "d": 5, "e": 6}
    assert values.popitem()[0] in "cde"
    for change in (lambda: values.pop("zzz"), lambda: values.__delitem__("zzz")):
        with pytest.raises(KeyError, match="zzz"):
            change()
    with pytest.raises(TypeError, match="from 2 to 3 positional arguments"):
        values.pop("a", 1, 2)
    values.clear()
    assert values == {}
    with pytest.raises(KeyError, match="empty"):
        values.popitem()


@pytest.mark.parametrize(
    "change",
    [
        lambda table, key: table.__setitem__(key, 1),
        lambda table, key: table.setdefault(key, 1),
        lambda table, key: table.pop(key, None),
    ],
    ids=["set", "setdefault", "pop"],
)
def test_a_moved_key_of_a_dict_is_refused(change):
    # The key is passed twice: to find the value that goes, and to change it.
    key, table = ffi.List([1]), ffi.Dict({"a": 1})
    with pytest.raises(TypeError, match=r"_move\(\).*pass the List itself"):
        change(table, key._move())
    assert key == [1]
    assert table == {"a": 1}


def test_dict_changed_while_it_is_iterated():
    # The library's own iterator would go on in freed memory.
    values = ffi.Dict({i: i for i in range(100)})
    for key in values:
        values[key + 1000] = key
        del values[key]
    assert len(values) == 100


def test_remove_of_a_list_that_changes_meanwhile():
    class Named:
        def __init__(self, name):
            self.name = name

        def __eq__(self, other):
            if len(values) == 3:
                values.pop(0)
            return self.name == other.name

        __hash__ = None

    first, second = Named("a"), Named("b")
    values = ffi.List([1, first, second])
    values.remove(Named("a"))
    assert len(values) == 1
    assert values[0] is second
    with pytest.raises(ValueError, match="not in the List"):
        values.remove(1)


def test_remove_of_a_list_compares_without_its_lock():
    free = []

    class Compared:
        def __eq__(self, other):
            with ThreadPoolExecutor(1) as others:
                free.append(others.submit(changing.acquire, False).result())
                if free[-1]:
                    others.submit(changing.release).result()
            if len(free) == 1:
                values[0] = Compared()
            return True

        __hash__ = None

    values = ffi.List([Compared()])
    values.remove(Compared())
    assert len(free) == 2
    assert all(free)


def test_setdefault_of_a_dict_that_changes_meanwhile():
    class Value:
        def __tvm_ffi_value__(self):
            values["k"] = 1
            return 2

    values = ffi.Dict()
    assert values.setdefault("k", Value()) == 1
    assert values == {"k": 1}


def test_an_interrupted_listing_of_a_mapping_leaves_no_reference():
    values = ffi.Map({key: ffi.Array([key]) for key in range(5)})
    places = [f"ffi{os.sep}{name}.py" for name in ("any", "containers", "objects")]
    last, turn = 1, 0

    def local(frame, event, _argument):
        nonlocal last
        last += event == "line"
        if last == turn:
            raise KeyboardInterrupt
        return local

    def trace(frame, _event, _argument):
        # No signal handler comes between the `try` of `shared` and the call in it.
        if frame.f_code.co_name == "shared":
            return None
        return local if any(place in frame.f_code.co_filename for place in places) else None

    before = sys.gettrace()
    while last >= turn:  # an interruption before each line in turn
        turn, last = turn + 1, 0
        try:
            sys.settrace(trace)
            list(values.values())
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        gc.collect()
        assert gc.isenabled()
        assert [use_count(value._handle) for value in values.values()] == [2] * 5, turn
    assert turn > 10


def test_value_that_looks_like_the_missing_one():
    missing = ffi.get_global_func("ffi.GetInvalidObject")()
    assert ffi.Map({"a": int(missing._handle)})["a"] == missing._handle


# --- Shapes ---------------------------------------------------------------------


@pytest.mark.parametrize("dims", [(), (0,), (1, 2, 3), (2**40,)])
def test_shape(echo, dims):  # 1.3 ShapeCell
    shape = ffi.Shape(dims)
    for found in (shape, echo(shape), echo(echo(shape)), pickle.loads(pickle.dumps(shape))):
        assert type(found) is ffi.Shape
        assert found == dims
    assert ffi.get_global_func("ffi.ReprPrint")(shape).startswith("Shape(")


def test_shape_wants_integers():
    assert ffi.Shape([np.int64(3)]) == (3,)
    with pytest.raises(TypeError):
        ffi.Shape([1.5])


# --- Tensors inside -------------------------------------------------------------


def test_streams_of_tensors_in_container_objects():
    seen = []
    look = ffi.convert_func(lambda *_args: seen.append(ffi.get_raw_stream("cuda:1")))
    with installed("cuda", Streams()) as plugin:
        plugin.current = 0x55
        tensor = dlbridge.to_device(np.arange(3.0), "cuda:1")
        look(1)
        look(tensor)
        look(ffi.List([1, ffi.Dict({"deep": ffi.Array([tensor])})]))
        look(ffi.Map({1: [tensor]}))
        cycle = ffi.List([1])
        cycle.append(cycle)
        look(ffi.List([cycle, ffi.Dict({"x": tensor})]))
        del tensor, cycle[:]
    assert seen == [0, *[0x55] * 4]
    assert ffi.get_raw_stream("cuda:1") == 0


# --- Lifetimes and threads --------------------------------------------------------


# --- Beside tvm_ffi ---------------------------------------------------------------


def test_streams_of_tensors_in_the_peers_containers():
    tvm_ffi = pytest.importorskip("tvm_ffi")
    seen = []
    look = ffi.convert_func(lambda *_args: seen.append(ffi.get_raw_stream("cuda:1")))
    with installed("cuda", Streams()) as plugin:
        plugin.current = 0x55
        look(tvm_ffi.Array([1, tvm_ffi.from_dlpack(TableTensor((2, 1)))]))
    assert seen == [0x55]


@pytest.mark.parametrize("key", [object(), (1, 2)], ids=["object", "tuple"])
def test_keys_that_are_not_found_again(key):
    """As docs/ffi.md says: the library's equality knows neither."""
    mapping = ffi.Dict()
    mapping[key] = 1
    assert len(mapping) == 1
    assert key not in mapping


def test_a_dict_of_counters_makes_what_is_missing():
    """A subclass whose ``__getitem__`` and ``get`` are its own: no other method asks them."""

    class Counter(ffi.Dict):
        def __getitem__(self, key):
            try:
                return super().__getitem__(key)
            except KeyError:
                self[key] = 0
                return 0

        def get(self, key, default=None):
            return self[key]

    counter = Counter()
    counter["a"] += 1
    assert counter.get("b") == 0
    assert (counter.pop("k", 7), counter.setdefault("z", 3), "q" in counter) == (7, 3, False)
    assert dict(counter.items()) == {"a": 1, "b": 0, "z": 3}


def test_an_index_of_pop_is_an_integer():
    with pytest.raises(TypeError, match="'slice' object cannot be interpreted as an integer"):
        ffi.List([1, 2]).pop(slice(0, 1))
