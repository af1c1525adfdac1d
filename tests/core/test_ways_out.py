"""Every way out that a message about another library's array names is taken here, and leads out.

Each row: the library, its array ``x``, and the ways that the message must name, as the reader
would write them. A row of a library that is not installed here is not run.
"""

from __future__ import annotations

import collections
import fractions
import importlib.util
import io
import itertools
import re
import warnings
from collections import UserList
from types import SimpleNamespace

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.foreign_arrays import ByInterface, ByMethod
from tests.support.peers import peer

RESOLVED = ["x.resolve_conj().resolve_neg()"]
AS_BYTES = ["numpy.ascontiguousarray(x).view('uint8')"]
AS_CODES = ["numpy.ascontiguousarray(x).view('uint32')"]
AS_INTEGERS = ["numpy.asarray(x).view('int64')"]
INCOMING = {
    "torch": {
        "gradients": ("torch.ones(3, requires_grad=True)", ["x.detach()"]),
        "conjugate": ("torch.ones(3, dtype=torch.complex64).conj()", RESOLVED),
        "negative": ("torch.ones(3, dtype=torch.complex64).conj().imag", RESOLVED),
        "sparse": ("torch.ones(3).to_sparse()", ["x.to_dense()"]),
        "sparse rows": ("torch.eye(3).to_sparse_csr()", ["x.to_dense()"]),
        "mkldnn": ("torch.ones(3).to_mkldnn()", ["x.to_dense()"]),
        "quantized": (
            "torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)",
            ["x.dequantize()", "x.int_repr()"],
        ),
        "meta": ("torch.ones(3, device='meta')", ["torch.empty_like(x, device='cpu')"]),
        "nested": (
            "torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])",
            ["x.to_padded_tensor(value)", "x.unbind()"],
        ),
        "integers below a byte": ("torch.empty(3, dtype=torch.uint3)", ["x.view(torch.uint8)"]),
        "zeros without memory": (
            "torch._efficientzerotensor(3)",
            ["torch.zeros(x.shape, dtype=x.dtype)"],
        ),
        "masked": (
            "torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))",
            ["x.to_tensor(value)", "x.get_data()"],
        ),
        "jagged": (
            "torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)",
            ["x.to_padded_tensor(value)", "x.unbind()"],
        ),
    },
    "jax": {
        "keys": ("jax.random.key(0)", ["jax.random.key_data(x)"]),
        "int4": ("jax.numpy.arange(3, dtype='int4')", ["numpy.asarray(x)", "x.astype('int8')"]),
        "references": ("jax.new_ref(jax.numpy.ones(3))", ["x[...]"]),
    },
    "jax.experimental.sparse": {
        "sparse": (
            "jax.experimental.sparse.BCOO.fromdense(jax.numpy.eye(2))",
            ["x.todense()", "x.data"],
        ),
    },
    "scipy.sparse": {
        "sparse": ("scipy.sparse.csr_array(np.eye(2))", ["x.toarray()", "x.data"]),
    },
    "numpy": {
        "masked": ("np.ma.array([1, 2], mask=[0, 1])", ["x.filled()", "x.data"]),
        "dates": ("np.array(['2026-01-01'], 'M8[D]')", AS_INTEGERS),
        "an array method, dates": ("ByMethod(np.array(['2026-01-01'], 'M8[D]'))", AS_INTEGERS),
        "an array interface, dates": (
            "ByInterface(np.array(['2026-01-01'], 'M8[D]'))",
            AS_INTEGERS,
        ),
        "an array method, masked": (
            "ByMethod(np.ma.array([1, 2], mask=[0, 1]))",
            ["numpy.asanyarray(x).filled(value)"],
        ),
        "an array interface, masked": (
            "ByInterface(np.zeros(2), mask=np.ones(2))",
            ["numpy.asarray(x)"],
        ),
        "texts": ("np.array(['a', 'bc', 'd'])[::2]", AS_CODES),
        "a text": ("np.array('abc')", AS_CODES),
        "a scalar text": ("np.str_('abc')", AS_CODES),
        "bytes": ("np.array([b'a'])", AS_BYTES),
        "a byte string": ("np.array(b'abc')", AS_BYTES),
        "raw memory": ("np.zeros(3, 'V2')", AS_BYTES),
        "one element of raw memory": ("np.zeros((), 'V3')", AS_BYTES),
        "a scalar of raw memory": ("np.void(b'abc')", AS_BYTES),
        "fields": ("np.zeros(3, [('name', 'i4')])", ["numpy.asarray(x)['name']"]),
        "objects": ("np.array([1, 2.5], object)", []),
        "long doubles": ("np.zeros(3, 'g')", ["numpy.asarray(x).astype('float64')"]),
        "complex long doubles": ("np.zeros(3, 'G')", ["numpy.asarray(x).astype('complex128')"]),
        "a packed tensor, to numpy": (
            "bridge.full(4, 1, 'uint4').numpy()",
            [
                "dlbridge.astype(t, 'float32')",
                "dlbridge.unpack_bits(t.tobytes(), t.dtype, t.size)",
            ],
        ),
    },
    "ctypes": {
        "structures": (
            "(type('P', (ctypes.Structure,), {'_fields_': [('name', ctypes.c_float)]}) * 3)()",
            ["numpy.asarray(x)['name']"],
        ),
    },
    "scipy.sparse.linalg": {
        "operators": (
            "scipy.sparse.linalg.aslinearoperator(np.eye(2))",
            ["x @ numpy.eye(x.shape[1])"],
        ),
    },
    "pyarrow": {
        "nulls": ("pa.array([1, None])", ["x.fill_null(value)"]),
        "dates": ("pa.array([0], pa.timestamp('s'))", ["x.cast('int64')"]),
        "days": ("pa.array([0], pa.date32())", ["x.cast('int32')"]),
        "times": ("pa.array([0], pa.time32('ms'))", ["x.cast('int32')"]),
        "time spans": ("pa.array([0], pa.duration('ns'))", ["x.cast('int64')"]),
        "decimals": ("pa.array([0], pa.decimal128(5))", ["x.cast('float64')"]),
        "bytes of one size": ("pa.array([b'ab'], pa.binary(2))", ["x.dictionary_encode().indices"]),
        "maps": ("pa.array([[(2, 1)]], pa.map_(pa.int64(), pa.int64()))", ["x.keys", "x.items"]),
        "texts": ("pa.array(['a', 'b'])", ["x.dictionary_encode().indices"]),
        "lists": ("pa.array([[1], [2, 3]])", ["x.flatten()"]),
        "large lists": ("pa.array([[1], [2, 3]], pa.large_list(pa.int64()))", ["x.flatten()"]),
        "lists that are null": (
            "pa.array([[1, 2], None], pa.list_(pa.int64(), 2))",
            ["x.drop_null()"],
        ),
        "dictionaries": (
            "pa.array([7, 7, 8]).dictionary_encode()",
            ["x.indices", "x.dictionary_decode()"],
        ),
        "structs": ("pa.array([{'name': 1}])", ["x.field('name')"]),
        "tables of embeddings": (
            "pa.table({'name': pa.FixedSizeListArray.from_arrays(pa.array([1, 2]), 2)})",
            ["x['name']"],
        ),
        "tables of several types": ("pa.table({'name': [1], 'other': [1.5]})", ["x['name']"]),
    },
    "pyarrow.compute": {
        "list views": ("pa.array([[1], [2, 3]], pa.list_view(pa.int64()))", ["x.flatten()"]),
        "large list views": (
            "pa.array([[1], [2, 3]], pa.large_list_view(pa.int64()))",
            ["x.flatten()"],
        ),
        "chunks of lists": ("pa.chunked_array([[[1], [2, 3]]])", ["x.combine_chunks().flatten()"]),
        "chunks of texts": (
            "pa.chunked_array([['a', 'b']])",
            ["x.combine_chunks().dictionary_encode().indices"],
        ),
        "unions": (
            "pa.UnionArray.from_sparse(pa.array([0], 'int8'), [pa.array([1])])",
            ["x.field(0)"],
        ),
        "runs": (
            "pa.RunEndEncodedArray.from_arrays([2, 5], [1.0, 2.0])",
            ["pyarrow.compute.run_end_decode(x)"],
        ),
        "UUIDs": (
            "pa.array([bytes(16)] * 2, pa.binary(16)).cast(pa.uuid())",
            ["x.storage.dictionary_encode().indices"],
        ),
        "intervals": (
            "pa.array([(1, 2, 3)], pa.month_day_nano_interval())",
            ["numpy.array(x.to_pylist())"],
        ),
        "chunks of lists that are null": (
            "pa.chunked_array([pa.array([[1], None], pa.list_(pa.int8(), 1))])",
            ["x.drop_null()"],
        ),
        "nulls alone": ("pa.nulls(3)", ["x.cast('float64').fill_null(value)"]),
        "nulls in lists": (
            "pa.array([[1, None], [3, 4]], pa.list_(pa.int64(), 2))",
            ["x.flatten().fill_null(value)"],
        ),
    },
    "pandas": {
        "missing": ("pd.Series([1, None], dtype='Int64')", ["x.fillna(value)"]),
        "several types": (
            "pd.DataFrame({'name': [1], 'other': [1.5]})",
            ["x['name']", "x.astype('float64')"],
        ),
        "numbers beside texts": (
            "pd.DataFrame({'name': [1], 'other': ['a']})",
            ["x['name']", "x.select_dtypes('number')"],
        ),
        "texts": ("pd.Series(['a'])", ["pandas.factorize(x)[0]"]),
        "sparse floats": ("pd.Series(pd.arrays.SparseArray([0, 0, 1.5]))", ["numpy.asarray(x)"]),
        "sparse arrays": ("pd.arrays.SparseArray([0, 0, 2])", ["numpy.asarray(x)"]),
        "sparse tables": (
            "pd.DataFrame({'a': pd.arrays.SparseArray([0, 0, 1.5])})",
            ["numpy.asarray(x)"],
        ),
        "categories": ("pd.Series(['a']).astype('category')", ["pandas.factorize(x)[0]"]),
        "dates": ("pd.Series(pd.to_datetime(['2026-01-01', None]))", ["x.astype('int64')"]),
        "an index of dates": ("pd.DatetimeIndex(['2026-01-01'])", ["x.astype('int64')"]),
        "a table of dates": (
            "pd.DataFrame({'a': pd.to_datetime(['2026-01-01'])})",
            ["x.astype('int64')"],
        ),
        "dates of a zone": (
            "pd.Series(pd.to_datetime(['2026-01-01'], utc=True))",
            ["x.astype('int64')"],
        ),
        "time spans": ("pd.Series([1], dtype='m8[ns]')", ["x.astype('int64')"]),
        "timestamps of pyarrow": (
            "pd.Series([0]).astype('timestamp[s][pyarrow]')",
            ["x.astype('int64')"],
        ),
        "durations of pyarrow": (
            "pd.Series([0]).astype('duration[s][pyarrow]')",
            ["x.astype('int64')"],
        ),
        "days of pyarrow": (
            "pd.Series(['2026-01-01']).astype('date32[pyarrow]')",
            ["x.astype('timestamp[s][pyarrow]').astype('int64')"],
        ),
        "decimals of pyarrow": (
            "pd.Series([1]).astype(pd.ArrowDtype(__import__('pyarrow').decimal128(20, 1)))",
            ["x.astype('float64')"],
        ),
        "a table of texts": (
            "pd.DataFrame({'a': ['x'], 'b': ['y']})",
            ["x.apply(lambda column: pandas.factorize(column)[0])"],
        ),
    },
    "dask.array": {
        "dask": ("dask.array.ones(3)", ["x.compute()"]),
    },
}
"""Library -> what ``x`` is -> how it is made, and the ways out that the message names."""
ROWS = {
    f"{library}, {what}": (library, *row)
    for library, rows in INCOMING.items()
    for what, row in rows.items()
}


CODE = re.compile(r"\bx(?:\.\w+(?:\([^()]*(?:\([^()]*\))?[^()]*\))?|\['\w+'\])+")
"""A call on ``x``: the row of a message runs each that it names."""


def to_cpu(x):
    return bridge.to_device(x, "cpu")


def explained(x):
    return bridge.explain(x, "cpu")


SHORT = {"pyarrow": "pa", "pandas": "pd"}


def names_for(library):
    """What a way out may speak of."""
    names = {"__name__": "rows", "bridge": bridge, "dlbridge": bridge, "numpy": np, "np": np}
    names |= {"ByMethod": ByMethod, "ByInterface": ByInterface, "value": 0}
    package = library.partition(".")[0]
    names[package] = names[SHORT.get(package, package)] = peer(package)
    if "." in library:
        peer(library)
    return names


@pytest.mark.parametrize("take", [bridge.asarray, to_cpu, explained])
@pytest.mark.parametrize("name", ROWS)
def test_the_way_out_of_a_refused_array_leads_out(name, take):
    library, source, ways = ROWS[name]
    names = names_for(library)
    names["t"] = bridge.full(4, 1, "uint4")
    with pytest.raises(bridge.ExchangeError) as told:  # noqa: PT012 - the source may be refused
        names["x"] = eval(source, names)
        take(names["x"])
    said = str(told.value)
    assert {way for way in CODE.findall(said) if not any(way in known for known in ways)} == set()
    for way in ways:
        assert way in said
        result = eval(way, names)
        for each in result if isinstance(result, (list, tuple)) else [result]:
            bridge.asarray(each)
    if hasattr(names.get("x"), "__dlpack__"):
        with pytest.raises((BufferError, TypeError)):
            bridge.from_dlpack(names["x"])


def only(name):
    """An object that nothing but the method *name* leads out of."""
    return type("Only", (), {name: lambda self: np.ones(3)})()


class ByStruct:
    """An object with ``__array_struct__`` alone."""

    __array_struct__ = np.arange(3.0).__array_struct__


METHODS = ["to_numpy", "to_ndarray", "numpy", "toarray", "todense", "to_dense", "to_tensor"]
NO_TENSORS = {
    "torch": {
        "bytes of a storage": (
            "torch.arange(3.0).untyped_storage()",
            ["torch.tensor((), dtype=torch.uint8).set_(x)"],
        ),
        "a storage of elements": (
            "torch.storage.TypedStorage([1.5, 2.5], dtype=torch.float64)",
            ["torch.tensor((), dtype=x.dtype).set_(x)"],
        ),
    },
    "pyarrow": {
        "a scalar": ("pa.scalar(1.5)", ["x.as_py()"]),
        "a scalar of lists": ("pa.scalar([1, 2])", ["x.as_py()"]),
        "sparse": ("pa.SparseCOOTensor.from_dense_numpy(np.eye(2))", ["x.to_tensor()"]),
        "sparse rows": ("pa.SparseCSRMatrix.from_dense_numpy(np.eye(2))", ["x.to_tensor()"]),
        "sparse columns": ("pa.SparseCSCMatrix.from_dense_numpy(np.eye(2))", ["x.to_tensor()"]),
        "sparse tensors": ("pa.SparseCSFTensor.from_dense_numpy(np.eye(2))", ["x.to_tensor()"]),
    },
    "cffi": {
        name: (f"cffi.FFI().{made}", ["dlbridge.from_blob(x, shape, dtype)"])
        for name, made in {
            "an array": "new('float[3]')",
            "a pointer": "new('float *')",
            "a buffer's array": "from_buffer('float[]', bytearray(12))",
        }.items()
    },
    "cv2": {"memory of OpenCL": ("cv2.UMat(np.eye(2))", ["x.get()"])},
    "numba.typed": {"a typed list": ("numba.typed.List([1.5, 2.5])", ["list(x)"])},
    "tables": {
        "an array of a file": ("in_file(tables).create_array('/', 'a', [1, 2])", ["x.read()"]),
        "an array of chunks": (
            "in_file(tables).create_carray('/', 'a', obj=np.ones(3))",
            ["x.read()"],
        ),
        "a column": (
            "in_file(tables).create_table('/', 'a', np.ones(3, [('b', 'f4')])).cols.b",
            ["x[:]"],
        ),
    },
    "numpy": {
        **{f"by {name}": (f"only({name!r})", [f"x.{name}()"]) for name in METHODS},
        "by to_dlpack": ("capsule_of(np.ones(3))", ["x.to_dlpack()"]),
        "by a struct": ("ByStruct()", ["numpy.asarray(x)"]),
        "a sequence": ("collections.deque([1, 2])", ["list(x)"]),
        "values": ("{'a': 1, 'b': 2}.values()", ["list(x)"]),
        "keys": ("{1: 'a', 2: 'b'}.keys()", ["list(x)"]),
        "a set": ("{2, 1}", ["sorted(x)"]),
        "a fraction": ("fractions.Fraction(1, 2)", ["float(x)"]),
        "a text": ("'abc'", ["dlbridge.asarray(x.encode())"]),
        "bytes in memory": ("io.BytesIO(b'abc')", ["dlbridge.asarray(x.read())"]),
        "a file in memory": ("file_of(np.ones(3))", ["dlbridge.load(x)"]),
    },
}
"""What no interface leads into, as `INCOMING`. Libraries that no environment has are played."""


class UMat:
    """As OpenCV's."""

    def __init__(self, array):
        self.get = lambda: array


UMat.__module__ = "cv2"


class Column:
    """As a column of a table of PyTables: its elements are read when they are asked for."""

    dtype, shape = np.dtype("f4"), (3,)

    def __getitem__(self, key):
        return np.ones(3)[key]


class FileArray(Column):
    """As an array of PyTables."""

    def read(self):
        return np.ones(3)


PLAYED = {
    "cv2": {"cv2": SimpleNamespace(UMat=UMat)},
    "tables": {"tables": None},
    "numba.typed": {"numba": SimpleNamespace(typed=SimpleNamespace(List=UserList))},
}


numbers = itertools.count()


def in_file(tables):
    """A file in memory that PyTables writes; without it a stand-in."""
    if tables is None:
        table = SimpleNamespace(cols=SimpleNamespace(b=Column()))
        return SimpleNamespace(
            create_array=lambda *_: FileArray(),
            create_carray=lambda *_, obj: FileArray(),
            create_table=lambda *_: table,
        )
    name = f"in memory {next(numbers)}"
    return tables.open_file(name, "w", driver="H5FD_CORE", driver_core_backing_store=0)


def file_of(array):
    file = io.BytesIO()
    np.save(file, array)
    file.seek(0)
    return file


def capsule_of(array):
    return type("OnlyCapsule", (), {"to_dlpack": lambda self: array.__dlpack__()})()


MISTAKES = {
    f"{library}, {what}": (library, *row)
    for library, rows in NO_TENSORS.items()
    for what, row in rows.items()
}


@pytest.mark.parametrize("take", [bridge.asarray, to_cpu, explained])
@pytest.mark.parametrize("name", MISTAKES)
def test_the_way_out_of_what_is_no_tensor_leads_out(name, take):
    """The message names the method that the object has."""
    library, source, ways = MISTAKES[name]
    if library in PLAYED and importlib.util.find_spec(library.partition(".")[0]) is None:
        names = {"np": np, "numpy": np, **PLAYED[library]}
    else:
        names = names_for(library)
    names |= {"only": only, "capsule_of": capsule_of, "in_file": in_file, "ByStruct": ByStruct}
    names |= {"collections": collections, "fractions": fractions, "io": io, "file_of": file_of}
    names |= {"dlbridge": bridge, "shape": 1, "dtype": "float32"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's: the class of a storage with a type is old
        x = names["x"] = eval(source, names)
        with pytest.raises(TypeError, match=r" is not a tensor: ") as told:
            take(x)
        for way in ways:
            assert way in str(told.value)
            assert bridge.asarray(eval(way, names)).size


def test_a_scalar_that_is_null_has_no_number():
    pa = peer("pyarrow")
    for scalar in (pa.scalar(None), pa.scalar(None, pa.float32())):
        with pytest.raises(TypeError, match="it is null"):
            bridge.asarray(scalar)


def test_an_empty_dataspace_has_no_way_out():
    empty = type("Empty", (), {"__module__": "h5py._hl.base"})
    with pytest.raises(TypeError, match="neither a shape nor elements"):
        bridge.asarray(empty())


def test_the_way_out_of_safetensors():
    """It asks for the byte order first; other attributes of numpy's: test_messages.py."""
    save, t = peer("safetensors.numpy").save, bridge.ones(3)
    with pytest.raises(AttributeError, match=r"pass numpy\.asarray\(t\)"):
        save({"a": t})
    save({"a": np.asarray(t)})


TO_LIBRARY = {
    "pyarrow, two dimensions": ("pyarrow", bridge.ones((2, 2)), ["t[:, 0]", "t.reshape(-1)"]),
    "torch, handles": ("torch", bridge.zeros(2, "uint64").view("handle"), ["t.view('uint64')"]),
    "pandas, two dimensions": ("pandas", bridge.ones((2, 2)), ["t[:, 0]", "t.reshape(-1)"]),
    "torch, packed": (
        "torch",
        bridge.full(4, 1, "uint4"),
        ["dlbridge.astype(t, 'float32')"],
    ),
    "PIL, colours of floats": (
        "PIL",
        bridge.ones((4, 4, 3), "float32"),
        ["dlbridge.astype(t, 'uint8')"],
    ),
    "jax, complex32": ("jax", bridge.empty(4, "complex32"), ["t.view('float32')"]),
}


@pytest.mark.parametrize("name", TO_LIBRARY)
def test_the_way_out_of_a_library_that_cannot_have_a_tensor(name):
    library, tensor, ways = TO_LIBRARY[name]
    peer(library)
    with pytest.raises(bridge.ExchangeError) as told:
        bridge.to_device(tensor, "cpu", like=library)
    for way in ways:
        assert way in str(told.value)
        result = eval(way, {"t": tensor, "dlbridge": bridge})
        bridge.to_device(result, "cpu", like=library)
