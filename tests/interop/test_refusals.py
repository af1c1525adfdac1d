"""What DLPack cannot say of an array, or what is no memory, is refused with the way out.

The classes here stand for those of libraries that are not among the test packages;
``tests/peers`` shows the same with the libraries.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import dlbridge as bridge


def stub(path, **members):
    """A producer on the CPU that is of the class *path*, with the members of that library's."""
    module, _, name = path.rpartition(".")

    def export(self, *, max_version=None, **_keywords):
        return np.array([1, 2], "f4").__dlpack__(max_version=max_version)

    given = {"__dlpack__": export, "__dlpack_device__": lambda self: (1, 0), **members}
    return type(name, (), {"__module__": module, **given})()


def computed(*_arguments, **_keywords):
    pytest.fail("it was computed")


LAZY = dict.fromkeys(("__array__", "__dlpack__", "compute", "data"), computed)

REFUSED = {
    "paddle with gradients": (
        stub("paddle.Tensor", stop_gradient=False),
        r"stop_gradient is False\); pass x\.detach\(\)",
    ),
    "a sparse paddle tensor": (stub("paddle.Tensor", is_sparse=lambda self: True), "x.to_dense"),
    "a value of a traced function": (
        stub("tensorflow.python.framework.ops.SymbolicTensor"),
        "outside of tf.function",
    ),
    "ragged": (stub("tensorflow.python.ops.RaggedTensor"), r"x\.to_tensor\(\)"),
    "strings": (
        stub("tensorflow.python.EagerTensor", dtype=SimpleNamespace(name="string")),
        "convert it to numbers",
    ),
    "dask": (stub("dask.array.core.Array", **LAZY), r"x\.compute\(\)"),
    "tinygrad": (stub("tinygrad.tensor.Tensor", **LAZY), r"pass x\.numpy\(\)"),
    "sparse": (stub("sparse.numba_backend._coo.core.COO"), r"x\.todense\(\)"),
    "a quantity of a masked array": (
        stub("pint.Quantity", magnitude=np.ma.masked_array([1.0, 2.0], [0, 1])),
        r"x\.magnitude\.filled\(\)",
    ),
    "a list of DALI": (stub("nvidia.dali.backend.TensorListCPU"), r"x\.as_tensor\(\)"),
    "an indexed array of warp": (stub("warp._src.types.indexedarray"), r"x\.contiguous\(\)"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize(
    "take",
    [
        bridge.from_dlpack,
        bridge.asarray,
        lambda x: bridge.to_device(x, "cpu"),
        lambda x: bridge.explain(x, "cpu"),
    ],
    ids=["from_dlpack", "asarray", "to_device", "explain"],
)
def test_refused_with_the_way_out(name, take):
    x, way_out = REFUSED[name]
    with pytest.raises(BufferError, match=way_out):
        take(x)


def test_paddle_without_gradients_is_taken():
    assert bridge.from_dlpack(stub("paddle.Tensor", stop_gradient=True)).tolist() == [1, 2]


@pytest.mark.parametrize("path", ["tensorflow.python.EagerTensor", "jaxlib._jax.ArrayImpl"])
def test_constants_are_not_written(path):
    """Their legacy capsules cannot say that nobody may write."""
    content = np.array([1, 2], "f4")
    x = stub(path, __dlpack__=lambda self, *, stream=None: content.__dlpack__())
    assert bridge.from_dlpack(x).readonly
    with pytest.raises(BufferError, match="read-only"):
        bridge.copy_(x, np.zeros(2, "f4"))
    assert content.tolist() == [1, 2]


@pytest.mark.parametrize("function", [bridge.explain, bridge.to_device])
def test_a_library_that_has_no_arrays_on_the_cpu(function, monkeypatch):
    """The advice names what can be done where no backend for its devices is loaded, too."""
    cupy = ModuleType("cupy")
    cupy.from_dlpack = lambda x: pytest.fail("it was asked")
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with pytest.raises(BufferError, match=r"cupy has no arrays on cpu:0; .*dlbridge\.to_device"):
        function(np.ones(2), "cpu", like=cupy)


def test_warp_has_no_arrays_without_dimensions():
    for function in (bridge.explain, bridge.to_device):
        with pytest.raises(BufferError, match=r"give it t\.reshape\(1\)"):
            function(np.float32(1), "cpu", like=stub("warp._src.types.array"))


def test_a_class_that_makes_itself_of_a_producer():
    """Its module is no array library, and has no from_dlpack."""

    class Image:
        __module__ = "pictures.image"

        def __init__(self, array):
            self.array = array

        @classmethod
        def from_dlpack(cls, producer):
            return cls(np.from_dlpack(producer))

        def __dlpack__(self, **keywords):
            return self.array.__dlpack__(**keywords)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    x = np.arange(3.0)
    for like in (Image, Image(x)):
        made = bridge.to_device(x, "cpu", like=like)
        assert type(made) is Image
        assert made.array.ctypes.data == x.ctypes.data
        assert "pictures.Image (no copy)" in bridge.explain(x, "cpu", like=like)


@pytest.mark.parametrize("package", ["pyarrow", "polars", "pandas", "openvino", "xarray", "numpy"])
def test_a_strange_class_in_the_module_of_a_library(package):
    """A producer is taken, and another object refused as what it is."""
    producer = stub(f"{package}.strange.Thing")
    assert bridge.from_dlpack(producer).tolist() == [1, 2]
    assert bridge.asarray(producer).tolist() == [1, 2]
    thing = type("Thing", (), {"__module__": f"{package}.strange"})()
    with pytest.raises((TypeError, BufferError), match=f"{package}.strange.Thing"):
        bridge.asarray(thing)
    with pytest.raises(TypeError, match="nor an array"):
        bridge.to_device(np.zeros(3), "cpu", like=thing)


@pytest.mark.parametrize("name", ["kind", "byteorder", "char", "isbuiltin"])
def test_who_takes_our_dtype_for_numpys_is_told_what_to_pass(name):
    """zarr, xgboost and safetensors.numpy read these of any object with a dtype."""
    found = bridge.dtype("float32")
    assert not hasattr(found, name)
    assert name not in dir(found)
    with pytest.raises(AttributeError, match=rf"{name}.*numpy\.asarray\(t\)"):
        getattr(found, name)


def test_masks_of_astropy_have_other_ways_out():
    values = np.arange(3.0)
    members = {"mask": np.zeros(3, bool), "filled": lambda self, value: values, "unmasked": values}
    masked = type("Masked", (np.ndarray,), {})
    for name, member in members.items():
        setattr(masked, name, member)
    with pytest.raises(BufferError, match=r"pass x\.unmasked or x\.filled\(value\)"):
        bridge.from_dlpack(values.view(masked))
