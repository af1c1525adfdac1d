"""`Library.look`: what the descriptions tell of an array is what dlbridge itself reads of it."""

from __future__ import annotations

import tracemalloc
from importlib.util import find_spec

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.watching.arrays import address_of, kind_of, what_of
from tests.support.scripts import run_script

TYPES = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
TYPES += ["float16", "float32", "float64"]


def plain():
    """Arrays of numpy: types, and memory that starts later, has steps, or is empty."""
    for name in TYPES:
        yield np.arange(12).astype(name)
    whole = np.arange(24.0)
    yield from (whole[3:], whole[::2], whole[::-1], whole[:0], whole.reshape(4, 6).T, whole[0])
    yield from (whole > 3, whole.astype("complex64"), whole.astype(">f8"))


def dates():
    return np.arange(4).astype("datetime64[us]")


def of_numpy():
    yield from plain()
    yield from (
        dates(),
        np.array([1, "a"], dtype=object),
        np.ma.masked_array([1, 2], [True, False]),
    )


def of_torch():
    torch = pytest.importorskip("torch")
    yield from (torch.ones(3, 4), torch.ones(3, 4).T, torch.ones(5)[2:], torch.ones(0))
    yield from (torch.ones(3, dtype=torch.bfloat16), torch.ones(3, requires_grad=True))
    yield from (
        torch.ones(3).to_sparse(),
        torch.empty(3, device="meta"),
        torch.ones(2, 2).expand(3, 2, 2),
    )


def of_jax():
    jax = pytest.importorskip("jax")
    for name in TYPES:
        if "64" not in name:
            yield jax.numpy.ones((3, 4), name)
    for name in ("bool", "complex64", "bfloat16", "float8_e4m3fn", "int4"):
        yield jax.numpy.ones((3, 4), name)
    yield from (jax.numpy.ones(()), jax.numpy.ones((0, 3)), jax.random.key(0))
    deleted = jax.numpy.ones(3)
    deleted.delete()
    yield deleted
    yield jax.device_put(jax.numpy.ones(4), jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    mesh = jax.make_mesh((1,), ("x",))
    spec = jax.sharding.PartitionSpec("x")
    yield jax.device_put(jax.numpy.ones(4), jax.sharding.NamedSharding(mesh, spec))


def of_tvm_ffi():
    tvm_ffi = pytest.importorskip("tvm_ffi")
    for name in (*TYPES, "bool", "bfloat16", "float8_e4m3fn", "int4", "float4_e2m1fn", "float32x4"):
        yield tvm_ffi.from_dlpack(bridge.zeros((3, 4), name))
    yield from (tvm_ffi.from_dlpack(bridge.zeros(shape)) for shape in ((), (0, 3), (2, 0)))
    yield tvm_ffi.from_dlpack(bridge.zeros(10)[3:])
    yield tvm_ffi.from_dlpack(bridge.zeros((3, 4)).transpose(1, 0))


def of_pyarrow():
    pa = pytest.importorskip("pyarrow")
    arrays = [pa.array(np.arange(12).astype(name)) for name in TYPES]
    yield from arrays
    yield from (array[5:] for array in arrays)
    yield from (pa.array([1, None]), pa.array([1, None])[:1], pa.array([1.5, None])[1:])
    yield from (pa.array([True, False]), pa.array(["a"]), pa.array([None]), pa.array([], "int32"))
    yield from (pa.array([[1], [2, 3]]), pa.array([{"x": 1}]), pa.array(["a"]).dictionary_encode())
    yield from (
        pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)),
        pa.array([b"ab"], pa.binary(2)),
    )
    yield from (pa.array(dates()), pa.array([1], pa.date32()), pa.array([1], pa.duration("s")))
    yield pa.array([1], pa.decimal128(5))
    yield pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((2, 3)))
    yield from (pa.chunked_array([arrays[2]]), pa.chunked_array([arrays[2], arrays[2][3:]]))
    yield from (
        pa.chunked_array([], "int32"),
        pa.chunked_array([["a"]]),
        pa.chunked_array([[None, 1]]),
    )
    yield from (pa.chunked_array([[True]]), pa.chunked_array([pa.array(dates())]))


def of_pandas():
    pd = pytest.importorskip("pandas")
    for array in plain():
        if array.ndim == 1:
            yield from (pd.Series(array), pd.Series(array, copy=False))
            if array.dtype != "float16" and array.dtype.isnative:
                yield from (pd.array(array), pd.Index(array))
        if array.ndim == 2:
            yield pd.DataFrame(array)
    yield from (pd.Series(dates()), pd.Index(dates()), pd.Series(dates()).dt.tz_localize("UTC"))
    yield from (pd.Series([1, 2], dtype="Int64"), pd.Series([1, None], dtype="Int64"))
    yield from (pd.Series([1, 2], dtype="Int64").array, pd.Series(["a"]), pd.Series([1, "a"]))
    yield from (pd.Series(["a"], dtype="category"), pd.Series([0, 1], dtype="Sparse[int]"))
    yield from (pd.period_range("2020", periods=2), pd.interval_range(0, 2), pd.RangeIndex(5))
    yield from (pd.RangeIndex(0), pd.MultiIndex.from_product([[1], [2, 3]]))
    if find_spec("pyarrow"):
        yield pd.Series([1, 2], dtype="int64[pyarrow]")
    several = {"type": [1, 2], "dtype": [1.5, 2.5]}
    yield from (pd.DataFrame(several), pd.DataFrame({"dtype": [1, 2]}), pd.DataFrame())
    apart = pd.DataFrame({"x": [1.0, 2.0], "y": [3.0, 4.0]})
    apart["z"] = [5.0, 6.0]
    apart.insert(1, "u", [7.0, 8.0])
    yield from (apart, apart.copy(), apart[["x"]], apart.T, apart.iloc[::2])
    yield pd.DataFrame({"x": [1, 2], "y": [3, 4]}, dtype="Int64")


def of_polars():
    pl = pytest.importorskip("polars")
    for array in plain():
        if array.ndim == 1 and array.dtype.isnative and array.dtype.kind != "c":
            yield from (pl.Series(array), pl.Series(array)[2:])
    yield from (
        pl.Series([1, None]),
        pl.Series([1.5, None]),
        pl.Series([True, False]),
        pl.Series(["a"]),
    )
    yield from (
        pl.Series(dates()),
        pl.Series([[1, 2], [3]]),
        pl.Series([object()], dtype=pl.Object),
    )
    yield from (
        pl.Series(["a"], dtype=pl.Categorical),
        pl.Series([{"x": 1}]),
        pl.Series([], dtype=pl.Int8),
    )
    yield pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int32, 2))
    yield pl.concat([pl.Series([1]), pl.Series([2])], rechunk=False)
    yield from (pl.DataFrame({"x": [1, 2]}), pl.DataFrame({"x": [1], "y": [1.5]}), pl.DataFrame())
    yield from (pl.DataFrame(np.ones((3, 2))), pl.DataFrame({"x": [1, None]}))


def of_pil():
    image = pytest.importorskip("PIL.Image")
    yield from (
        image.new(mode, (3, 4)) for mode in ("1", "L", "RGB", "RGBA", "F", "I", "I;16", "P")
    )


def of_tensorflow():
    tf = pytest.importorskip("tensorflow")
    for name in (*TYPES, "bool", "complex64", "bfloat16"):
        yield tf.cast([1, 0, 1], name)
    yield from (tf.constant(1.5), tf.zeros((0, 3)), tf.constant("a"), tf.Variable([1.0]))
    yield tf.sparse.from_dense([[0, 1]])


OF = [of_numpy, of_torch, of_jax, of_tvm_ffi, of_pyarrow, of_pandas, of_polars, of_pil]


def by_dlbridge(x):
    """The device, dtype, shape, bytes and address of *x*, as dlbridge has them; None: it refuses."""
    try:
        t = bridge.asarray(x, copy=False)
    except (bridge.ExchangeError, TypeError, ValueError, RuntimeError):
        return None
    device = str(t.device).removesuffix(":0" if t.device.is_host else "")
    return (device, t.dtype.name, t.shape, t.nbytes), t.data_ptr()


def by_numpy(x):
    """The address of numpy's array of *x*, if that is no copy."""
    try:
        array, again = np.asarray(x), np.asarray(x)
    except (TypeError, ValueError, RuntimeError):
        return 0
    return array.ctypes.data if np.shares_memory(array, again) else 0


@pytest.mark.parametrize("arrays", OF, ids=lambda arrays: arrays.__name__)
@pytest.mark.filterwarnings("ignore")
def test_the_look_tells_what_dlbridge_reads(arrays):
    looked = 0
    for x in arrays():
        kind = kind_of(x)
        if kind is None:
            continue  # a scalar, a tf.Variable
        looked += 1
        (device, dtype, shape, nbytes), address = what_of(kind, x), address_of(kind, x)
        what = device, str(dtype).removeprefix(f"{kind.library}."), shape, nbytes
        read = by_dlbridge(x)
        if read is not None:
            assert what == read[0], type(x)
            assert address == read[1] or not nbytes, (type(x), what)
            continue
        # Numbers of another byte order, dates, values that are missing, several chunks.
        assert isinstance(shape, tuple)
        assert address == address_of(kind, x)  # no copy's, which would be gone
        if kind.library != "jax":  # it keeps what numpy has made of int4
            assert address in (0, by_numpy(x) or address), (type(x), what)
    assert looked > 5


def test_tensorflow():
    """In a process of its own: its LLVM is not PoCL's."""
    if not find_spec("tensorflow"):
        pytest.skip("tensorflow is not installed here")
    run_script(
        """
        from tests.watching import test_looks
        test_looks.test_the_look_tells_what_dlbridge_reads(test_looks.of_tensorflow)
        """
    )


def test_other_devices(device):
    """A tensor of tvm_ffi has no number of bytes by itself."""
    t = bridge.zeros((3, 4), "float32", device=device)
    x = pytest.importorskip("tvm_ffi").from_dlpack(t)
    kind = kind_of(x)
    assert what_of(kind, x)[1:] == ("float32", (3, 4), 48)
    assert what_of(kind, x)[0] == str(t.device).removesuffix(":0" if t.device.is_host else "")
    assert bool(address_of(kind, x)) == t.device.is_host


def test_a_look_that_raises(monkeypatch):
    """The array is read by dlbridge itself."""

    def refused(_x):
        raise KeyError("another type")

    a = np.zeros((2, 3), "float32")
    kind = kind_of(a)
    monkeypatch.setattr(kind, "look", refused)
    monkeypatch.setattr(kind, "address", refused)
    assert (what_of(kind, a), address_of(kind, a)) == by_dlbridge(a)


def test_a_look_at_a_table_copies_nothing():
    """Its columns may be apart, and of several types."""
    pd = pytest.importorskip("pandas")
    whole = pd.DataFrame(np.zeros((100_000, 2)))
    apart = whole.assign(z=1.0)
    mixed = whole.assign(z=1)
    for table in (whole, apart, mixed):
        kind = kind_of(table)
        what_of(kind, table), address_of(kind, table)
        tracemalloc.start()
        try:
            what_of(kind, table), address_of(kind, table)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 100_000
    assert address_of(kind_of(whole), whole) == whole.to_numpy().ctypes.data
    assert address_of(kind_of(apart), apart) == 0


def test_a_look_at_a_picture_reads_none_of_it():
    image = pytest.importorskip("PIL.Image")

    class Lazy(image.Image):
        def load(self):
            raise AssertionError("the picture is decoded")

    x = Lazy()
    x._mode, x._size = "RGB", (3, 4)
    assert what_of(kind_of(x), x) == ("cpu", "RGB", (3, 4), 0)
