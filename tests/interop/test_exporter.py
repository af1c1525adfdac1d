"""`Exporter`: a class of arrays that others take as they take a Tensor, and the way back."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from asyncio import CancelledError
from dataclasses import dataclass

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.abi import TABLE_NAMES, ffi, own_export_of, table_of
from dlbridge.conformance import check
from tests.support.peers import peer
from tests.support.raw_producer import Producer, capsule_name, get_destructor, pointer_in
from tests.support.scripts import run_script
from tests.support.stream_backend import Streams, installed
from tests.support.table_calls import wrapped
from tests.support.toy_arrays import Array, Held, Pointer

FLOATS = np.arange(6, dtype="float32").reshape(2, 3)


@dataclass(frozen=True, slots=True)
class Image(bridge.Exporter, tensor="pixels"):
    """A dataclass with slots: its class is made twice."""

    pixels: bridge.Tensor
    name: str = ""

    @classmethod
    def __from_tensor__(cls, tensor):
        return cls(tensor, "made")


class Big(Array):
    """A subclass, whose objects the way back makes."""


class Override(Held):
    """Its method counts, not the attribute that a base class names."""

    def __as_tensor__(self):
        return self.tensor[1:]


class Cooperative:
    def __init_subclass__(cls, *, word="", **others):
        super().__init_subclass__(**others)
        cls.word = word


class Mixed(bridge.Exporter, Cooperative, tensor="tensor", word="here"):
    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def __from_tensor__(cls, tensor):
        return cls(tensor)


CLASSES = [Array, Held, Pointer, Image, Big, Mixed]


@pytest.fixture(params=CLASSES, ids=lambda cls: cls.__name__)
def cls(request):
    return request.param


@pytest.fixture
def x(cls):
    return cls(bridge.from_dlpack(FLOATS.copy()))


@pytest.fixture
def nothing_reported(reported):
    yield
    assert reported == []


LEAST = """
import dlbridge as bridge

class Array(bridge.Exporter{named}):
    def __init__(self, tensor): self.tensor = tensor
{method}

def asarray(array): return Array(bridge.asarray(array, copy=True))
def from_dlpack(x, /, **keywords): return Array(bridge.from_dlpack(x, **keywords))
"""
"""The least that a library can write: no attributes of arrays, and no way back."""
FORMS = {
    "toy": "from tests.support.toy_arrays import *",
    "by_method": LEAST.format(named="", method="    def __as_tensor__(self): return self.tensor"),
    "by_attribute": LEAST.format(named=', tensor="tensor"', method=""),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_suite_passes(form, tmp_path, monkeypatch):
    """What is not offered are arrays that a Tensor cannot be."""
    # Each case runs in a fork of the process that has imported this.
    (tmp_path / f"{form}.py").write_text(f"import tests.support.whole_core\n{FORMS[form]}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = check(form)
    older = np.lib.NumpyVersion(np.__version__) < "2.4.0"
    of_numpys_method = {"P15", "P16"} if older else set()
    assert {each for each in found if each.result in ("fail", "crash")
            and each.line not in of_numpys_method} == set()  # fmt: skip
    missing = {line.line for line in found if line.result != "pass"} - of_numpys_method
    cannot_be = {"P31", "P32", "P33"}
    on_devices = {"P17", "P18"} | {line for line in missing if line.startswith("S")}
    least = {"C32", "P39", "X6"} if form != "toy" else set()
    assert missing <= cannot_be | on_devices | least | {"X7"}  # X7: borrowing: not offered


# Out ----------------------------------------------------------------------------


CONSUMERS = {
    "numpy": (np.from_dlpack, np.asarray),
    "torch": (lambda x: peer("torch").from_dlpack(x), np.asarray),
    "jax": (lambda x: peer("jax.dlpack").from_dlpack(x), np.asarray),
    "tvm_ffi": (lambda x: peer("tvm_ffi").from_dlpack(x), np.from_dlpack),
    "dlbridge": (bridge.from_dlpack, np.asarray),
    "asarray": (bridge.asarray, np.asarray),
    "np.asarray": (np.asarray, np.asarray),
    "np.array": (lambda x: np.array(x, "float64"), np.asarray),
    "__array__": (lambda x: x.__array__(copy=True), np.asarray),
}


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_consumers(consumer, x):
    take, values = CONSUMERS[consumer]
    assert values(take(x)).tolist() == FLOATS.tolist()


def test_pyarrow(cls):
    """By Arrow's own interface."""
    pyarrow = peer("pyarrow")
    assert pyarrow.array(cls(bridge.from_dlpack(FLOATS[0].copy()))).to_pylist() == [0, 1, 2]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="PEP 688 is of CPython 3.12")
def test_the_buffer_protocol(x):
    view = memoryview(x)
    assert (view.shape, view.format, view.readonly) == ((2, 3), "f", False)
    view[0, 0] = 9
    assert bridge.asarray(x).tolist()[0][0] == 9
    assert bytes(x) == view.tobytes()


def test_on_a_device():
    with installed("cuda", Streams()) as streams:
        at = FLOATS.ctypes.data
        x = Held(bridge.from_blob(at, (2, 3), "float32", device="cuda:1", stream=7))
        assert x.__dlpack_device__() == (2, 1)
        assert x.__cuda_array_interface__["data"] == (at, False)
        assert not hasattr(x, "__array_interface__")
        assert not hasattr(Held(bridge.zeros(3)), "__cuda_array_interface__")
        with pytest.raises(BufferError, match="cuda:1"):
            np.asarray(x, copy=False)
        streams.log.clear()
        x.__dlpack__(stream=5, max_version=(1, 0))
        assert streams.log == [("wait", 5, 0)]
        out = ctypes.c_void_p()
        streams.current = 0xAB
        table = ffi.cast("DLPackExchangeAPI *", pointer_in(Held.__dlpack_c_exchange_api__))
        assert table.current_work_stream(2, 1, ffi.cast("void **", ctypes.addressof(out))) == 0
        assert out.value == 0xAB


@pytest.mark.parametrize("offset", [0, 8])
def test_memory_that_is_lent_to_each_consumer(offset):
    """It was given back while numpy's array was in use: numpy keeps the object, and not a Tensor."""
    at = np.arange(4.0)
    lent = []

    class Lending(bridge.Exporter):
        def __as_tensor__(self):
            lent.append(1)
            address = at.ctypes.data + offset
            return bridge.from_blob(address, 3, "float64", deleter=lambda _: lent.pop())

    assert not hasattr(Lending(), "__array_interface__")  # an address would outlive it
    for take in (np.asarray, lambda x: np.array(x, copy=False), np.from_dlpack):
        array = take(Lending())
        gc.collect()
        assert len(lent) == 1
        assert array.ctypes.data == at.ctypes.data + offset
        del array
        gc.collect()
        assert not lent


def test_all_of_ours_take_it(x):
    tensor = bridge.from_dlpack(x)
    assert bridge.to_device(x, "cpu", like="numpy").tolist() == FLOATS.tolist()
    assert bridge.device_of(x) is bridge.device("cpu")
    assert "no copy" in str(bridge.explain(x, "cpu"))
    bridge.copy_(x, np.full((2, 3), 7, "float32"))
    assert tensor.tolist() == [[7] * 3] * 2
    assert bridge.empty_like(x).shape == (2, 3)
    assert bridge.from_dlpack(x, copy=True).data_ptr() != tensor.data_ptr()


def test_an_array_in_a_list(x):
    assert bridge.asarray([x, x]).tolist() == [FLOATS.tolist()] * 2


def test_functions_take_it_and_give_it_back(cls, x):
    @bridge.accepts("numpy")
    def doubled(array):
        assert isinstance(array, np.ndarray)
        return array * 2

    y = doubled(x)
    assert type(y) is cls
    assert bridge.asarray(y).tolist() == (FLOATS * 2).tolist()


def test_compiled_functions_take_it(x):
    """Negative strides, too, whose elements they may write to."""
    peer("tvm_ffi")
    seen = []
    function = bridge.ffi.convert(lambda t: seen.append((t.shape, t.strides, t.data_ptr())))
    function(x)
    tensor = bridge.from_dlpack(x)
    backwards = type(x)(tensor[::-1])
    function(backwards)
    assert [(tuple(shape), tuple(steps)) for shape, steps, _ in seen] == [
        ((2, 3), (3, 1)),
        ((2, 3), (-3, 1)),
    ]
    assert seen[0][2] == tensor.data_ptr()


# The table ----------------------------------------------------------------------


def test_both_names_and_a_table_for_each_class():
    addresses = set()
    for cls in CLASSES:
        first, second = (getattr(cls, name) for name in TABLE_NAMES)
        assert first is second
        assert capsule_name(first) == "dlpack_exchange_api"
        assert not get_destructor(first)
        addresses.add(pointer_in(first))
        assert getattr(cls, TABLE_NAMES[0]) is first
        table = ffi.cast("DLPackExchangeAPI *", pointer_in(first))
        assert (table.header.version.major, table.header.version.minor) == (1, 3)
        assert table.managed_tensor_allocator != ffi.NULL
    assert len(addresses) == len(CLASSES)
    assert not hasattr(bridge.Exporter, TABLE_NAMES[0])


def test_a_subclass_that_is_asked_before_its_base():
    class First(Array):
        pass

    class Second(First):
        pass

    for cls in (Second, First):
        assert type(table_of(cls).wrap_export(own_export_of(bridge.zeros(3)))) is cls


def test_back_without_a_method():
    class OneWay(bridge.Exporter):
        def __as_tensor__(self):
            return bridge.zeros(3)

    raw = Producer((2, 3), content=FLOATS.tobytes())
    made = wrapped(table_of(OneWay), raw.build())
    assert isinstance(made, bridge.Tensor)
    del made
    with pytest.raises(TypeError, match="without the class method __from_tensor__"):
        bridge.to_device(FLOATS, "cpu", like=OneWay)


def test_methods_that_a_class_gets_later(monkeypatch):
    """Also one without our base class, which was no tensor when it was asked first."""
    peer("tvm_ffi")

    class Later:
        pass

    class LaterBack(bridge.Exporter):
        def __as_tensor__(self):
            return bridge.zeros(3)

    for cls in (Later, LaterBack):
        cls.__qualname__ = cls.__name__
        monkeypatch.setattr(sys.modules[__name__], cls.__name__, cls, raising=False)
    x, seen = Later(), []
    function = bridge.ffi.convert(lambda t: seen.append(getattr(t, "shape", None)))
    function(x)
    with pytest.raises(TypeError, match="no __dlpack__"):
        bridge.from_dlpack(x)
    Later.__as_tensor__ = lambda _self: bridge.zeros(2)
    function(x)
    assert seen == [None, (2,)]
    assert bridge.from_dlpack(x).shape == (2,)

    raw = Producer((2, 3), content=FLOATS.tobytes())
    assert isinstance(wrapped(table_of(LaterBack), raw.build()), bridge.Tensor)
    LaterBack.__from_tensor__ = classmethod(lambda cls, _tensor: cls())
    assert type(wrapped(table_of(LaterBack), raw.build())) is LaterBack
    assert type(bridge.to_device(FLOATS, "cpu", like=LaterBack)) is LaterBack


class Failing(bridge.Exporter):
    def __as_tensor__(self):
        raise LookupError("no memory any more")

    @classmethod
    def __from_tensor__(cls, tensor):
        raise LookupError("not wanted")


def test_a_method_that_fails(nothing_reported):
    """Its exception comes out, whoever calls: also out of a table, which is C's."""
    for use in (
        np.from_dlpack,
        np.asarray,
        bridge.asarray,
        table_of(Failing).export,
        lambda x: x.__dlpack_device__(),
        lambda x: peer("torch").from_dlpack(x),
        lambda x: peer("tvm_ffi").from_dlpack(x),
    ):
        with pytest.raises(LookupError, match="no memory any more"):
            use(Failing())
    raw = Producer((2, 3), content=FLOATS.tobytes())
    with pytest.raises(LookupError, match="not wanted"):
        wrapped(table_of(Failing), raw.build())
    gc.collect()
    assert raw.alive == 0  # by the caller, once
    with pytest.raises(bridge.ExchangeError, match="not wanted"):
        bridge.to_device(FLOATS, "cpu", like=Failing)


class Own(BaseException):
    pass


@pytest.mark.parametrize("kind", [CancelledError, SystemExit, GeneratorExit, Own])
def test_an_exception_that_is_none_of_the_programs(kind, nothing_reported):
    class Ending(bridge.Exporter):
        def __as_tensor__(self):
            raise kind("the end")

        @classmethod
        def __from_tensor__(cls, tensor):
            raise kind("the end")

    for use in (np.from_dlpack, table_of(Ending).export, lambda x: peer("tvm_ffi").from_dlpack(x)):
        with pytest.raises(kind, match="the end"):
            use(Ending())
    raw = Producer((2, 3), content=FLOATS.tobytes())
    with pytest.raises(kind, match="the end"):
        wrapped(table_of(Ending), raw.build())
    assert raw.alive == 0


def test_a_method_that_returns_something_else(nothing_reported):
    class Wrong(bridge.Exporter):
        def __as_tensor__(self):
            return FLOATS

    for use in (np.from_dlpack, np.asarray, bridge.asarray, table_of(Wrong).export):
        with pytest.raises(BufferError, match=r"Wrong.__as_tensor__\(\) returned a numpy.ndarray"):
            use(Wrong())


def test_a_class_without_the_method():
    class Nothing(bridge.Exporter):
        pass

    with pytest.raises(NotImplementedError, match='tensor="_tensor"'):
        np.from_dlpack(Nothing())


def test_the_attribute_is_not_there_yet():
    class Late(bridge.Exporter, tensor="later"):
        pass

    for use in (np.from_dlpack, np.asarray, bridge.asarray, bridge.device_of):
        with pytest.raises(AttributeError, match=r"'Late' object has no attribute 'later'"):
            use(Late())
    late = Late()
    assert not hasattr(late, "later")
    late.later = bridge.zeros(3)
    assert np.from_dlpack(late).tolist() == [0] * 3


def test_the_way_back_is_a_class_method():
    for right in (classmethod(lambda cls, tensor: cls()), staticmethod(lambda tensor: None)):
        type("Right", (bridge.Exporter,), {"__from_tensor__": right})
    with pytest.raises(TypeError, match=r"Wrong.__from_tensor__ must be a class method"):

        class Wrong(bridge.Exporter):
            def __from_tensor__(self, tensor):
                pytest.fail("called")


# The way back ---------------------------------------------------------------------


def test_like_the_class_and_like_an_array_of_it(cls, x):
    for like in (cls, x):
        made = bridge.to_device(FLOATS, "cpu", like=like)
        assert type(made) is cls
        assert bridge.from_dlpack(made).data_ptr() == FLOATS.ctypes.data
    readonly = FLOATS[::-1].copy()
    readonly.flags.writeable = False
    made = bridge.to_device(readonly[::-1], "cpu", like=cls)
    assert bridge.from_dlpack(made).readonly  # nothing is copied: a Tensor can say all that
    assert bridge.from_dlpack(made).strides == (-3, 1)


def test_the_memory_lives_as_long_as_it_is_used(cls):
    class Owner:
        pass

    owner = Owner()
    watch = weakref.ref(owner)
    x = cls(bridge.from_blob(FLOATS.ctypes.data, (2, 3), "float32", owner=owner))
    held = [np.from_dlpack(x), np.asarray(x), table_of(cls).export(x)]
    del owner, x
    while held:
        gc.collect()
        assert watch() is not None
        held.pop()
    gc.collect()
    assert watch() is None


def test_an_attribute_and_a_method_are_refused():
    with pytest.raises(TypeError, match=r'Both has an __as_tensor__ and tensor="t".*remove one'):

        class Both(bridge.Exporter, tensor="t"):
            def __as_tensor__(self):
                pytest.fail("called")


class Rows:
    def __as_tensor__(self):
        return self.tensor[1:]


class RowsFirst(Rows, Held):
    pass


class HeldFirst(Held, Rows):
    pass


class MethodFirst(Override, Image):
    """Two exporters, of which the first has the method."""

    def __init__(self, tensor):
        object.__setattr__(self, "pixels", bridge.zeros(1))
        object.__setattr__(self, "tensor", tensor)


class AttributeAgain(RowsFirst, tensor="tensor"):
    pass


@pytest.mark.parametrize(
    ("cls", "first"),
    [(Override, 1), (RowsFirst, 1), (HeldFirst, 0), (MethodFirst, 1), (AttributeAgain, 0)],
)
def test_the_first_base_class_holds_for_all(cls, first):
    x, wanted = cls(bridge.from_dlpack(FLOATS)), FLOATS[first:].tolist()
    assert np.from_dlpack(x).tolist() == wanted
    assert np.asarray(x).tolist() == wanted
    assert bridge.asarray(x).tolist() == wanted
    assert bridge.from_dlpack(x).tolist() == wanted
    assert table_of(cls).export(x).fields.shape == (2 - first, 3)
    assert x.__dlpack_device__() == (1, 0)


def test_an_inherited_method_stays():
    class Base:
        def __dlpack__(self, **keywords):
            return FLOATS[1:].__dlpack__(**keywords)

    class Before(Base, bridge.Exporter, tensor="t"):
        t = bridge.zeros(4)

    class After(bridge.Exporter, Base, tensor="t"):
        t = bridge.zeros(4)

    assert np.from_dlpack(Before()).shape == (1, 3)
    assert Before().__dlpack_device__() == (1, 0)
    assert table_of(Before).export(Before()).fields.shape == (4,)
    assert np.from_dlpack(After()).shape == (4,)


@pytest.mark.parametrize("name", TABLE_NAMES)
@pytest.mark.parametrize("form", [{}, {"tensor": "tensor"}])
def test_a_table_of_its_own_stays(name, form):
    own = object()
    other = next(each for each in TABLE_NAMES if each != name)
    mine = type("Mine", (bridge.Exporter,), {name: own}, **form)
    inherits = type("Inherits", (type("Base", (), {name: own}), bridge.Exporter), {}, **form)
    for cls in (mine, inherits, type("Sub", (mine,), {})):
        assert getattr(cls, other) is not own
        assert getattr(cls, name) is own


def test_other_base_classes():
    assert Mixed.word == "here"
    assert not hasattr(Image(bridge.zeros(3)), "__dict__")
    assert not hasattr(Array(bridge.zeros(3)), "__dict__")


def test_all_in_threads():
    """First uses of many classes, and of one array."""
    from concurrent.futures import ThreadPoolExecutor

    def work(number):
        cls = type(f"Made{number % 50}", (Array,), {"__slots__": ()})
        x = cls(bridge.from_dlpack(FLOATS))
        found = {pointer_in(getattr(cls, name)) for name in TABLE_NAMES}
        assert len(found) == 1
        assert np.from_dlpack(x).tolist() == FLOATS.tolist()
        return table_of(Array).export(shared).fields.shape

    shared = Array(bridge.from_dlpack(FLOATS))
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(work, range(400))) == {(2, 3)}


def _torch(x):
    return peer("torch").from_dlpack(x)


def _jax(x):
    return peer("jax.dlpack").from_dlpack(x)


@pytest.mark.parametrize("use", [bridge.from_dlpack, np.from_dlpack, np.asarray, _torch, _jax])
@pytest.mark.parametrize(
    ("pixels", "what"), [(np.ones(3), "a numpy.ndarray"), ([1.0], "a builtins.list")]
)
def test_an_attribute_that_holds_another_librarys_array_is_named(use, pixels, what):
    """The first mistake that anybody makes, in the words of every library."""

    class Image(bridge.Exporter, tensor="pixels"):
        def __init__(self, pixels):
            self.pixels = pixels

    with pytest.raises(
        bridge.ExchangeError, match=rf"Image\.pixels is {what}, not a dlbridge\.Ten"
    ):
        use(Image(pixels))
    assert use(Image(bridge.zeros(3))).shape == (3,)


RING = """
import numpy as np
import dlbridge as bridge

class Image(bridge.Exporter, tensor="pixels"):
    def __init__(self, pixels): self.pixels = pixels

class Framed(bridge.Exporter, tensor="image.pixels"):
    def __init__(self, image): self.image = image

first, second = Image(bridge.zeros(3)), Image(bridge.zeros(3))
framed = Framed(first)
for x in first, framed:
    np.from_dlpack(x)
    assert x.__dlpack_device__() == (1, 0)
def led_back():
    yield "itself"
    first.pixels = second
    second.pixels = first
    yield "a ring"
    first.pixels = framed
    yield "a frame"

first.pixels = first
for _ in led_back():
    for x in first, framed:
        for ask in (
            lambda x: x.__dlpack_device__(),
            lambda x: x.__dlpack__(),
            lambda x: type(x).__dlpack_device__(x),
            np.from_dlpack,
            bridge.from_dlpack,
            bridge.asarray,
            bridge.device,
        ):
            try:
                ask(x)
            except (AttributeError, BufferError, TypeError) as exc:
                assert "not a dlbridge.Tensor" in str(exc), exc
                assert "__tensor_" not in str(exc), exc
            else:
                raise AssertionError(ask)
"""


def test_an_attribute_that_leads_back_is_an_error():
    """After the first good export of a class nothing but C looks at the attribute."""
    run_script(RING, imported=("numpy", "tests.support.whole_core"))


@pytest.mark.parametrize("name", ["", "a b", "a..b", "a."])
def test_the_name_of_an_attribute(name):
    with pytest.raises(ValueError, match=rf"tensor={name!r} is no name of an attribute"):

        class Image(bridge.Exporter, tensor=name):
            pass


def test_what_another_base_class_has_for_the_attribute_holds():
    class Named(bridge.Exporter, tensor="held"):
        pass

    class Holds:
        @property
        def held(self):
            return bridge.ones(3)

    class Slot:
        __slots__ = ("held",)

    assert np.from_dlpack(type("Image", (Named, Holds), {})()).tolist() == [1] * 3
    image = type("Image", (Named, Slot), {})()
    image.held = bridge.ones(2)
    assert np.from_dlpack(image).tolist() == [1] * 2


def test_nothing_stands_in_the_class_for_the_attribute():
    """attrs would take it for the default of the field."""

    class Image(bridge.Exporter, tensor="pixels"):
        pixels: bridge.Tensor

    assert "pixels" not in vars(Image)


def test_by_the_table_after_a_host_views_block(cls):  # X5, X18
    with bridge.zeros(3).host_view() as view:
        x = cls(view)
    with pytest.raises(bridge.ExchangeError, match="expired"):
        table_of(cls).export(x)


@pytest.mark.parametrize("take", [bridge.from_dlpack, bridge.asarray, np.from_dlpack])
def test_an_attribute_that_is_not_set_is_named_as_the_tensor(take):
    class Unset(bridge.Exporter, tensor="later"):
        pass

    with pytest.raises(AttributeError, match="later") as told:
        take(Unset())
    if take is not np.from_dlpack:  # it asks for the attribute of the attribute
        (note,) = told.value.__notes__
        assert "names 'later' as its tensor: set self.later in __init__" in note
