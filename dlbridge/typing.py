"""Types for annotations: the arguments that the functions of dlbridge take.

Importing this imports no array library.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from mmap import mmap
from typing import Any, Protocol, TypeAlias, Union, runtime_checkable

from dlbridge.core.values.devices import Device, DLDeviceType
from dlbridge.core.values.dtypes import DType

__all__ = [
    "ArrayLike",
    "DTypeLike",
    "DeviceLike",
    "NestedNumbers",
    "ProgressLike",
    "StreamLike",
    "SupportsArrayInterface",
    "SupportsCUDAArrayInterface",
    "SupportsCUDAStream",
    "SupportsDLPack",
    "SupportsDLPackDevice",
]


@runtime_checkable
class SupportsDLPackDevice(Protocol):
    """An object that names a DLPack device (array API 2024.12, ``__dlpack_device__``)."""

    def __dlpack_device__(self) -> tuple[Any, int]:
        """Return ``(device_type, device_id)``."""


@runtime_checkable
class SupportsDLPack(SupportsDLPackDevice, Protocol):
    """A DLPack producer (array API 2024.12): numpy, torch, jax, cupy, tvm_ffi and other arrays."""

    # Producers have different keywords, so this accepts any. dlbridge calls old
    # producers without keywords.
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """Return a capsule."""


@runtime_checkable
class SupportsArrayInterface(Protocol):
    """An object with numpy's ``__array_interface__``, version 3."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The description of the memory."""


@runtime_checkable
class SupportsCUDAArrayInterface(Protocol):
    """An object with the CUDA Array Interface."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The description of the memory."""


@runtime_checkable
class SupportsCUDAStream(Protocol):
    """A stream of CUDA, by the protocol of cuda.core."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return ``(version, handle)``."""


class _TorchDevice(Protocol):
    """``torch.device``."""

    @property
    def type(self) -> str: ...
    @property
    def index(self) -> int | None: ...


class _JaxDevice(Protocol):
    """``jax.Device``."""

    @property
    def platform(self) -> str: ...
    @property
    def local_hardware_id(self) -> int | None: ...


DeviceLike: TypeAlias = Union[  # noqa: UP007 - `|` of a string and a class fails on Python 3.10
    str, Device, DLDeviceType, int, tuple[int, int], SupportsDLPackDevice, _TorchDevice, _JaxDevice
]
"""A device: ``"opencl:0"``, a `Device`, ``(type, index)``, a device of torch or jax."""

NestedNumbers: TypeAlias = Union[bool, int, float, complex, Sequence["NestedNumbers"]]  # noqa: UP007 - as above
"""A Python number, or nested sequences of them."""


class _ForeignDType(Protocol):
    """A dtype of numpy, torch or ml_dtypes."""

    @property
    def itemsize(self) -> int: ...


class _SupportsDLPackDataType(Protocol):
    """An object with TVM-FFI's protocol for dtype arguments."""

    def __dlpack_data_type__(self) -> tuple[int, int, int]: ...


# `type`: the scalar types of numpy, jax and ml_dtypes have no class in common.
DTypeLike: TypeAlias = Union[  # noqa: UP007 - as above
    str, DType, type, tuple[int, int, int], _ForeignDType, _SupportsDLPackDataType
]
"""A dtype: ``"float32"``, a `DType`, ``float``, ``numpy.float32``, ``torch.float32``."""


ArrayLike: TypeAlias = Union[
    SupportsDLPack,
    SupportsArrayInterface,
    SupportsCUDAArrayInterface,
    bytes,
    bytearray,
    memoryview,
    "array[Any]",
    mmap,
    NestedNumbers,
    object,
]
"""Anything that `dlbridge.asarray` takes.

The last, `object`, stands for the objects of a device's ecosystem (pyopencl
arrays, Vulkan buffers), which have no type in common. So a type checker accepts
any object, and `asarray` raises TypeError for those that it does not take.
"""

StreamLike: TypeAlias = Union[int, SupportsCUDAStream, object]  # noqa: UP007 - as above
"""A stream: an integer by the rules of the device, or the ecosystem's own object.

(torch.cuda.Stream, cupy.cuda.Stream, cuda.core streams, pyopencl queues: they
have no type in common.)
"""

ProgressLike: TypeAlias = Union[bool, Callable[[int, int], None], None]  # noqa: UP007 - as above
"""True for a progress bar, or a function that is called with ``(done, total)`` in bytes."""
