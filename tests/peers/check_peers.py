"""Libraries with large wheels, in and out: run by ``tests/peers/run.py``, one environment each.

``DLBRIDGE_EXPECT`` names the library that is installed there: only its tests run.
"""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
import weakref
from importlib.util import find_spec

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.agreement import disagreements
from tests.support.library_cells import CELLS, PEERS, numbers as aligned, outcome, record

EXPECTED = set(os.environ.get("DLBRIDGE_EXPECT", "").split(","))


def needs(name, module=None):
    """The module of a library that is expected here; else the test does not belong to this run."""
    if name not in EXPECTED:
        pytest.skip(f"{name} is not what this environment is for")
    return importlib.import_module(module or name)


LIBRARIES = sorted(EXPECTED & PEERS.keys())
SHARED = [
    "tensorflow",
    "paddle",
    "nvidia.dali",
    "warp",
    "onnxruntime",
    "openvino",
    "max",
    "xarray",
    "array_api_strict",
]
COPIED = ["mlx", "dask"]
COLUMNS = ["polars", "pandas"]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_library(library, cell):
    record(library, cell, outcome(library, cell))


@pytest.mark.parametrize("library", LIBRARIES)
def test_explain_says_what_to_device_does(library):
    assert disagreements(library, PEERS[library].place) == []


@pytest.mark.parametrize("like", COLUMNS)
def test_columns(like):
    needs(like)
    x = aligned((12,))
    result = bridge.to_device(x, "cpu", like=like, copy=False)
    assert bridge.asarray(result).data_ptr() == x.ctypes.data
    with pytest.raises(BufferError, match="one dimension"):
        bridge.to_device(aligned((3, 4)), "cpu", like=like)


@pytest.mark.parametrize("like", [*SHARED, *COPIED])
def test_nobody_writes_into_read_only_memory(like):
    needs(like)
    x = aligned((3, 4))
    x.flags.writeable = False
    result = bridge.to_device(x, "cpu", like=like)
    values = bridge.asarray(result.compute() if like == "dask" else result)
    assert values.tolist() == x.tolist()
    assert values.readonly or values.data_ptr() != x.ctypes.data


def test_constants_of_tensorflow_are_not_written():
    tf = needs("tensorflow")
    x = tf.constant([1.0, 2.0])
    assert bridge.from_dlpack(x).readonly
    with pytest.raises(BufferError, match="read-only"):
        bridge.copy_(x, np.zeros(2, "f4"))
    assert x.numpy().tolist() == [1, 2]


OPENCL = """
import pyopencl
context = pyopencl.Context([pyopencl.get_platforms()[0].get_devices()[0]])
"""
VULKAN = """
import ctypes
vulkan = ctypes.CDLL("libvulkan.so.1")
create = (ctypes.c_uint64 * 8)(1)  # VkInstanceCreateInfo, without anything in it
instance, count = ctypes.c_void_p(), ctypes.c_uint()
assert vulkan.vkCreateInstance(create, None, ctypes.byref(instance)) == 0
assert vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None) == 0
"""
TENSORFLOW = """
import tensorflow as tf
x = tf.range(64.0)
"""
MOVE = """
import dlbridge
there = dlbridge.to_device(x, "{0}:0")
assert dlbridge.to_device(there, "cpu", like="tensorflow").numpy().sum() == 2016
"""


@pytest.mark.parametrize(("driver", "backend"), [(OPENCL, "opencl"), (VULKAN, "vulkan")])
def test_drivers_built_on_llvm_come_before_tensorflow(driver, backend):
    """After it they crash the process, without dlbridge, too; before it all is well."""
    needs("tensorflow")

    def ends_well(script):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
        return not done.returncode

    assert not ends_well(TENSORFLOW + driver)
    assert ends_well(
        f"import dlbridge; dlbridge.backend('{backend}')" + TENSORFLOW + MOVE.format(backend)
    )


def test_tensorflow_tensors_without_memory():
    tf = needs("tensorflow")
    seen = []
    tf.function(seen.append)(tf.constant([1.0]))
    for x, way in (
        (seen[0], "py_function"),
        (tf.ragged.constant([[1], [2, 3]]), "to_tensor"),
        (tf.sparse.from_dense([1.0, 0.0]), "to_dense"),
        (tf.constant(["a"]), "numbers"),  # tensorflow itself aborts the process here
    ):
        with pytest.raises(BufferError, match=way):
            bridge.asarray(x)


def test_paddle_gradients_and_layouts():
    paddle = needs("paddle")
    x = paddle.to_tensor([1.0, 2.0])
    for keywords in ({}, {"copy": False}, {"device": "cpu"}):
        assert bridge.from_dlpack(x, **keywords).tolist() == [1, 2]
    x.stop_gradient = False
    with pytest.raises(BufferError, match="detach"):
        bridge.from_dlpack(x)
    with pytest.raises(BufferError, match="to_dense"):
        bridge.from_dlpack(paddle.sparse.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], [2, 2]))
    # Its text calls both bfloat16; __dlpack_data_type__ and the memory say which it is.
    for kind in ("uint16", "bfloat16"):
        given = bridge.to_device(bridge.zeros(2, kind), "cpu", like="paddle")
        assert str(given.dtype) == "paddle.bfloat16"
        assert bridge.asarray(given).dtype is bridge.dtype(kind)


def test_mlx_takes_our_tensors():
    mx = needs("mlx", "mlx.core")
    assert mx.from_dlpack(bridge.from_dlpack(np.ones(2, "f4"))).tolist() == [1, 1]
    with pytest.raises(BufferError, match="no elements of float64"):
        bridge.to_device(np.zeros(2), "cpu", like="mlx")


def test_warp_without_dimensions():
    needs("warp")
    with pytest.raises(BufferError, match=r"t\.reshape\(1\)"):
        bridge.to_device(np.float32(1), "cpu", like="warp")


def test_null_values_and_mixed_columns():
    name = next(iter(EXPECTED & {"polars", "pandas"}), None)
    library = needs(name or "polars")
    column = (
        library.Series([1, None, 3])
        if name == "polars"
        else library.Series([1, None, 3], dtype="Int64")
    )
    with pytest.raises(BufferError, match=r"fill_null|fillna"):
        bridge.asarray(column)
    with pytest.raises(BufferError, match="several types"):
        bridge.asarray(library.DataFrame({"a": [2**60 + 1], "b": [1.5]}))
    with pytest.raises(BufferError, match=r"fill_null|fillna"):
        bridge.asarray([column])
    with pytest.raises(BufferError, match="several types"):
        bridge.asarray([library.DataFrame({"a": [2**60 + 1], "b": [1.5]})])


@pytest.mark.parametrize(
    ("source", "way"),
    [
        ("polars.Series(['a', 'b'])", "x.cast(polars.Categorical).to_physical()"),
        ("polars.Series(['a']).cast(polars.Categorical)", "x.to_physical()"),
        ("polars.Series(['a'], dtype=polars.Enum(['a']))", "x.to_physical()"),
        ("polars.Series([0]).cast(polars.Date)", "x.to_physical()"),
        ("polars.Series([0]).cast(polars.Datetime)", "x.to_physical()"),
        ("polars.Series([0]).cast(polars.Duration)", "x.to_physical()"),
        ("polars.Series([0]).cast(polars.Time)", "x.to_physical()"),
        ("polars.Series([1]).cast(polars.Decimal(9, 2))", "x.cast(polars.Float64)"),
        ("polars.Series([[1], [2, 3]])", "x.explode()"),
        ("polars.Series([{'name': 1}])", "x.struct.field('name')"),
        ("polars.Series([None])", "x.cast(polars.Float64).fill_null(value)"),
        ("polars.Series([1, None])", "x.fill_null(value)"),
        ("polars.Series([b'a', b'b'])", "x.rank('dense')"),
        ("polars.Series([1, 2], dtype=polars.Object)", "x.to_list()"),
        ("polars.Series([[1], None], dtype=polars.Array(polars.Int64, 1))", "x.drop_nulls()"),
        (
            "polars.Series([[1], [None]], dtype=polars.Array(polars.Int64, 1))",
            "x.explode().fill_null(value)",
        ),
        ("polars.DataFrame({'a': [1, None]})", "x.fill_null(value)"),
        ("polars.DataFrame({'name': [1], 'b': [1.5]})", "x['name']"),
        ("polars.DataFrame({'name': [1], 'b': [1.5]})", "x.cast(polars.Float64)"),
        ("polars.DataFrame({'name': [1], 'b': ['a']})", "x['name']"),
        ("polars.DataFrame({'name': [1], 'b': ['a']})", "x.select(polars.selectors.numeric())"),
        ("polars.DataFrame({'name': ['a']})", "x['name'].cast(polars.Categorical).to_physical()"),
        ("polars.DataFrame({'name': [0]}).cast(polars.Date)", "x['name'].to_physical()"),
        ("polars.DataFrame({'a': [1]}).lazy()", "x.collect()"),
    ],
)
def test_the_ways_out_of_polars_lead_out(source, way):
    names = {"polars": needs("polars"), "value": 0}
    names["x"] = eval(source, names)
    with pytest.raises(BufferError) as told:
        bridge.asarray(names["x"])
    assert way in str(told.value)
    bridge.asarray(eval(way, names))


def test_what_pandas_calls_read_only_stays_so():
    pandas = needs("pandas")
    column = pandas.Series([1, 2, 3], dtype="Int64")
    series = {
        "Int64": column,
        "slice": column[1:],
        "boolean": pandas.Series([True, False], dtype="boolean"),
        "index": pandas.Index([1, 2, 3], dtype="Int64"),
        "frame": pandas.DataFrame({"a": column}),
        "plain": pandas.Series([1, 2, 3]),
        "plain frame": pandas.DataFrame({"a": [1, 2], "b": [3, 4]}),
    }
    arrays = {"array": column.array, "plain array": pandas.Series([1, 2, 3]).array}
    if find_spec("pyarrow") is not None:
        series["arrow"] = pandas.Series([1, 2, 3], dtype="int64[pyarrow]")
        series["array of arrow"] = series["arrow"].array
    for name, x in {**series, **arrays}.items():
        tensor = bridge.asarray(x)
        assert bridge.asarray(x, copy=False).data_ptr() == tensor.data_ptr(), name
        assert "no copy" in str(bridge.explain(x, "cpu")), name
        if name in series:
            with pytest.raises(BufferError, match="read-only"):
                bridge.copy_(tensor, tensor.tolist())
            assert not bridge.to_device(x, "cpu", like="numpy").flags.writeable, name
            if find_spec("torch") is not None:  # torch has no read-only tensors
                given = bridge.to_device(x, "cpu", like="torch")
                assert given.data_ptr() != tensor.data_ptr(), name


def test_what_comes_out_of_pandas_by_a_copy_is_writable_and_said():
    pandas = needs("pandas")
    column = pandas.Series([1, 2, 3], dtype="Int64")
    apart = pandas.DataFrame({"a": column, "b": column})
    assert not bridge.asarray(apart).readonly
    assert "48 bytes copied" in str(bridge.explain(apart, "cpu"))
    with pytest.raises(BufferError, match=r"by a copy.*copy=False"):
        bridge.asarray(apart, copy=False)
    assert bridge.asarray(column[:0], copy=False).shape == (0,)


def test_what_nanoarrow_calls_read_only_stays_so():
    """Its capsules are legacy; that the memory of an Arrow array is immutable its buffer says."""
    view = needs("nanoarrow").c_array(np.arange(4.0)).view().buffer(1)
    tensor = bridge.asarray(view)
    assert tensor.data_ptr() == np.frombuffer(view).ctypes.data
    assert tensor.readonly
    with pytest.raises(BufferError, match="read-only"):
        bridge.copy_(view, np.zeros(4))
    assert tensor.tolist() == [0, 1, 2, 3]


@pytest.mark.filterwarnings("ignore")  # that the unit is lost; that __array__ does not know copy
@pytest.mark.parametrize("library", ["pint", "shapely"])
def test_what_refuses_copy_false_and_shares_is_called_shared(library):
    module = needs(library)
    values = np.arange(4.0)
    x = module.Quantity(values, "m") if library == "pint" else module.Point(1, 2).coords
    assert "no copy" in bridge.explain(x, "cpu").splitlines()[0]
    with bridge.trace() as trace:
        result = bridge.to_device(x, "cpu")
    assert trace.copies == 0
    assert np.shares_memory(np.asarray(x), result.numpy())
    assert bridge.asarray(x, copy=False).data_ptr() == result.data_ptr()


def test_sparse_arrays_are_named():
    sparse = needs("sparse")
    x = sparse.COO(np.eye(3))
    for function in (bridge.asarray, lambda x: bridge.explain(x, "cpu")):
        with pytest.raises(BufferError, match=r"x\.todense\(\)"):
            function(x)
    held = importlib.import_module("xarray").DataArray(x)
    with pytest.raises(BufferError, match=r"pass x\.data\.todense\(\)"):
        bridge.asarray(held)
    assert bridge.asarray(held.data.todense()).tolist() == np.eye(3).tolist()


def test_dates_in_xarray():
    array = needs("xarray").DataArray(np.array(["2026-01-01"], "M8[s]"))
    with pytest.raises(BufferError, match=r"pass numpy\.asarray\(x\)\.view\('int64'\)"):
        bridge.asarray(array)
    assert bridge.asarray(np.asarray(array).view("int64")).shape == (1,)


def test_lazy_arrays_are_not_computed():
    needs("dask")
    lazy = importlib.import_module("dask.array").zeros(10, chunks=5)
    for function in (bridge.asarray, lambda x: bridge.explain(x, "cpu")):
        with pytest.raises(BufferError, match=r"x\.compute\(\)"):
            function(lazy)
        with pytest.raises(BufferError, match=r"x\.compute\(\)"):
            function([lazy])


def test_lists_of_dali():
    backend = needs("nvidia.dali", "nvidia.dali.backend")
    x = backend.TensorListCPU(np.ones((2, 3), "f4"))
    with pytest.raises(BufferError, match=r"x\.as_tensor\(\)"):
        bridge.asarray(x)
    assert bridge.asarray(x.as_tensor()).tolist() == [[1, 1, 1]] * 2


def test_values_of_onnxruntime_lend_their_memory():
    """Its capsules do not keep the array that a value was made of; dlbridge keeps the value."""
    onnxruntime = needs("onnxruntime")
    for take, kept in ((np.from_dlpack, False), (bridge.from_dlpack, True)):
        x = np.arange(64, dtype="f4")
        gone = weakref.ref(x)
        taken = take(onnxruntime.OrtValue.ortvalue_from_numpy(x))
        del x
        gc.collect()
        assert (gone() is not None) is kept
        del taken


def test_openvino_types():
    openvino = needs("openvino")
    x = openvino.Tensor(openvino.Type.bf16, openvino.Shape([3]))
    assert bridge.asarray(x).dtype is bridge.dtype("bfloat16")
    with pytest.raises(BufferError, match="no form in DLPack"):
        bridge.asarray(openvino.Tensor(openvino.Type.i4, openvino.Shape([4])))


def test_max_reads_memory_with_strides_as_if_it_were_compact():
    """Its own `from_dlpack` does, of a producer without ``is_contiguous``; `to_device` does not."""
    buffer = needs("max", "max.driver").Buffer
    x = np.arange(8, dtype="f4")

    class Producer:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **keywords):
            return self.array.__dlpack__(**keywords)

        def __dlpack_device__(self):
            return (1, 0)

    assert np.from_dlpack(buffer.from_dlpack(Producer(x[::2]))).tolist() == [0, 1, 2, 3]
    tensor = bridge.asarray(x)
    for part in (tensor[2:], tensor[::2], tensor.reshape(2, 4).T, tensor.reshape(4, 2)[:, 1:]):
        given = bridge.to_device(part, "cpu", like="max")
        assert bridge.asarray(given).tolist() == part.tolist()
        assert bridge.asarray(given).shape == part.shape


def test_the_source_of_tinygrads_copy_may_change_on_return():
    needs("tinygrad")
    for size in [100] * 300 + [1 << 22] * 4:
        x = np.zeros(size, "f4")
        copy = bridge.to_device(x, "cpu", like="tinygrad")
        x[:] = 9
        assert not copy.numpy().any()


def test_arrays_of_oneapi_come_to_the_cpu():
    dpnp = needs("dpnp")
    x = dpnp.asarray([1.0, 2.0])
    for moved in (bridge.to_device(x, "cpu"), bridge.asarray(x, device="cpu")):
        assert moved.tolist() == [1, 2]
    assert "16 bytes copied" in bridge.explain(x, "cpu")
    with pytest.raises(BufferError, match="dpnp has no arrays on cpu:0"):
        bridge.to_device(np.ones(2), "cpu", like="dpnp")
