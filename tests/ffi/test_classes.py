"""Classes out of the type table. Sections are those of the notes on the TVM-FFI C API."""

from __future__ import annotations

import copy
import gc
import inspect
import weakref

import pytest

from dlbridge import Device, dtype as as_dtype, ffi
from dlbridge.conformance.cases import in_threads
from dlbridge.ffi import classes
from dlbridge.ffi.any import use_count
from dlbridge.ffi.dataclasses import c_class
from dlbridge.ffi.reflection import Field, info_of


@pytest.fixture
def cls(testing):
    """``cls("TestIntPair")`` is the class of testing.TestIntPair."""
    assert testing("nop") is not None  # the library is loaded
    return lambda name: ffi.object_class(f"testing.{name}")


@pytest.fixture
def registered(monkeypatch):
    """Classes registered in the test are forgotten after it."""
    monkeypatch.setattr(classes, "_classes", dict(classes._classes))


# --- Fields ---------------------------------------------------------------------


def test_read_only_field(cls):
    pair = cls("TestIntPair")(1, 2)
    for change in (lambda: setattr(pair, "a", 3), lambda: delattr(pair, "a")):
        with pytest.raises(AttributeError, match=r"field 'a' of testing\.TestIntPair"):
            change()
    assert pair.a == 1
    with pytest.raises(AttributeError):
        pair.c
    with pytest.raises(AttributeError):
        pair.c = 1  # no instance dict to hide a typing error in


def test_field_of_the_wrong_type(cls):
    thing = cls("TestObjectBase")()
    with pytest.raises(TypeError, match=r"field 'v_i64' of testing\.TestObjectBase: .*`int`"):
        thing.v_i64 = "text"
    assert thing.v_i64 == 10


def test_every_type_of_field(cls):
    thing = cls("SchemaAllTypes").make_with(3, 1.5, "text")
    values = {
        "v_bool": False,
        "v_int": 2**62,
        "v_float": -0.5,
        "v_device": Device.of(2, 1),
        "v_dtype": as_dtype("bfloat16"),
        "v_string": "a longer string, on the heap",
        "v_bytes": b"bytes that are on the heap, too",
        "v_opt_int": 4,
        "v_opt_str": "given",
        "v_arr_int": [1, 2, 3],
        "v_arr_str": ["a", "b"],
        "v_map_str_int": {"k": 1},
        "v_map_str_arr_int": {"k": [1, 2]},
        "v_variant": [1, 2],
        "v_opt_arr_variant": [1, "two"],
    }
    assert {field.name for field in info_of(thing._index).fields} == set(values)
    for name, value in values.items():
        setattr(thing, name, value)
        assert getattr(thing, name) == value, name
    thing.v_opt_int = thing.v_opt_arr_variant = None
    assert thing.v_opt_int is None
    assert thing.v_opt_arr_variant is None


def test_field_describes_itself(cls):
    field = cls("SchemaAllTypes").v_opt_arr_variant
    assert isinstance(field, Field)
    assert field.annotation == "Array[int | str] | None"
    assert (
        repr(field)
        == "<field 'v_opt_arr_variant' of testing.SchemaAllTypes: Array[int | str] | None>"
    )
    assert inspect.getdoc(cls("SchemaAllTypes").v_bool) == "bool field"
    assert cls("SchemaAllTypes").v_bool.metadata["str_attr"] == "hello"
    assert inspect.getdoc(cls("TestCxxAutoInit").a) == "a: int"


def test_defaults(cls):
    assert cls("TestObjectBase").v_i64.default == 10
    assert cls("TestObjectBase").v_str.default == "hello"
    assert not cls("TestIntPair").a.has_default
    with pytest.raises(AttributeError, match="no default"):
        cls("TestIntPair").a.default


# --- Methods and constructors ---------------------------------------------------


def test_methods(cls):
    pair = cls("TestIntPair")(3, 4)
    assert pair.sum() == 7
    assert inspect.getdoc(pair.sum) == "Method to compute sum of a and b"
    assert pair.sum.__name__ == "sum"
    assert str(inspect.signature(cls("TestObjectBase").add_i64)) == (
        "(arg0: 'testing.TestObjectBase', arg1: 'int', /) -> 'int'"
    )
    thing = cls("SchemaAllTypes").make_with(1, 2.0, "x")
    assert thing.merge_map({"a": [1]}, {"b": [2]}) == {"a": [1], "b": [2]}


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("TestIntPair", "(arg0: 'int', arg1: 'int', /)"),
        ("TestObjectBase", "(v_i64: 'int' = 10, v_f64: 'float' = 10.0, v_str: 'str' = 'hello')"),
        ("TestCxxKwOnly", "(*, x: 'int', y: 'int', z: 'int', w: 'int' = 100)"),
        ("TestCxxInitSubset", "(required_field: 'int')"),
        ("TestCxxAutoInitAllInitOff", "()"),
        ("TestCxxNoAutoInit", "()"),
        (
            "TestCxxAutoInitKwOnlyDefaults",
            "(p_required: 'int', p_default: 'int' = 11, *, k_required: 'int', k_default: 'int' = 22)",
        ),
        (
            "TestCxxAutoInitChild",
            "(parent_required: 'int', child_required: 'int', parent_default: 'int' = 5, *, child_kw_only: 'int')",
        ),
    ],
)
def test_signatures_of_constructors(cls, name, signature):
    assert str(inspect.signature(cls(name))) == signature


def test_constructors(cls):
    made = cls("TestCxxAutoInitKwOnlyDefaults")(1, k_required=3)
    assert (made.p_required, made.p_default, made.k_required, made.k_default) == (1, 11, 3, 22)
    child = cls("TestCxxAutoInitChild")(1, 2, 3, child_kw_only=4)
    assert (child.parent_required, child.child_required, child.parent_default) == (1, 2, 3)
    assert cls("TestCxxAutoInitAllInitOff")().x == 7
    derived = cls("TestObjectDerived")(v_map={"a": 1}, v_array=[1, 2], v_i64=5)
    assert (derived.v_map, derived.v_array, derived.v_i64) == ({"a": 1}, [1, 2], 5)
    assert cls("TestUnregisteredObject")(1, 2).get_v2_plus_two() == 4


@pytest.mark.parametrize(
    ("name", "arguments", "keywords", "message"),
    [
        ("TestIntPair", (1,), {}, "Expected 2 but got 1"),
        ("TestIntPair", (1, "x"), {}, "Expected `int`"),
        ("TestIntPair", (), {"a": 1, "b": 2}, "positional arguments only"),
        ("TestCxxKwOnly", (1,), {}, "takes at most 0 positional"),
        ("TestCxxKwOnly", (), {"x": 1}, "missing required keyword-only argument: 'y'"),
        ("TestCxxKwOnly", (), {"x": 1, "q": 1}, "unexpected keyword argument 'q'"),
        ("TestCxxAutoInitSimple", (1,), {}, "missing required argument: 'y'"),
        ("TestCxxAutoInitSimple", (1, 2), {"x": 1}, "multiple values"),
        ("TestCxxNoAutoInit", (1, 2), {}, "no constructor that can be called from Python"),
    ],
)
def test_constructors_refuse(cls, name, arguments, keywords, message):
    with pytest.raises(TypeError, match=message):
        cls(name)(*arguments, **keywords)


def test_construct_twice(cls):
    pair = cls("TestIntPair")(1, 2)
    with pytest.raises(TypeError, match="constructed already"):
        pair.__init__(3, 4)
    assert pair.a == 1


# --- The hierarchy --------------------------------------------------------------


def test_isinstance_along_the_hierarchy(cls, testing):
    base, derived, last = map(
        cls, ("TestCxxClassBase", "TestCxxClassDerived", "TestCxxClassDerivedDerived")
    )
    assert last.__mro__[:4] == (last, derived, base, ffi.Object)
    thing = testing("make_unregistered_object")()
    assert type(thing) is cls("TestUnregisteredObject")
    assert isinstance(thing, cls("TestUnregisteredBaseObject"))
    assert isinstance(thing, ffi.Object)
    assert not isinstance(thing, base)
    assert (thing.v1, thing.v2) == (41, 42)
    assert thing.get_v1_plus_one() == 42


def test_the_parents_class_may_be_made_first_or_last(cls):
    # A type's constructor must not be taken for its descendants'.
    kept = ffi.Array(
        [cls("TestCxxAutoInitParent")(1), cls("TestCxxAutoInitChild")(1, 2, child_kw_only=3)]
    )
    assert [type(thing).__name__ for thing in kept] == [
        "TestCxxAutoInitParent",
        "TestCxxAutoInitChild",
    ]


@pytest.mark.parametrize("key", ["testing.TestNoSuchThing", "", "ffi.", "x" * 1000])
def test_unknown_type_key(key):  # 4.10: GetTypeInfo would end the process
    with pytest.raises(ValueError, match="get_registered_type_keys"):
        ffi.object_class(key)


def test_registered_type_keys(testing):
    testing("nop")
    keys = ffi.get_registered_type_keys()
    assert keys == sorted(keys)
    assert {"ffi.Object", "ffi.Array", "testing.TestIntPair"} <= set(keys)


def test_one_class_per_type(cls):
    assert len(set(in_threads(8, lambda _: cls("TestVisitRegions")))) == 1


@pytest.mark.parametrize("key", ["int", "None", "DLTensor*", "ffi.SmallStr"])
def test_types_of_plain_values_have_no_class(key):
    with pytest.raises(ValueError, match="plain value"):
        ffi.object_class(key)


def test_reading_a_field_that_is_interrupted(monkeypatch):
    """The value was made already when the signal came: its reference is given back."""
    value = ffi.List([1])
    thing = ffi.get_global_func("ffi.VisitInterrupt")(value)
    field = type(thing).value
    real = field._get

    def interrupted(*places):
        real(*places)
        raise KeyboardInterrupt

    monkeypatch.setattr(field, "_get", interrupted)
    before = use_count(value._handle)
    for _ in range(10):
        with pytest.raises(KeyboardInterrupt):
            thing.value
    assert use_count(value._handle) == before
    monkeypatch.undo()
    assert thing.value is value
    assert use_count(value._handle) == before


def test_field_of_another_type(cls):
    # At its place another type has something else, or nothing.
    pair, thing = cls("TestIntPair")(1, 2), cls("TestObjectDerived")({}, [])
    field = cls("TestObjectBase").v_str
    assert field.__get__(thing) == "hello"
    for use in (lambda: field.__get__(pair), lambda: field.__set__(pair, "x")):
        with pytest.raises(
            TypeError, match=r"TestIntPair has no field 'v_str' of testing\.TestObj"
        ):
            use()


# --- Identity -------------------------------------------------------------------


def test_one_wrapper_per_object(cls):  # 2.2: tvm_ffi makes a new one each time
    holder = cls("TestObjectPtrHolder")(cls("TestObjectBase")())
    assert holder.value is holder.value
    inner = holder.value
    inner.v_i64 = 99
    assert holder.value.v_i64 == 99
    holder.optional_value = inner
    assert holder.optional_value is inner
    del inner
    alive = weakref.ref(holder.value)
    assert alive() is None  # the wrapper; the object lives on
    inner = holder.value
    alive = weakref.ref(inner)
    del holder
    gc.collect()
    assert alive() is inner
    assert inner.v_i64 == 99


# --- repr, copies ----------------------------------------------------


def test_repr(cls):
    assert repr(cls("TestIntPair")(1, 2)) == "testing.TestIntPair(a=1, b=2)"
    assert repr([cls("TestIntPair")(1, 2)]) == "[testing.TestIntPair(a=1, b=2)]"


def test_copies(cls):
    pair = cls("TestIntPair")(1, 2)
    holder = cls("TestDeepCopyEdges")(v_any=pair, v_obj=ffi.List([pair]))
    shallow, deep = copy.copy(holder), copy.deepcopy(holder)
    assert shallow is not holder
    assert shallow.v_any is pair
    assert deep.v_any is not pair
    assert deep.v_any is deep.v_obj[0]
    assert deep.v_any.a == 1
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(cls("TestNonCopyable")(1))
    with pytest.raises(RuntimeError):
        copy.deepcopy(cls("TestNonCopyable")(1))


# --- Classes of one's own -------------------------------------------------------


def test_register_object(cls, registered):
    @ffi.register_object("testing.TestObjectBase")
    class Base(ffi.Object):
        """Mine."""

        def __init__(self, value):
            self.__ffi_init__(v_i64=value)

        @property
        def v_str(self):
            return "mine"

        def twice(self):
            return 2 * self.v_i64

    thing = Base(21)
    assert thing.twice() == 42
    assert thing.v_str == "mine"
    assert thing.add_i64(1) == 22
    holder = cls("TestObjectPtrHolder")(thing)
    del thing
    assert type(holder.value) is Base
    assert isinstance(cls("TestObjectDerived")({}, []), Base)


def test_register_with_another_constructor(cls, registered):
    @ffi.register_object("testing.TestObjectBase")
    class Base(ffi.Object):
        def __init__(self, make):
            self.__init_handle_by_constructor__(ffi.convert_func(make))

    inner = cls("TestObjectDerived")({}, [], v_i64=5)
    assert Base(lambda: inner).v_i64 == 5
    for wrong in (lambda: cls("TestIntPair")(1, 2), lambda: 5, lambda: None):
        with pytest.raises(TypeError, match="constructor of Base returned"):
            Base(wrong)


def test_register_without_the_parents_class(cls, registered):
    @ffi.register_object("testing.TestObjectDerived")
    class Derived(ffi.Object):
        v_f64 = "mine"

    @ffi.register_object("testing.TestUnregisteredObject")
    class Unregistered(ffi.Object):
        pass

    assert Unregistered(1, 2).get_v1_plus_one() == 2
    thing = Derived({}, [], v_i64=7)
    assert (thing.v_i64, thing.v_str, thing.v_f64) == (7, "hello", "mine")
    assert thing.add_i64(1) == 8


def test_register_again(cls, registered):
    made = []
    for _ in range(2):

        @ffi.register_object("testing.TestCxxClassBase")
        class Base(ffi.Object):
            pass

        made.append(Base)
        assert cls("TestCxxClassDerived").__mro__[1] is Base
        assert type(Base(1, 2)) is Base
    assert made[0] is not made[1]


def test_register_by_class_name(cls, registered):
    with pytest.raises(ValueError, match="no type 'Unheard'"):
        ffi.register_object(type("Unheard", (ffi.Object,), {}))


def test_what_cannot_be_registered(cls, registered):
    """Objects of such a class would fail later, or read what is not theirs."""
    before = cls("TestIntPair")
    for wrong in (type("Plain", (), {}), 5, lambda: None):
        with pytest.raises(TypeError, match=r"Object"):
            ffi.register_object("testing.TestIntPair")(wrong)
    bases = [ffi.Array, ffi.List, ffi.Map, ffi.Dict, ffi.Function, ffi.Error]
    for base in bases:
        wrong = type("Wrong", (base,), {})
        with pytest.raises(
            TypeError, match=rf"Wrong.*testing\.TestIntPair.*derives from {base.__name__}"
        ):
            ffi.register_object("testing.TestIntPair")(wrong)
        assert not hasattr(wrong, "a")
    with pytest.raises(TypeError, match=r"ffi\.List.*derives from Array"):
        ffi.register_object("ffi.List")(type("Wrong", (ffi.Array,), {}))
    assert cls("TestIntPair") is before
    assert type(before(1, 2)) is before


def test_object_without_a_handle_is_refused(echo):
    class Empty(ffi.Object):
        pass

    for use in (echo, repr, lambda x: x._move()):
        with pytest.raises((AttributeError, TypeError, ValueError)):
            echo(use(Empty()))


def test_c_class(cls, registered):
    @c_class("testing.TestCompare", eq=True, order=True, unsafe_hash=True)
    class Compare(ffi.Object):
        pass

    low, same, high = Compare(1, "a", 5), Compare(1, "a", 6), Compare(2, "a", 5)
    assert low == same  # the third field is not compared
    assert hash(low) == hash(same)
    assert low != high
    assert low < high
    assert low <= same
    assert high > low
    assert high >= same
    assert low != "something else"
    with pytest.raises(TypeError):
        assert low < 5
    assert Compare.__match_args__ == ("key", "name", "ignored_field")


@pytest.mark.parametrize(
    ("key", "options", "use", "message"),
    [
        ("TestCxxAutoInitSimple", {"eq": True}, lambda cls: hash(cls(1, 2)), "unhashable"),
        ("TestIntPair", {"init": False}, lambda cls: cls(1, 2), "not constructed directly"),
    ],
)
def test_what_a_c_class_refuses(cls, registered, key, options, use, message):
    made = c_class(f"testing.{key}", **options)(type(key, (ffi.Object,), {}))
    with pytest.raises(TypeError, match=message):
        use(made)
