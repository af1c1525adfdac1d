"""Types for annotations: the arguments that the functions of dlbridge take.

Importing this imports no array library.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from mmap import mmap
from typing import (
    IO,
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Union,
    overload,
    runtime_checkable,
)

from dlbridge import Device, DLDeviceType, DType

if TYPE_CHECKING:
    # Where they are installed. The program imports no backend by name, and names none elsewhere.
    from dlbridge_cuda import CUDA, CUDAHost, CUDAManaged
    from dlbridge_fake import Fake
    from dlbridge_oneapi import OneAPI
    from dlbridge_opencl import OpenCL
    from dlbridge_rocm import ROCM, ROCMHost
    from dlbridge_vulkan import Vulkan, VulkanArray
    from dlbridge_webgpu import WebGPU, WebGPUArray

    from dlbridge.core.plugins.cpu import CPU
    from dlbridge.protocol import Backend

    VulkanTensor: TypeAlias = VulkanArray
    WebGPUTensor: TypeAlias = WebGPUArray

__all__ = [
    "AcceptedArrayFunction",
    "AcceptedFunction",
    "AcceptsDecorator",
    "ArrayClassModule",
    "ArrayLike",
    "ArrayModule",
    "DTypeLike",
    "DeviceLike",
    "FileLike",
    "FilesLike",
    "NestedLists",
    "NestedNumbers",
    "Number",
    "ProgressLike",
    "StreamLike",
    "SupportsArrayInterface",
    "SupportsCUDAArrayInterface",
    "SupportsCUDAStream",
    "SupportsDLPack",
    "SupportsDLPackDevice",
    "TensorClassModule",
]


@runtime_checkable
class SupportsDLPackDevice(Protocol):
    """An object that names a DLPack device (array API 2025.12, ``__dlpack_device__``)."""

    def __dlpack_device__(self) -> tuple[Any, int]:
        """Return ``(device_type, device_id)``."""


@runtime_checkable
class SupportsDLPack(SupportsDLPackDevice, Protocol):
    """A DLPack producer (array API 2025.12): numpy, torch, jax, cupy, tvm_ffi and other arrays."""

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


DeviceLike: TypeAlias = (
    str | Device | DLDeviceType | tuple[int, int] | SupportsDLPackDevice | _TorchDevice | _JaxDevice
)
"""A device, as ``"opencl:0"``, a `Device`, ``(type, index)``, a device of torch or jax."""

NestedNumbers: TypeAlias = bool | int | float | complex | Sequence["NestedNumbers"]
"""A Python number, or nested sequences of them."""

Number: TypeAlias = bool | int | float | complex
"""What `Tensor.item` returns; the dtype decides which."""

NestedLists: TypeAlias = Number | list["NestedLists"]
"""What `Tensor.tolist` returns, with one level of lists for each dimension. For type checkers it
returns anything, as numpy's, so that ``t.tolist()[0]`` can be written; annotate with this."""


class _ForeignDType(Protocol):
    """A dtype of numpy, torch or ml_dtypes."""

    @property
    def itemsize(self) -> int: ...


class _SupportsDLPackDataType(Protocol):
    """An object with TVM-FFI's protocol for dtype arguments."""

    def __dlpack_data_type__(self) -> tuple[int, int, int]: ...


# `type`: the scalar types of numpy, jax and ml_dtypes have no class in common.
DTypeLike: TypeAlias = (
    str | DType | type | tuple[int, int, int] | _ForeignDType | _SupportsDLPackDataType
)
"""A dtype, as ``"float32"``, a `DType`, ``float``, ``numpy.float32``, ``torch.float32``."""


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

StreamLike: TypeAlias = int | SupportsCUDAStream | object
"""A stream, as an integer by the rules of the device, or the ecosystem's own object.

(torch.cuda.Stream, cupy.cuda.Stream, cuda.core streams, pyopencl queues: they
have no type in common.)
"""

ProgressLike: TypeAlias = bool | Callable[[int, int], None] | None
"""True for a progress bar, or a function that is called with ``(done, total)`` in bytes."""

FileLike: TypeAlias = str | os.PathLike[str] | IO[bytes]
"""A file of tensors, as a path, or an open binary file such as ``io.BytesIO``."""

FilesLike: TypeAlias = FileLike | list[Any] | tuple[Any, ...]
"""A file of tensors, a folder or an index of such files, or a list of them."""


class MoveOptions(TypedDict, total=False):
    """The keywords of `Tensor.to_device` beside ``like``."""

    copy: bool | None
    stream: StreamLike | None


class FromDLPackOptions(MoveOptions, total=False):
    """The keywords of `dlbridge.from_dlpack` beside ``like``."""

    device: DeviceLike | None


class ToDeviceOptions(MoveOptions, total=False):
    """The keywords of `dlbridge.to_device` beside ``like``."""

    progress: ProgressLike


_P = ParamSpec("_P")
_Rest = ParamSpec("_Rest")
_Instance = TypeVar("_Instance")
_Result_co = TypeVar("_Result_co", covariant=True)
_Array = TypeVar("_Array", bound=SupportsDLPack)
_Found = TypeVar("_Found")
_Made_co = TypeVar("_Made_co", covariant=True)


class ArrayModule(Protocol[_Made_co]):
    """A module that makes arrays of DLPack producers, such as numpy, torch and cupy."""

    @property
    def from_dlpack(self) -> Callable[..., _Made_co]:
        """The function that makes an array."""


class ArrayClassModule(Protocol[_Made_co]):
    """A module with the class ``Array`` and a ``dlpack`` module, as jax has them."""

    @property
    def Array(self) -> type[_Made_co]:
        """The class of its arrays."""

    @property
    def dlpack(self) -> object:
        """The module with ``from_dlpack``."""


class TensorClassModule(Protocol[_Made_co]):
    """A module with the class ``Tensor``, as torch has it."""

    @property
    def Tensor(self) -> type[_Made_co]:
        """The class of its arrays."""


class AcceptedFunction(Protocol[_P, _Result_co]):
    """A function that `dlbridge.accepts` has decorated, as type checkers see it.

    They take a call as the function is annotated, and one whose first arguments, up to three and
    given by position, are arrays of any library. The others must be as they are annotated then,
    too. Annotate a parameter with `Any` whose arrays of other libraries come by keyword.
    """

    @property
    def __name__(self) -> str: ...
    @property
    def __wrapped__(self) -> Callable[_P, _Result_co]: ...

    @overload
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _Result_co: ...
    @overload
    def __call__(
        self: AcceptedFunction[Concatenate[Any, _Rest], _Found],
        x: SupportsDLPack,
        /,
        *args: _Rest.args,
        **kwargs: _Rest.kwargs,
    ) -> _Found: ...
    @overload
    def __call__(
        self: AcceptedFunction[Concatenate[Any, Any, _Rest], _Found],
        x: SupportsDLPack,
        y: SupportsDLPack,
        /,
        *args: _Rest.args,
        **kwargs: _Rest.kwargs,
    ) -> _Found: ...
    @overload
    def __call__(
        self: AcceptedFunction[Concatenate[Any, Any, Any, _Rest], _Found],
        x: SupportsDLPack,
        y: SupportsDLPack,
        z: SupportsDLPack,
        /,
        *args: _Rest.args,
        **kwargs: _Rest.kwargs,
    ) -> _Found: ...

    @overload
    def __get__(self, instance: None, owner: type, /) -> AcceptedFunction[_P, _Result_co]: ...
    @overload
    def __get__(
        self: AcceptedFunction[Concatenate[_Instance, _Rest], _Found],
        instance: _Instance,
        owner: type | None = None,
        /,
    ) -> AcceptedFunction[_Rest, _Found]: ...


class AcceptedArrayFunction(Protocol[_P, _Result_co]):
    """The same for a function that returns an array.

    If the first argument is an array of another library than the annotation names, the
    result is one of that library.
    """

    @property
    def __name__(self) -> str: ...
    @property
    def __wrapped__(self) -> Callable[_P, _Result_co]: ...

    @overload
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _Result_co: ...
    @overload
    def __call__(
        self: AcceptedArrayFunction[Concatenate[Any, _Rest], _Found],
        x: _Array,
        /,
        *args: _Rest.args,
        **kwargs: _Rest.kwargs,
    ) -> _Array: ...
    @overload
    def __call__(
        self: AcceptedArrayFunction[Concatenate[Any, Any, _Rest], _Found],
        x: _Array,
        y: SupportsDLPack,
        /,
        *args: _Rest.args,
        **kwargs: _Rest.kwargs,
    ) -> _Array: ...
    @overload
    def __call__(
        self: AcceptedArrayFunction[Concatenate[Any, Any, Any, _Rest], _Found],
        x: _Array,
        y: SupportsDLPack,
        z: SupportsDLPack,
        /,
        *args: _Rest.args,
        **kwargs: _Rest.kwargs,
    ) -> _Array: ...

    @overload
    def __get__(self, instance: None, owner: type, /) -> AcceptedArrayFunction[_P, _Result_co]: ...
    @overload
    def __get__(
        self: AcceptedArrayFunction[Concatenate[_Instance, _Rest], _Found],
        instance: _Instance,
        owner: type | None = None,
        /,
    ) -> AcceptedArrayFunction[_Rest, _Found]: ...


class AcceptsDecorator(Protocol):
    """What `dlbridge.accepts` returns: a decorator of functions."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # of an array: the other's result depends
        self, function: Callable[_P, _Array], /
    ) -> AcceptedArrayFunction[_P, _Array]: ...
    @overload
    def __call__(self, function: Callable[_P, _Found], /) -> AcceptedFunction[_P, _Found]: ...


class BackendFunction(Protocol):
    """`dlbridge.backend`, as type checkers see it: the class of each backend by its name."""

    @property
    def __name__(self) -> str: ...
    @overload
    def __call__(self, name: Literal["cpu"]) -> CPU: ...
    @overload
    def __call__(self, name: Literal["cuda"]) -> CUDA: ...
    @overload
    def __call__(self, name: Literal["cuda_host"]) -> CUDAHost: ...
    @overload
    def __call__(self, name: Literal["cuda_managed"]) -> CUDAManaged: ...
    @overload
    def __call__(self, name: Literal["ext_dev"]) -> Fake: ...
    @overload
    def __call__(self, name: Literal["oneapi"]) -> OneAPI: ...
    @overload
    def __call__(self, name: Literal["opencl"]) -> OpenCL: ...
    @overload
    def __call__(self, name: Literal["rocm"]) -> ROCM: ...
    @overload
    def __call__(self, name: Literal["rocm_host"]) -> ROCMHost: ...
    @overload
    def __call__(self, name: Literal["vulkan"]) -> Vulkan: ...
    @overload
    def __call__(self, name: Literal["webgpu"]) -> WebGPU: ...
    @overload
    def __call__(self, name: str) -> Backend: ...
