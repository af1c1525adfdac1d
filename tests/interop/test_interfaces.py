"""A Tensor by numpy's array interface and by Arrow's PyCapsule interface, and its dtype in numpy."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.foreign_arrays import (
    ByInterface,
    NoDLPack,
    NoDLPackButInterface,
    NoDLPackButMethod,
)
from tests.support.peers import peer


def test_the_array_interface_is_the_memory():
    x = np.arange(12, dtype="i2").reshape(3, 4)[:, ::2]
    tensor = bridge.from_dlpack(x)
    interface = tensor.__array_interface__
    assert interface["version"] == 3
    assert interface["data"] == (x.ctypes.data, False)
    assert (interface["shape"], interface["strides"]) == ((3, 2), (8, 4))
    assert np.asarray(tensor).ctypes.data == x.ctypes.data
    assert tensor.__array_interface__ is not interface


def test_the_array_interface_of_compact_memory_has_no_strides():
    """As numpy's. CTranslate2 takes no array that has some: it asks with ``in`` and ``[]``."""
    tensor = bridge.asarray(np.arange(12, dtype="u1").reshape(3, 4))
    interface = tensor.__array_interface__
    assert "strides" in interface
    assert interface["strides"] is None
    assert bridge.asarray(np.array(2.5)).__array_interface__["strides"] is None
    assert np.asarray(tensor).flags.c_contiguous
    assert np.shares_memory(np.asarray(tensor), tensor.numpy())


@pytest.mark.parametrize("part", ["whole", "columns", "transposed"])
def test_pillow_takes_a_tensor(part):
    """Before CPython 3.12 a tensor has no buffer; Pillow asks for bytes only where ``get`` has strides."""
    fromarray = peer("PIL.Image").fromarray
    x = np.arange(12, dtype="u1").reshape(3, 4)
    x = {"whole": x, "columns": x[:, ::2], "transposed": x.T}[part]
    assert np.asarray(fromarray(bridge.asarray(x))).tolist() == x.tolist()


def test_the_array_interface_keeps_read_only():
    x = np.arange(3.0)
    x.flags.writeable = False
    assert bridge.from_dlpack(x).__array_interface__["data"][1]
    assert not np.asarray(bridge.from_dlpack(x)).flags.writeable


@pytest.mark.parametrize(
    "make",
    [
        lambda: bridge.zeros(3, device="ext_dev:0"),
        lambda: bridge.zeros(3, "bfloat16"),
        lambda: bridge.empty(4, "int4"),
        lambda: bridge.empty(4, "float32x4"),
    ],
    ids=["device", "bfloat16", "int4", "lanes"],
)
def test_no_array_interface_where_numpy_has_none(make):
    tensor = make()
    assert not hasattr(tensor, "__array_interface__")
    with pytest.raises(AttributeError, match=r"no .*(array interface|__array_interface__).*; "):
        tensor.__array_interface__


@pytest.mark.parametrize("name", ["float32", "int8", "bool", "complex128", "bfloat16", "int4"])
def test_numpys_dtype_of_a_dtype(name):
    dtype = bridge.dtype(name)
    assert np.dtype(dtype) == dtype.numpy
    assert np.zeros(2, dtype).dtype == dtype.numpy


@pytest.mark.parametrize(
    "name", ["float32", "int8", "bool", "complex128", "bfloat16", "int4", "float8_e5m2"]
)
def test_the_name_of_a_dtype_as_jaxtyping_reads_it(name):
    """``isinstance(t, Float32[bridge.Tensor, "..."])`` asks for ``t.dtype.type.__name__``."""
    dtype = bridge.empty(4, name).dtype
    assert dtype.type is dtype.numpy.type
    assert dtype.type.__name__ == name


def test_a_dtype_that_numpy_has_not_has_no_class_of_scalars():
    """``hasattr`` is right."""
    with pytest.raises(AttributeError, match="numpy has no vector types"):
        bridge.dtype("float32x4").type


@pytest.mark.parametrize("name", ["int8", "uint16", "int64", "float16", "float32", "float64"])
def test_arrow_arrays_share_the_memory(name):
    pyarrow = peer("pyarrow")
    x = np.arange(5).astype(name)
    column = pyarrow.array(bridge.from_dlpack(x)[1:])
    assert str(column.type) == {
        "float16": "halffloat",
        "float32": "float",
        "float64": "double",
    }.get(name, name)
    assert column.buffers()[1].address == x.ctypes.data + x.itemsize
    assert column.to_pylist() == [1, 2, 3, 4]
    back = bridge.from_dlpack(column)
    assert (back.data_ptr(), back.readonly) == (x.ctypes.data + x.itemsize, True)


def test_an_arrow_array_keeps_the_memory_and_lets_it_go():
    pyarrow = peer("pyarrow")

    class Owner:
        def __init__(self, array):
            self.array = array
            self.__array_interface__ = array.__array_interface__

    owner = Owner(np.arange(1000.0))
    gone = weakref.ref(owner)
    column = pyarrow.array(bridge.asarray(owner))
    del owner
    gc.collect()
    assert gone() is not None
    assert column[-1].as_py() == 999
    del column
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: bridge.zeros((2, 2)), "2 dimensions on cpu:0.*one on the CPU"),
        (lambda: bridge.zeros(3, device="ext_dev:0"), "1 dimensions on ext_dev:0"),
        (lambda: bridge.zeros(3, "bool"), "bool cannot be exported.*Arrow packs bools"),
        (lambda: bridge.zeros(3, "bfloat16"), "bfloat16 cannot be exported"),
        (lambda: bridge.from_dlpack(np.zeros(6)[::2]), r"strides \(2,\).*compact memory"),
    ],
    ids=["matrix", "device", "bool", "bfloat16", "strided"],
)
def test_what_arrow_cannot_hold_in_place(make, match):
    peer("pyarrow")
    tensor = make()
    assert not hasattr(tensor, "__arrow_c_array__")
    with pytest.raises(AttributeError, match=match):
        tensor.__arrow_c_array__


class Column:
    """An Arrow producer that is not a DLPack producer."""

    def __init__(self, array):
        self.array = array

    def __arrow_c_array__(self, requested_schema=None):
        return self.array.__arrow_c_array__(requested_schema)


def test_arrow_arrays_in():
    pyarrow = peer("pyarrow")
    x = np.arange(6, dtype="f4")
    column = Column(pyarrow.array(x)[2:])
    tensor = bridge.asarray(column, copy=False)
    assert tensor.tolist() == [2, 3, 4, 5]
    assert tensor.readonly
    assert tensor.data_ptr() == column.array.buffers()[1].address + 8
    del column
    gc.collect()
    assert tensor.tolist() == [2, 3, 4, 5]


def test_arrow_bools_are_unpacked():
    pyarrow = peer("pyarrow")
    values = [True, False, True] * 7
    column = Column(pyarrow.array(values)[3:])
    assert bridge.asarray(column).tolist() == values[3:]
    with pytest.raises(BufferError, match=r"packed bools.*copy=False"):
        bridge.asarray(column, copy=False)


@pytest.mark.parametrize(
    "changed",
    [
        {"data": b"123"},
        {"data": bytes(48), "offset": 8},
        {"data": bytes(48), "offset": -8},
        {"data": bytearray(47)},
        {"data": memoryview(bytes(48)), "strides": (-8,)},
        {"data": bytes(48), "strides": (16,)},
    ],
)
def test_a_buffer_that_is_shorter_than_its_array_interface_says(changed):
    with pytest.raises(bridge.ExchangeError, match=r"Interface.*__array_interface__.*buffer"):
        bridge.asarray(ByInterface(np.arange(6.0), **changed))


@pytest.mark.parametrize(
    ("changed", "numbers"),
    [
        ({"data": bytes(48)}, [0] * 6),
        ({"data": bytes(48), "offset": 40, "strides": (-8,)}, [0] * 6),
        ({"data": bytes(48), "offset": 40, "shape": (1,)}, [0]),
        ({"data": b"", "shape": (0,)}, []),
        ({"data": bytes(8), "strides": (0,)}, [0] * 6),
    ],
)
def test_buffers_that_are_long_enough(changed, numbers):
    assert bridge.asarray(ByInterface(np.arange(6.0), **changed)).tolist() == numbers


FAULTY = [
    *({"shape": shape} for shape in ([6], None, (-1,), (2**70,), (2**40, 2**40))),
    *({"typestr": typestr} for typestr in ("", None)),
    *({"data": data} for data in (None, (0, False), ("a", False), (2**70, False))),
    *({"strides": strides} for strides in ("x", (8, 8))),
]


@pytest.mark.parametrize("changed", [*FAULTY, 5, {}, []], ids=str)
def test_a_faulty_array_interface_is_told_with_the_objects_name(changed):
    faulty = ByInterface(np.arange(6.0))
    if isinstance(changed, dict):
        changed = changed and {**faulty.__array_interface__, **changed}
    faulty.__array_interface__ = changed
    with pytest.raises(bridge.ExchangeError, match=r"Interface.*__array_interface__") as told:
        bridge.asarray(faulty)
    assert told.value.__cause__ is not None


@pytest.mark.parametrize("address", [-64, -(1 << 63)])
def test_a_negative_address_is_none(address):
    """numpy takes its lower 64 bits, which may be an address at the end of memory."""
    faulty = ByInterface(np.arange(6.0), data=(address, False), shape=(2,))
    with pytest.raises(bridge.ExchangeError, match=r"Interface.*__array_interface__"):
        bridge.asarray(faulty)


END = 1 << 64


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        *(
            ({"strides": (s,)}, "more than the memory of any machine")
            for s in (1 << 62, -(1 << 60))
        ),
        ({"shape": (1 << 58,)}, "more than the memory of any machine"),
        ({"data": (0, False)}, "data is NULL|cannot coerce scalar"),
        *(({"data": (END - 8, False), **more}, "wraps around") for more in ({}, {"shape": ()})),
        ({"data": (8, False), "strides": (-8,)}, "wraps around"),
        ({"data": (-8, False)}, "wraps around"),
        ({"strides": (END,)}, r"numpy cannot read \(shape \(4,\).*strides \(18446744"),
    ],
    ids=str,
)
def test_array_interfaces_that_no_memory_has(wrong, match):
    with pytest.raises(BufferError, match=match):
        bridge.asarray(
            ByInterface(
                np.arange(6.0),
                **{"shape": (4,), "typestr": "<i8", "data": (1 << 20, False), **wrong},
            )
        )


REFUSALS = [BufferError("no such type"), NotImplementedError("the other byte order")]


@pytest.mark.parametrize("kind", [NoDLPackButInterface, NoDLPackButMethod])
@pytest.mark.parametrize("error", REFUSALS, ids=["BufferError", "NotImplementedError"])
def test_an_object_whose_dlpack_fails_is_asked_by_its_other_interface(kind, error):
    array = np.arange(6, dtype="i2").reshape(2, 3)
    x = kind(error, array)
    for t in (bridge.asarray(x), bridge.asarray(x, copy=False), bridge.to_device(x, "cpu")):
        assert (t.dtype, t.shape) == ("int16", (2, 3))
        assert np.shares_memory(t.numpy(), array)
    assert bridge.plan(x, "cpu").nbytes == 0
    with bridge.trace() as trace:
        bridge.to_device(x, "cpu")
    assert trace.nbytes == 0


def test_a_copy_by_another_interface_is_said():
    x = NoDLPackButMethod(BufferError("no such type"), lambda: np.arange(3.0))
    assert bridge.asarray(x).tolist() == [0, 1, 2]
    assert bridge.plan(x, "cpu").nbytes == 24
    with pytest.raises(bridge.ExchangeError, match="copy=False"):
        bridge.asarray(x, copy=False)


@pytest.mark.parametrize(
    "error",
    [ValueError("a mask"), RuntimeError("gradients"), bridge.ExchangeError("ours")],
    ids=["ValueError", "RuntimeError", "ExchangeError"],
)
def test_other_errors_of_dlpack_are_final(error):
    """They may be about the elements, which another interface would give without a word."""
    with pytest.raises(type(error)) as told:
        bridge.asarray(NoDLPackButMethod(error, np.ones(3)))
    assert told.value is error


class BytesAlone(NoDLPack, bytearray):
    """As a plane of PyAV: its buffer has bytes, whatever its elements are."""

    def __init__(self, error):
        bytearray.__init__(self, 4)
        self.error = error


def test_the_bytes_of_a_buffer_are_not_the_elements_that_dlpack_refused():
    error = NotImplementedError("the other byte order")
    with pytest.raises(NotImplementedError) as told:
        bridge.asarray(BytesAlone(error))
    assert told.value is error
    (note,) = told.value.__notes__
    assert note.endswith("BytesAlone.__dlpack__")
    assert bridge.asarray(memoryview(BytesAlone(error))).dtype == "uint8"


def test_a_described_library_has_refused_for_a_reason():
    """Its other interfaces are not asked."""
    cls = type("Array", (NoDLPackButMethod,), {"__module__": "array_api_strict._array_object"})
    with pytest.raises(BufferError, match="no such type"):
        bridge.asarray(cls(BufferError("no such type"), np.ones(3)))


def test_a_dataset_without_a_shape_is_refused_in_our_words():
    """As that of ``h5py.Empty``: h5py says "Use () not None as shape arguments"."""

    class Dataset:
        shape = None

        def __array__(self, dtype=None, copy=None):
            return np.zeros((*self.shape, 1))

    with pytest.raises(TypeError, match=r"Dataset.* gives no array: it has no shape") as told:
        bridge.asarray(Dataset())
    assert isinstance(told.value.__cause__, TypeError)


@pytest.mark.parametrize("copy", [None, True, False])
def test_a_dataset_of_a_closed_file_says_what_read_it(copy):
    """As that of h5py, whose message speaks of an identifier."""
    error = RuntimeError("identifier is not of specified type")

    class Dataset:
        def __array__(self, dtype=None, copy=None):
            raise error

    with pytest.raises(RuntimeError) as told:
        bridge.asarray(Dataset(), copy=copy)
    assert told.value is error
    (note,) = error.__notes__
    assert note.startswith("raised by the __array__ of ")
    assert note.endswith("Dataset; if it reads a file, the file must be open")
