"""Arrays of other libraries, made of a Tensor on the same memory, where `from_dlpack` does not do.

Each function imports its library, and lets the library's errors through.
"""

from __future__ import annotations

import importlib
from typing import Any

from dlbridge.core.tensor.array_tensor import writable
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.values.dtypes import dtype as as_dtype
from dlbridge.errors import ExchangeError

__all__ = [
    "refuse_narrowing",
    "refuse_no_dimensions",
    "refuse_not_one_dimension",
    "refuse_other_than_images",
    "refuse_types_of_arrow",
    "to_cuda_core",
    "to_dali",
    "to_dask",
    "to_dpctl",
    "to_jax",
    "to_mlx",
    "to_native",
    "to_numba",
    "to_numpy",
    "to_onnxruntime",
    "to_openvino",
    "to_pandas",
    "to_pillow",
    "to_polars",
    "to_pyarrow",
    "to_readonly_torch",
    "to_tensorflow",
    "to_tinygrad",
    "to_usm",
    "to_warp",
    "to_xarray",
]


def to_numpy(tensor: Tensor) -> Any:
    """``numpy.ndarray``, of ml_dtypes where numpy lacks the type."""
    return tensor.numpy()


def to_native(tensor: Tensor) -> Any:
    """The object of the device's own ecosystem: ``pyopencl.array.Array`` on OpenCL."""
    return tensor.to_native()


def to_jax(tensor: Tensor) -> Any:
    """``jax.Array``."""
    import jax.dlpack

    if tensor.readonly:
        # jax before 0.12 asks for legacy capsules, which cannot carry READ_ONLY. Its own
        # arrays are immutable, so it is given the memory without that mark.
        tensor = writable(tensor)
    return jax.dlpack.from_dlpack(tensor)


def to_readonly_torch(tensor: Tensor) -> Any:
    """``torch.utils.dlpack.ReadOnlyTensorWrapper``; without it torch ignores READ_ONLY."""
    import torch

    return torch.utils.dlpack.ReadOnlyTensorWrapper(torch.from_dlpack(tensor))


def refuse_narrowing(tensor: Tensor) -> None:
    """Raise ExchangeError for 64-bit types, which jax without x64 changes to 32 bits."""
    if tensor.dtype.name not in {"float64", "int64", "uint64", "complex128"}:
        return
    import jax

    narrow = as_dtype(jax.dtypes.canonicalize_dtype(tensor.dtype.numpy))
    if narrow is not tensor.dtype:
        raise ExchangeError(
            f"jax would turn {tensor.dtype} into {narrow}: call "
            "jax.config.update('jax_enable_x64', True) at the start, or convert the elements "
            "yourself beforehand"
        )


def to_tensorflow(tensor: Tensor) -> Any:
    """``tf.Tensor``; tensorflow takes a legacy capsule, not an object."""
    import tensorflow as tf

    return tf.experimental.dlpack.from_dlpack(tensor.__dlpack__())


def to_mlx(tensor: Tensor) -> Any:
    """``mlx.core.array``."""
    import mlx.core

    return mlx.core.from_dlpack(tensor)


def to_warp(tensor: Tensor) -> Any:
    """``warp.array``."""
    import warp

    warp.init()  # without it warp knows no device
    return warp.from_dlpack(tensor)


def refuse_no_dimensions(tensor: Tensor) -> None:
    """Raise ExchangeError for a tensor without dimensions: warp 1.19 fails with an IndexError."""
    if not tensor.ndim:
        raise ExchangeError("warp has no arrays without dimensions; give it t.reshape(1)")


def to_onnxruntime(tensor: Tensor) -> Any:
    """``onnxruntime.OrtValue``; versions before 1.32 have to be told which bytes are bools."""
    import onnxruntime

    make = onnxruntime.capi.onnxruntime_pybind11_state.OrtValue.from_dlpack
    try:
        value = make(tensor.__dlpack__())
    except TypeError:
        is_bool = tensor.dtype.name == "bool"
        given = tensor.view("uint8") if is_bool else tensor
        value = make(given.__dlpack__(), is_bool)
    return onnxruntime.OrtValue(value)


def to_openvino(tensor: Tensor) -> Any:
    """``openvino.Tensor`` on the memory of a numpy array."""
    import openvino

    return openvino.Tensor(tensor.numpy(), shared_memory=True)


def to_numba(tensor: Tensor) -> Any:
    """A device array of ``numba.cuda``."""
    cuda = importlib.import_module("numba.cuda")
    return cuda.as_cuda_array(tensor)


def to_cuda_core(tensor: Tensor) -> Any:
    """``cuda.core.utils.StridedMemoryView``, which does not order its work after ours."""
    from cuda.core.utils import StridedMemoryView

    if not tensor.device.is_host:
        return tensor.to_native()
    return StridedMemoryView.from_dlpack(tensor, stream_ptr=-1)


def to_dali(tensor: Tensor) -> Any:
    """``TensorCPU`` of ``nvidia.dali``, which takes a legacy capsule, not an object."""
    backend = importlib.import_module("nvidia.dali.backend")
    return backend.TensorCPU(tensor.__dlpack__())


def to_dpctl(tensor: Tensor) -> Any:
    """A memory object of ``dpctl``: the bytes, without shape and type."""
    import dpctl.memory

    return dpctl.memory.as_usm_memory(tensor.to_native())


def to_usm(tensor: Tensor) -> Any:
    """``dpnp.ndarray``, on memory of oneAPI."""
    import dpnp

    return dpnp.from_dlpack(tensor)


def refuse_not_one_dimension(tensor: Tensor) -> None:
    """Raise ExchangeError for what a column of a table cannot hold."""
    if tensor.ndim != 1:
        raise ExchangeError(
            f"a column has one dimension, and the tensor has shape {tensor.shape}; give one "
            "column of it (t[:, 0]), or t.reshape(-1)"
        )


def refuse_types_of_arrow(tensor: Tensor) -> None:
    """Raise ExchangeError for what Arrow's columns cannot hold in place."""
    refuse_not_one_dimension(tensor)
    name = tensor.dtype.name
    if name == "bool":
        raise ExchangeError(
            "Arrow packs bools into bits; give it t.view('uint8'), or make its array of a list"
        )
    if name not in _TYPES_OF_ARROW:
        raise ExchangeError(
            f"Arrow has no {name}; t.view() can call the elements something of the same size, and "
            "like='numpy' knows more types"
        )


_TYPES_OF_ARROW = frozenset(
    {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
    | {"float16", "float32", "float64"}
)


def to_pyarrow(tensor: Tensor) -> Any:
    """``pyarrow.Array``."""
    import pyarrow

    return pyarrow.array(tensor)


def to_polars(tensor: Tensor) -> Any:
    """``polars.Series``, by Arrow: numpy arrays are copied by polars."""
    import polars
    import pyarrow

    return polars.Series(pyarrow.array(tensor))


def to_pandas(tensor: Tensor) -> Any:
    """``pandas.Series``."""
    import pandas

    return pandas.Series(tensor.numpy(), copy=False)


def to_xarray(tensor: Tensor) -> Any:
    """``xarray.DataArray``."""
    import xarray

    return xarray.DataArray(tensor.numpy())


def to_dask(tensor: Tensor) -> Any:
    """``dask.array.Array``."""
    import dask.array

    return dask.array.from_array(tensor.numpy())


def to_tinygrad(tensor: Tensor) -> Any:
    """``tinygrad.Tensor``, on tinygrad's default device."""
    import tinygrad

    return tinygrad.Tensor(tensor.numpy()).realize()


def to_pillow(tensor: Tensor) -> Any:
    """``PIL.Image.Image``."""
    import PIL.Image

    return PIL.Image.fromarray(tensor.numpy()).copy()  # some modes share memory, others do not


def refuse_other_than_images(tensor: Tensor) -> None:
    """Raise ExchangeError for types that PIL would change, as float64, and for other shapes."""
    name = tensor.dtype.name
    planes = _IMAGES.get(name, ())
    if not planes:
        raise ExchangeError(
            f"PIL has no images of {name}; an image has elements of {', '.join(_IMAGES)}: "
            "convert them beforehand"
        )
    if tensor.ndim == 2 or (tensor.ndim == 3 and tensor.shape[2] in planes):
        return
    channels = f", or three with {', '.join(map(str, planes))} channels" if any(planes) else ""
    raise ExchangeError(
        f"an image of {name} has two dimensions{channels}, and the tensor has shape "
        f"{tensor.shape}; t.reshape() can give it such a shape"
    )


_IMAGES = {"bool": (0,), "uint8": (2, 3, 4), "uint16": (0,), "int32": (0,), "float32": (0,)}
"""Types of PIL's images, and how many channels those with three dimensions have."""
