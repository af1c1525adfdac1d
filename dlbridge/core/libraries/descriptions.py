"""The descriptions of the libraries that dlbridge knows.

How each library treats a DLPack tensor was measured: ``tests/core/outgoing/test_like.py``
and ``tests/peers`` show it, and ``docs/compatibility.md`` has the versions.
"""

from __future__ import annotations

from dlbridge.core.values.devices import DLDeviceType

from . import conversions as out, exposures, hidden_state as hidden
from .library import Library

__all__ = ["KNOWN", "READONLY_TORCH"]

_CPU = DLDeviceType.kDLCPU
_CUDA = DLDeviceType.kDLCUDA
_CUDA_HOST = DLDeviceType.kDLCUDAHost
_MANAGED = DLDeviceType.kDLCUDAManaged
_ROCM = DLDeviceType.kDLROCM
_ONEAPI = DLDeviceType.kDLOneAPI
_METAL = DLDeviceType.kDLMetal

_HOST_ONLY = frozenset({_CPU})
_ALL_HOST = frozenset({_CPU, _CUDA_HOST, _MANAGED, DLDeviceType.kDLROCMHost})

KNOWN = {
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
            host_types=_ALL_HOST,
        ),
        Library(
            "numpy",
            ("numpy.ndarray",),
            refuse=hidden.refuse_masks,
            make=out.to_numpy,
            keeps_readonly=True,
            takes_negative_strides=True,
            takes_padding=True,
            keeps_types=True,
            device_types=_HOST_ONLY,
        ),
        # torch 2.13 aborts the process on negative strides.
        Library(
            "torch",
            ("torch.Tensor",),
            refuse=hidden.refuse_torch,
            keeps_types=True,
            device_types=frozenset(
                {_CPU, _CUDA, _CUDA_HOST, _ROCM, _ONEAPI, _METAL, DLDeviceType.kDLExtDev}
            ),
        ),
        # jax never writes into memory that it was given, donated or not.
        Library(
            "jax",
            ("jax.Array", "jaxlib.ArrayImpl", "jaxlib.Array"),
            refuse=hidden.refuse_jax,
            immutable=True,
            make=out.to_jax,
            check=out.refuse_narrowing,
            keeps_readonly=True,
            compact_only=True,
            any_order=True,
            alignment=64,
            device_types=frozenset({_CPU, _CUDA, _ROCM}),
        ),
        Library("tvm_ffi", ("tvm_ffi.Tensor",), keeps_types=True, host_types=_ALL_HOST),
        Library(
            "tensorflow",
            ("tensorflow.Tensor", "tensorflow.EagerTensor"),
            refuse=hidden.refuse_tensorflow,
            immutable=True,
            make=out.to_tensorflow,
            compact_only=True,
            device_types=frozenset({_CPU, _CUDA}),
        ),
        Library(
            "paddle",
            ("paddle.Tensor",),
            refuse=hidden.refuse_paddle,
            device_types=frozenset({_CPU, _CUDA}),
        ),
        Library(
            "mlx",
            ("mlx.array",),
            make=out.to_mlx,
            copies=True,
            keeps_readonly=True,
            device_types=frozenset({_CPU, _METAL}),
        ),
        # Not run: cupy needs a GPU. Its from_dlpack says that it ignores READ_ONLY.
        Library(
            "cupy",
            ("cupy.ndarray",),
            host_types=_ALL_HOST,
            device_types=frozenset({_CUDA, _CUDA_HOST, _MANAGED, _ROCM}),
        ),
        # Not run: its arrays need a GPU. On the CPU it works on numpy's.
        Library(
            "numba",
            ("numba.DeviceNDArray", "numba_cuda.DeviceNDArray"),
            make=out.to_numba,
            host_types=_ALL_HOST,
            device_types=frozenset({_CUDA, _CUDA_HOST, _MANAGED}),
        ),
        Library(
            "warp",
            ("warp.array",),
            refuse=hidden.refuse_warp,
            make=out.to_warp,
            check=out.refuse_no_dimensions,
            device_types=frozenset({_CPU, _CUDA, _CUDA_HOST}),
        ),
        Library(
            "pyopencl",
            ("pyopencl.Array",),
            backend="opencl",
            make=out.to_native,
            device_types=frozenset({DLDeviceType.kDLOpenCL}),
        ),
        Library(
            "cuda.core",
            ("cuda.core.StridedMemoryView",),
            backend="cuda",
            make=out.to_cuda_core,
            keeps_readonly=True,
            host_types=_ALL_HOST,
            device_types=frozenset({_CPU, _CUDA, _CUDA_HOST, _MANAGED}),
        ),
        Library(
            "dpnp",
            ("dpnp.dpnp_array", "dpnp.usm_ndarray"),
            make=out.to_usm,
            device_types=frozenset({_ONEAPI}),
        ),
        # Its memory objects, which are bytes; the arrays of old versions speak DLPack.
        Library(
            "dpctl",
            ("dpctl._Memory", "dpctl.usm_ndarray"),
            backend="oneapi",
            make=out.to_dpctl,
            compact_only=True,
            device_types=frozenset({_ONEAPI}),
        ),
        Library(
            "pyarrow",
            ("pyarrow.Array", "pyarrow.ChunkedArray"),
            refuse=hidden.refuse_pyarrow,
            expose=exposures.expose_pyarrow,
            make=out.to_pyarrow,
            check=out.refuse_types_of_arrow,
            immutable=True,
            keeps_readonly=True,
            compact_only=True,
            device_types=_HOST_ONLY,
        ),
        Library(
            "polars",
            ("polars.Series", "polars.DataFrame"),
            expose=exposures.expose_polars,
            make=out.to_polars,
            check=out.refuse_types_of_arrow,
            immutable=True,
            keeps_readonly=True,
            compact_only=True,
            device_types=_HOST_ONLY,
        ),
        Library(
            "pandas",
            ("pandas.Series", "pandas.DataFrame", "pandas.Index", "pandas.ExtensionArray"),
            expose=exposures.expose_pandas,
            make=out.to_pandas,
            check=out.refuse_not_one_dimension,
            keeps_readonly=True,
            takes_negative_strides=True,
            device_types=_HOST_ONLY,
        ),
        Library(
            "xarray",
            ("xarray.DataArray", "xarray.Variable"),
            expose=exposures.expose_xarray,
            make=out.to_xarray,
            keeps_readonly=True,
            takes_negative_strides=True,
            device_types=_HOST_ONLY,
        ),
        Library(
            "dask",
            ("dask.Array",),
            refuse=hidden.refuse_dask,
            make=out.to_dask,
            copies=True,
            keeps_readonly=True,
            takes_negative_strides=True,
            device_types=_HOST_ONLY,
        ),
        Library(
            "onnxruntime",
            ("onnxruntime.OrtValue",),
            lends=True,
            make=out.to_onnxruntime,
            compact_only=True,
            device_types=frozenset({_CPU, _CUDA}),
        ),
        Library(
            "openvino",
            ("openvino.Tensor",),
            expose=exposures.expose_openvino,
            make=out.to_openvino,
            compact_only=True,
            device_types=_HOST_ONLY,
        ),
        Library(
            "tinygrad",
            ("tinygrad.Tensor",),
            refuse=hidden.refuse_tinygrad,
            make=out.to_tinygrad,
            copies=True,
            keeps_types=True,  # and calls them by C's names, where "float" has 32 bits
            keeps_readonly=True,
            takes_negative_strides=True,
            device_types=_HOST_ONLY,
        ),
        Library(
            "PIL",
            ("PIL.Image",),
            make=out.to_pillow,
            check=out.refuse_other_than_images,
            copies=True,
            keeps_readonly=True,
            takes_negative_strides=True,
            device_types=_HOST_ONLY,
        ),
        Library(
            "array_api_strict",
            ("array_api_strict.Array",),
            keeps_readonly=True,
            device_types=_HOST_ONLY,
        ),
        # Its arrays on a GPU were not run.
        Library(
            "nvidia.dali",
            ("nvidia.dali.TensorCPU", "nvidia.dali.TensorGPU"),
            refuse=hidden.refuse_dali,
            make=out.to_dali,
            compact_only=True,
            device_types=_HOST_ONLY,
        ),
        Library("sparse", refuse=hidden.refuse_sparse),
        Library("scipy.sparse", refuse=hidden.refuse_sparse),
    )
}
"""By the name that ``like=`` uses. mpi4py is not here: it has no arrays of its own."""

READONLY_TORCH = KNOWN["torch"]._replace(
    arrays=("torch.utils.dlpack.ReadOnlyTensorWrapper",),
    make=out.to_readonly_torch,
    keeps_readonly=True,
)
"""torch's class for memory that must not be written (torch 2.15), which `like=` may name."""
