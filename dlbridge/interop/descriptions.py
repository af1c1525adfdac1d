"""The descriptions of libraries that need few lines: the others have a file of their own.

How each library treats a DLPack tensor was measured: ``tests/interop`` and
``tests/peers`` show it, and ``docs/compatibility.md`` has the versions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dlbridge import DLDeviceType, device_of
from dlbridge.abi import address_of
from dlbridge.errors import ExchangeError
from dlbridge.extending import (
    ALL_HOST,
    FLOAT8,
    HOST_ONLY,
    NUMPY_OWN,
    PACKED,
    Exchange,
    Library,
    exchanges,
    native_dtypes,
    origin_of,
    with_article,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge import Device, Tensor


_CPU = DLDeviceType.kDLCPU
_CUDA = DLDeviceType.kDLCUDA
_CUDA_HOST = DLDeviceType.kDLCUDAHost
_MANAGED = DLDeviceType.kDLCUDAManaged
_ROCM = DLDeviceType.kDLROCM
_ONEAPI = DLDeviceType.kDLOneAPI
_METAL = DLDeviceType.kDLMetal

_INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_PLAIN = frozenset({"bool", "float32", "float64"}) | _INTEGERS
_COMPLEX = frozenset({"complex64", "complex128"})
_SMALL_FLOATS = frozenset(
    {"float16", "bfloat16", "float8_e3m4", "float8_e4m3", "float6_e2m3fn", "float6_e3m2fn"}
)
_VECTORS = frozenset(  # OpenCL's float4 and the like; those of 3 have a fourth number
    f"{name}x{lanes}" for name in (*_INTEGERS, "float32", "float64") for lanes in (2, 4, 8, 16)
)
_ONE_LANE = _PLAIN | _COMPLEX | PACKED | FLOAT8 | _SMALL_FLOATS


def to_native(tensor: Tensor) -> Any:
    """The object of the device's own ecosystem: ``pyopencl.array.Array`` on OpenCL."""
    return tensor.to_native()


def _refuse_classes(messages: dict[str, str]) -> Callable[[Any], None]:
    """A function that refuses classes of arrays: a part of the name -> what is said of them."""

    def refuse(x: Any) -> None:
        for part, message in messages.items():
            if part in type(x).__name__:
                raise ExchangeError(f"{with_article(origin_of(x))} {message}")

    return refuse


_TRACED = (
    "stands for a value in a function that is being traced, and has no memory; call dlbridge "
    "outside of tf.function, or inside tf.py_function"
)
_refuse_traced_or_scattered = _refuse_classes(
    {
        "SymbolicTensor": _TRACED,
        "KerasTensor": _TRACED,
        "RaggedTensor": "is not one block of memory; pass x.to_tensor()",
        "SparseTensor": "is not one block of memory; pass tf.sparse.to_dense(x)",
    }
)


def _refuse_tensorflow(x: Any) -> None:
    """Tensors of a graph, ragged and sparse ones, and types without plain memory."""
    _refuse_traced_or_scattered(x)
    name = getattr(getattr(x, "dtype", None), "name", "")
    if name.startswith("float8"):
        raise ExchangeError(f"tensorflow does not export {name}; pass x.numpy()")
    if name in ("string", "resource", "variant"):
        # tensorflow 2.21 aborts the process in __dlpack__ of such a tensor.
        raise ExchangeError(
            f"a tensorflow tensor of {name} elements has no plain memory; convert it to numbers "
            "(tf.io.decode_raw, tf.strings.to_number)"
        )


def _refuse_paddle(x: Any) -> None:
    """Gradients, which paddle's exchange table does not look at, and sparse layouts."""
    if getattr(x, "is_sparse", bool)():
        raise ExchangeError("a sparse paddle tensor is not one block of memory; pass x.to_dense()")
    if not getattr(x, "stop_gradient", True):
        raise ExchangeError(
            "the paddle tensor requires gradients (stop_gradient is False); pass x.detach()"
        )


def _refuse_sparse(x: Any, name: str = "x") -> None:
    """Sparse arrays of scipy and sparse, scipy's operators; *name* is what messages call *x*."""
    if hasattr(x, "matvec"):
        raise ExchangeError(
            f"{with_article(origin_of(x))} has no elements in memory; multiply it: pass "
            "x @ numpy.eye(x.shape[1])"
        )
    way = "toarray()" if hasattr(x, "toarray") else "todense()"
    raise ExchangeError(
        f"a sparse {origin_of(x)} is not one block of memory; pass {name}.{way}, or its parts "
        f"({name}.data)"
    )


def _refuse_pint(x: Any) -> None:
    """A quantity over a masked array, whose `__array__` drops the mask."""
    inner = getattr(x, "magnitude", None)  # a unit has none
    if hasattr(inner, "mask") and hasattr(inner, "filled"):
        raise ExchangeError(
            "the pint.Quantity has a masked array, which has no DLPack form; pass "
            "x.magnitude.filled() or x.magnitude.data"
        )


def _expose_xarray(x: Any, _copy: bool | None) -> Any:
    """The array inside a DataArray or Variable, whichever library it belongs to."""
    inner = getattr(x, "data", None)
    if inner is None or not hasattr(inner, "shape"):
        raise ExchangeError(
            f"{with_article(origin_of(x))} holds several arrays; pass one of them (x['name'])"
        )
    if hasattr(inner, "todense"):
        _refuse_sparse(inner, "x.data")
    return inner


def _expose_openvino(x: Any, _copy: bool | None) -> Any:
    """Numpy's view of an openvino Tensor: it keeps the tensor alive."""
    if not hasattr(x, "element_type"):
        return x
    name = x.element_type.get_type_name()
    if x.element_type.bitwidth < 8 or name == "string":
        raise ExchangeError(
            f"an openvino tensor of {name} elements has no form in DLPack; pass x.data, openvino's "
            "own view of its bytes"
        )
    array = x.data
    if name in _OPENVINO_SMALL:
        # openvino gives these to numpy under the name of another type of their size.
        import ml_dtypes

        array = array.view(getattr(ml_dtypes, _OPENVINO_SMALL[name]))
    return array


_OPENVINO_SMALL = {
    "bf16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f8e8m0": "float8_e8m0fnu",
}


def _to_warp(tensor: Tensor) -> Any:
    """``warp.array``."""
    import warp

    warp.init()  # without it warp knows no device
    return warp.from_dlpack(tensor)


def _check_warp(tensor: Tensor, _device: Device) -> None:
    """Raise ExchangeError for a tensor without dimensions: warp 1.19 fails with an IndexError."""
    if not tensor.ndim:
        raise ExchangeError("warp has no arrays without dimensions; give it t.reshape(1)")


def _to_onnxruntime(tensor: Tensor) -> Any:
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


def _to_openvino(tensor: Tensor) -> Any:
    """``openvino.Tensor`` on the memory of a numpy array; types that numpy lacks by their name."""
    import openvino

    names = {ours: theirs for theirs, ours in _OPENVINO_SMALL.items()}
    if tensor.dtype.name not in names:
        return openvino.Tensor(tensor.numpy(), shared_memory=True)
    carrier = tensor.view(f"uint{8 * tensor.itemsize}").numpy()
    kind = getattr(openvino.Type, names[tensor.dtype.name])
    return openvino.Tensor(carrier, openvino.Shape(list(tensor.shape)), kind)


def _to_cuda_core(tensor: Tensor) -> Any:
    """``cuda.core.utils.StridedMemoryView``, which does not order its work after ours."""
    from cuda.core.utils import StridedMemoryView

    if not tensor.device.is_host:
        return tensor.to_native()
    return StridedMemoryView.from_dlpack(tensor, stream_ptr=-1)


def _to_dpctl(tensor: Tensor) -> Any:
    """A memory object of ``dpctl``: the bytes, without shape and type."""
    import dpctl.memory

    return dpctl.memory.as_usm_memory(tensor.to_native())


def _to_dpnp(tensor: Tensor) -> Any:
    """``dpnp.ndarray``, on memory of oneAPI; its ``from_dlpack`` takes no empty ones."""
    import dpnp

    if not tensor.size:
        return dpnp.asarray(tensor.to_native())
    return _turned_twice(dpnp.from_dlpack, tensor)


def _to_mlx(tensor: Tensor) -> Any:
    """``mlx.core.array``, which always copies."""
    import mlx.core

    return _turned_twice(mlx.core.from_dlpack, tensor)


def _turned_twice(make: Callable[[Tensor], Any], tensor: Tensor) -> Any:
    """The array of *tensor* by *make*, which sees no negative strides: they would cost a copy.

    Such axes are turned round for it, and in the array again.
    """
    if min(tensor.strides, default=0) >= 0:
        return make(tensor)
    turned = tuple(slice(None, None, -1 if step < 0 else None) for step in tensor.strides)
    return make(tensor[turned])[turned]


def _to_tinygrad(array: Any) -> Any:
    """``tinygrad.Tensor``, on tinygrad's default device; it reads writable memory only."""
    import tinygrad

    tensor = tinygrad.Tensor(array if array.flags.writeable else array.copy()).realize()
    # Some of its devices read the array later; the caller may change it as soon as this returns.
    tinygrad.Device[tensor.device].synchronize()
    return tensor


def _to_pillow(array: Any) -> Any:
    """``PIL.Image.Image``."""
    import PIL.Image

    return PIL.Image.fromarray(array).copy()  # some modes share memory, others do not


def _check_image(tensor: Tensor, _device: Device) -> None:
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
    if tensor.ndim < 2:
        way = "t.reshape(1, -1) is a picture of one row"
    elif tensor.ndim == 3 and tensor.shape[0] in planes:
        way = "t.transpose(1, 2, 0) puts the channels last"
    elif tensor.shape[-1] in _IMAGES["uint8"]:
        way = "colours are bytes: dlbridge.astype(t, 'uint8') of values from 0 to 255"
    else:
        way = "t[0] is the first of several"
    channels = f", or three with {', '.join(map(str, planes))} channels" if any(planes) else ""
    raise ExchangeError(
        f"an image of {name} has two dimensions{channels}, and the tensor has shape "
        f"{tensor.shape}; {way}"
    )


_IMAGES = {"bool": (0,), "uint8": (2, 3, 4), "uint16": (0,), "int32": (0,), "float32": (0,)}
"""Types of PIL's images, and how many channels those with three dimensions have."""


def by_numpy(name: str, *arrays: str, **facts: Any) -> Library:
    """A library that makes its arrays of numpy's, and never writes to them."""
    return Library(
        name,
        arrays,
        takes="numpy",
        keeps_readonly=True,
        takes_negative_strides=True,
        device_types=HOST_ONLY,
        **facts,
    )


def _view_tensorflow(x: Any) -> Any:
    if ":CPU:" not in x.device:
        raise ExchangeError(f"the buffer of a tensor on {x.device} would be a copy")
    import numpy as np

    array = np.asarray(memoryview(x))
    if array.dtype not in native_dtypes():
        raise ExchangeError(f"numpy has no {x.dtype}")
    return array


def _look_tensorflow(x: Any) -> tuple[object, object, tuple[int, ...], int]:
    array = _view_tensorflow(x)
    return "cpu", array.dtype, array.shape, array.nbytes


_TENSOR = "dlbridge.core.tensor.tensor:Tensor"
_ARRAY_TENSOR = "dlbridge.core.tensor.array_tensor:ArrayTensor"
_EAGER = "tensorflow.python.framework.ops:EagerTensor"


@lru_cache(maxsize=64)
def _text(device: Device) -> str:
    return "cpu" if device == "cpu" else str(device)


def _look(x: Any) -> tuple[object, object, tuple[int, ...], int]:
    return _text(x.device), x.dtype, x.shape, x.nbytes


def _address(x: Any) -> int:
    address: int = x.data_ptr() if x.device.is_host else 0
    return address


SMALL = {
    library.name: library
    for library in (
        Library(
            "dlbridge",
            ("dlbridge.Tensor",),
            make=lambda tensor: tensor,
            keeps_readonly=True,
            takes_negative_strides=True,
            takes_padding=True,
            keeps_types=True,
            host_types=ALL_HOST,
            exchanges=(
                *exchanges("dlbridge.Tensor", "dlbridge.api.moving:asarray"),
                *exchanges("dlbridge.Tensor", "dlbridge.api.moving:from_dlpack", "shared"),
                *exchanges("dlbridge.Tensor", "dlbridge.api.moving:to_device", "moved"),
                *exchanges("dlbridge.Tensor", f"{_TENSOR}.to_device", "moved"),
                *exchanges("numpy.ndarray", f"{_TENSOR}.numpy {_ARRAY_TENSOR}.numpy"),
                *exchanges("list", f"{_TENSOR}.tolist", "copied"),
            ),
            look=(_look, _address),
        ),
        # By legacy capsules; values of a graph are refused.
        Library(
            "tensorflow",
            ("tensorflow.Tensor", "tensorflow.EagerTensor"),
            refuse=_refuse_tensorflow,
            immutable=True,
            make="tensorflow:experimental.dlpack.from_dlpack",
            takes="capsule",
            compact_only=True,
            types=NUMPY_OWN | {"bfloat16"},
            device_types=frozenset({_CPU, _CUDA}),
            exchanges=(
                *exchanges("tensorflow.Tensor", "constant convert_to_tensor"),
                *exchanges("numpy.ndarray", f"{_EAGER}.numpy"),
            ),
            look=(_look_tensorflow, lambda x: address_of(_view_tensorflow(x))),
        ),
        Library(
            "paddle",
            ("paddle.Tensor",),
            refuse=_refuse_paddle,
            types=_PLAIN | _COMPLEX | {"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"},
            device_types=frozenset({_CPU, _CUDA}),
            exchanges=(
                *exchanges("paddle.Tensor", "to_tensor utils.dlpack.from_dlpack"),
                *exchanges("paddle.Tensor", "Tensor.cpu Tensor.cuda Tensor.to", "moved"),
                *exchanges("numpy.ndarray", "Tensor.numpy"),
                *exchanges("list", "Tensor.tolist", "copied"),
                *exchanges("number", "Tensor.item", "copied"),
            ),
        ),
        Library(
            "mlx",
            ("mlx.array",),
            make=_to_mlx,
            copies=True,
            keeps_readonly=True,
            types=(_PLAIN - {"float64"}) | {"float16", "bfloat16", "complex64"},
            device_types=frozenset({_CPU, _METAL}),
        ),
        # Not run: cupy needs a GPU. Its from_dlpack says that it ignores READ_ONLY.
        Library(
            "cupy",
            ("cupy.ndarray",),
            host_types=ALL_HOST,
            device_types=frozenset({_CUDA, _CUDA_HOST, _MANAGED, _ROCM}),
            exchanges=(
                *exchanges("cupy.ndarray", "asarray array from_dlpack"),
                *exchanges("numpy.ndarray", "asnumpy ndarray.get"),
                *exchanges("list", "ndarray.tolist", "copied"),
                *exchanges("number", "ndarray.item", "copied"),
            ),
        ),
        # Not run: its arrays need a GPU. On the CPU it works on numpy's.
        Library(
            "numba",
            ("numba.DeviceNDArray", "numba_cuda.DeviceNDArray"),
            make="numba.cuda:as_cuda_array",
            host_types=ALL_HOST,
            device_types=frozenset({_CUDA, _CUDA_HOST, _MANAGED}),
        ),
        Library(
            "warp",
            ("warp.array",),
            refuse=_refuse_classes(
                {"indexedarray": "is not one block of memory; pass x.contiguous()"}
            ),
            make=_to_warp,
            check=_check_warp,
            types=_PLAIN | {"float16", "bfloat16"},
            device_types=frozenset({_CPU, _CUDA, _CUDA_HOST}),
        ),
        Library(
            "pyopencl",
            ("pyopencl.Array",),
            backend="opencl",
            make=to_native,
            types=_ONE_LANE | _VECTORS,
            device_types=frozenset({DLDeviceType.kDLOpenCL}),
            exchanges=(
                Exchange("array.to_device", "pyopencl.Array", argument="ary"),
                *exchanges("numpy.ndarray", "array.Array.get"),
            ),
            look=(lambda x: (str(device_of(x)), x.dtype, x.shape, x.nbytes), lambda _x: 0),
        ),
        Library(
            "cuda.core",
            ("cuda.core.StridedMemoryView",),
            backend="cuda",
            make=_to_cuda_core,
            keeps_readonly=True,
            types=_ONE_LANE,
            host_types=ALL_HOST,
            device_types=frozenset({_CPU, _CUDA, _CUDA_HOST, _MANAGED}),
        ),
        Library(
            "dpnp",
            ("dpnp.dpnp_array", "dpnp.usm_ndarray"),
            make=_to_dpnp,
            takes_negative_strides=True,
            types=_PLAIN | _COMPLEX | {"float16"},
            device_types=frozenset({_ONEAPI}),
        ),
        # Its memory objects, which are bytes; the arrays of old versions speak DLPack.
        Library(
            "dpctl",
            ("dpctl._Memory", "dpctl.usm_ndarray"),
            backend="oneapi",
            make=_to_dpctl,
            compact_only=True,
            types=_PLAIN | _COMPLEX | {"float16"},
            device_types=frozenset({_ONEAPI}),
        ),
        by_numpy(
            "xarray",
            "xarray.DataArray",
            "xarray.Variable",
            expose=_expose_xarray,
            make="xarray:DataArray",
        ),
        by_numpy(
            "dask",
            "dask.Array",
            # Nothing is computed unless the user says so.
            refuse=_refuse_classes(
                {
                    "": "is computed when its values are needed, and may not fit into memory; pass "
                    "x.compute()"
                }
            ),
            make="dask.array:from_array",
            copies=True,
        ),
        Library(
            "onnxruntime",
            ("onnxruntime.OrtValue",),
            lends=True,
            make=_to_onnxruntime,
            compact_only=True,
            types=_PLAIN | {"float16", "bfloat16", *PACKED, *FLOAT8},
            device_types=frozenset({_CPU, _CUDA}),
        ),
        Library(
            "openvino",
            ("openvino.Tensor",),
            expose=_expose_openvino,
            make=_to_openvino,
            compact_only=True,
            types=_PLAIN | {"float16", *_OPENVINO_SMALL.values()},
            device_types=HOST_ONLY,
        ),
        by_numpy(
            "tinygrad",
            "tinygrad.Tensor",
            refuse=_refuse_classes(
                {
                    "": "exports no memory; pass x.numpy(), which tinygrad computes and copies to "
                    "the host (bfloat16 as float32)"
                }
            ),
            make=_to_tinygrad,
            copies=True,
            keeps_types=True,  # and calls them by C's names, where "float" has 32 bits
            types=_PLAIN | {"float16"},
        ),
        by_numpy(
            "PIL",
            "PIL.Image",
            make=_to_pillow,
            check=_check_image,
            copies=True,
            exchanges=exchanges("PIL.Image", "Image.fromarray"),
            look=(lambda x: ("cpu", x.mode, x.size, 0), lambda _x: 0),  # its array is a copy
        ),
        Library(
            "array_api_strict",
            ("array_api_strict.Array",),
            keeps_readonly=True,
            types=_PLAIN | _COMPLEX,
            device_types=HOST_ONLY,
        ),
        # Its arrays on a GPU were not run. Memory that is marked READ_ONLY it copies.
        Library(
            "max",
            ("max.Buffer",),
            make="max.driver:Buffer.from_dlpack",
            compact_only=True,
            types=_PLAIN
            | {"float16", "bfloat16", *FLOAT8}
            | {"float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"},
            device_types=HOST_ONLY,
        ),
        # Its arrays on a GPU were not run.
        Library(
            "nvidia.dali",
            ("nvidia.dali.TensorCPU", "nvidia.dali.TensorGPU"),
            refuse=_refuse_classes(
                {"TensorList": "is a list of tensors; pass x.as_tensor(), or its elements (x[0])"}
            ),
            make="nvidia.dali.backend:TensorCPU",
            takes="capsule",
            compact_only=True,
            device_types=HOST_ONLY,
        ),
        Library("sparse", refuse=_refuse_sparse),
        Library("scipy.sparse", refuse=_refuse_sparse),
        Library("pint", refuse=_refuse_pint),
    )
}
"""By the name that ``like=`` uses. mpi4py is not here: it has no arrays of its own."""
