"""Tensor: some memory on one device, seen as an n-dimensional array."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.capsules import FLAG_SUBBYTE_PADDED, Image
from dlbridge.core.dlpack.structs import MAX_NDIM
from dlbridge.core.outgoing.producer import OPERATIONS, produce
from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import DType, check, from_numpy
from dlbridge.core.values.dtypes import dtype as as_dtype
from dlbridge.errors import ExchangeError

from .memory import (
    Memory,
    carrier,
    carrier_dtype,
    counts_elements,
    memory_of,
    native_dtypes,
)
from .metadata import Described

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = ["ArrayTensor", "Tensor", "address_of", "make_tensor", "wrap_array"]

_CPU = Device.of(1, 0)
_BASIC_INDEX = "int, slice, None and Ellipsis"


def _index_part(part: Any) -> Any:
    """*part* of an index as numpy may see it: anything else would make numpy read the carrier."""
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    try:
        if not isinstance(part, bool):
            index = operator.index(part)
            if not -(1 << 63) <= index < 1 << 63:
                raise IndexError(f"index {index} is out of bounds: no dimension is as long")
            return index
    except TypeError:
        pass
    raise TypeError(
        f"a Tensor is indexed by {_BASIC_INDEX}, not {type(part).__name__}; use the array "
        "library's own indexing on like='numpy' or like='torch'"
    )


class Tensor(Described):
    """An n-dimensional array in memory that some library or device owns.

    Made by `dlbridge.from_dlpack`, `asarray`, `empty`, `zeros` and `to_device`;
    never copies unless asked. Views share memory and keep it alive. Metadata
    never changes, so a tensor may be used from any thread.
    """

    __slots__ = ()

    def __init__(self, *_arguments: object, **_keywords: object) -> None:
        raise TypeError(
            f"a {type(self).__name__} is not made by calling its class: dlbridge.from_dlpack and "
            "asarray make one of what another library has, empty and zeros a new one"
        )

    # Views ---------------------------------------------------------------

    def __getitem__(self, index: Any) -> Tensor:
        """A view; *index* is made of int, slice, None and Ellipsis."""
        given = index if isinstance(index, tuple) else (index,)
        parts = tuple(map(_index_part, given))
        if Ellipsis not in parts:
            parts = (*parts, Ellipsis)  # so that numpy gives an array, never reads an element
        return self._view(self._array[parts])

    def reshape(self, *shape: int | tuple[int, ...]) -> Tensor:
        """A view of the same elements in another *shape*; one extent may be -1.

        ExchangeError where the strides do not allow it without a copy.
        """
        sizes: Any = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        sizes = tuple(map(operator.index, sizes))
        if any(size < -1 for size in sizes):
            raise ValueError(f"cannot reshape {self.shape} to {sizes}: only -1 is inferred")
        try:
            array = self._array.reshape(sizes, copy=False)
        except ValueError as exc:
            if self.is_contiguous() or (prod(sizes) != self.size and -1 not in sizes):
                raise ValueError(f"cannot reshape {self.shape} to {sizes}: {exc}") from exc
            raise ExchangeError(
                f"{self.shape} with strides {self.strides} cannot be reshaped to {sizes} "
                "as a view; make a compact copy first: to_device(t, t.device, copy=True)"
            ) from exc
        return self._view(array)

    def transpose(self, *axes: int) -> Tensor:
        """A view with the dimensions in the order *axes*, reversed if none are given."""
        return self._view(self._array.transpose(*axes))

    @property
    def mT(self) -> Tensor:
        """The transpose of the last two dimensions, of a stack of matrices."""
        if self.ndim < 2:
            raise ValueError(f"mT is for 2 dimensions and more, this tensor has {self.ndim}")
        return self.transpose(*range(self.ndim - 2), self.ndim - 1, self.ndim - 2)

    @property
    def T(self) -> Tensor:
        """The transpose of a matrix."""
        if self.ndim != 2:
            raise ValueError(f"T is for 2 dimensions, this tensor has {self.ndim}; use transpose()")
        return self.transpose()

    def view(self, dtype: Any) -> Tensor:
        """The same memory as elements of another *dtype* of equal size."""
        new = as_dtype(dtype)
        check(new.code, new.bits, new.lanes)
        old = self.dtype
        if new.itemsize != old.itemsize or new.nbytes(8) != old.nbytes(8):
            raise ExchangeError(
                f"view({new}) of {old} elements: {new.bits * new.lanes} bits are not "
                f"{old.bits * old.lanes}; a view keeps the element size"
            )
        return self._view(self._array.view(carrier_dtype(new)), new)

    def _view(self, array: Array, dtype: DType | None = None) -> Tensor:
        """The same memory through *array*, a view of its carrier."""
        moved = address_of(array) - address_of(self._array) if array.size else 0
        if counts_elements(self._dtype) and not self.is_padded:
            moved, rest = divmod(moved * self._dtype.bits * self._dtype.lanes, 8)
            if rest:
                raise ExchangeError(
                    f"a view of packed {self._dtype} must start at a whole byte, not {rest} bits "
                    "into one"
                )
        return _build(
            array, self._memory, dtype or self._dtype, self._byte_offset + moved, self._flags
        )

    # Out: numpy, Python, pickle -------------------------------------------

    def numpy(self) -> Array:
        """A numpy view of host memory: `DType.numpy` gives its type.

        ExchangeError on devices that the host cannot read, naming the copy.
        """
        self._require_host()
        array = self._array[...]
        if self._dtype.is_subbyte and not self.is_padded:
            raise ExchangeError(
                f"{self._dtype} elements are packed, numpy has no such type; "
                "dlbridge.unpack_bits(t.tobytes(), t.dtype, t.size) gives their raw codes"
            )
        wanted = self._dtype.numpy
        return array if wanted == array.dtype else array.view(wanted)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """For ``np.asarray(t)`` (numpy's ``__array__`` protocol)."""
        array = self.numpy()
        if dtype is not None and dtype != array.dtype:
            if copy is False:
                raise ValueError(f"{array.dtype} cannot become {dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __buffer__(self, flags: int) -> memoryview:
        """For ``memoryview(t)`` on Python 3.12 and later (PEP 688)."""
        return self.numpy().data

    def tolist(self) -> Any:
        """The elements as nested Python lists; copied from the device if need be."""
        host = self if self.device.is_host else OPERATIONS["to_host_compact"](self)
        return host.numpy().tolist()

    def tobytes(self) -> bytes:
        """The elements' bytes, row-major and packed; copied from the device if need be."""
        raw: bytes = OPERATIONS["tobytes"](self)
        return raw

    def item(self) -> Any:
        """The only element as a Python object."""
        if self.size != 1:
            raise ValueError(f"item() needs exactly one element, this tensor has {self.size}")
        return self.reshape(()).tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the elements (protocol 5: out-of-band on the CPU) and the device's name."""
        return OPERATIONS["reduce"](self, operator.index(protocol))

    def __bool__(self) -> bool:
        """The truth of the only element."""
        if self.size != 1:
            raise ValueError(f"a tensor of {self.size} elements is neither true nor false")
        return bool(self.item())

    def __contains__(self, value: object) -> bool:
        """Refused: comparing elements is an array library's job."""
        raise TypeError("a Tensor does not compare elements; use t.numpy() or like='torch'")

    def __iter__(self) -> Iterator[Tensor]:
        """The views along the first dimension."""
        return (self[index] for index in range(len(self)))

    # Out: DLPack ------------------------------------------------------------

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule for one consumer (array API 2024.12).

        *stream* is the consumer's; the device's backend knows its values.
        BufferError for what the standard lets a producer refuse.
        """
        return produce(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """``(device_type, device_id)`` as plain ints."""
        return self.device.dlpack

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA Array Interface, version 3; AttributeError off CUDA (`hasattr` is False)."""
        interface: dict[str, Any] = OPERATIONS["cuda_array_interface"](self)
        return interface

    def _image(self, extra_flags: int) -> Image:
        """What turns numpy's export of the carrier into this tensor's."""
        device = self.device
        data = self.data_ptr()
        offset = self.byte_offset if self.size else 0
        flags = (self._flags & FLAG_SUBBYTE_PADDED) | extra_flags
        return Image(data, device.dlpack, self.ndim, self._dtype, offset, flags)

    def _table_image(self, extra_flags: int) -> Image | None:
        """`_image`, or None where numpy's export is right as it is."""
        return self._image(extra_flags)

    # In other modules' hands --------------------------------------------------

    def to_device(self, device: Any, /, *, stream: Any = None) -> Tensor:
        """The tensor on *device* (array API 2024.12); see `dlbridge.to_device`."""
        moved: Tensor = OPERATIONS["to_device"](self, device, stream=stream)
        return moved

    def host_view(self) -> Any:
        """The memory as a CPU tensor without a copy: ``with t.host_view() as h``.

        Device work waits until the block ends. ExchangeError with the reason
        where the host cannot address the memory.
        """
        return OPERATIONS["host_view"](self)

    def to_native(self) -> Any:
        """The device ecosystem's own object over the same memory (a pyopencl array, ...)."""
        return OPERATIONS["to_native"](self)

    def _release_shared(self) -> None:
        """Drop the exchange table's struct, unless a consumer still has it."""
        if hasattr(self, "_shared") and not self._shared.is_lent():
            del self._shared

    def _require_host(self) -> None:
        if not self.device.is_host:
            raise ExchangeError(
                f"the tensor is on {self.device}, which the host does not read; "
                "dlbridge.to_device(t, 'cpu') copies it"
            )
        OPERATIONS["host_access"](self._memory)


class ArrayTensor(Tensor):
    """A CPU tensor that numpy describes fully, exported by numpy's own C method.

    ``__dlpack__`` is the carrier's bound method, in a slot: a consumer calls
    C and nothing else (`np.from_dlpack` 160 ns, against 300 through a Python
    method). Only `_array` and that slot are set, so making one is cheap too.
    """

    __slots__ = ("__dlpack__", "_producer")

    # The class is called where tensors are made: object.__new__ would cost 25 ns more.
    if not TYPE_CHECKING:
        __init__ = object.__init__

    _byte_offset = 0
    _flags = 0
    _producer: type

    @property
    def _dtype(self) -> DType:  # type: ignore[override]  # a slot in Tensor
        return native_dtypes()[self._array.dtype]

    @property
    def _memory(self) -> Memory:  # type: ignore[override]  # a slot in Tensor
        return _array_memory(self._array, getattr(self, "_producer", None))

    @property
    def device(self) -> Device:
        """The CPU."""
        return _CPU

    @property
    def origin(self) -> str:
        """Where the memory comes from, in words."""
        return _array_origin(self._array, getattr(self, "_producer", None))

    def data_ptr(self) -> int:
        """The address of the first element."""
        return address_of(self._array)

    def numpy(self) -> Array:
        """A numpy view."""
        return self._array[...]

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def _table_image(self, extra_flags: int) -> Image | None:
        return self._image(extra_flags) if extra_flags else None

    def _view(self, array: Array, dtype: DType | None = None) -> Tensor:
        if dtype is None:
            return wrap_array(array, getattr(self, "_producer", None))
        return _build(array, self._memory, dtype, 0, 0)


def wrap_array(array: Array, producer: type | None = None) -> Tensor:
    """The Tensor over a numpy *array*, which the caller gives away.

    *producer* is the type that the memory came from, where the array's base
    does not tell.

    ExchangeError for types that DLPack has not, naming the way out.
    """
    if not array.flags.forc:
        _check_strides(array)
    if array.dtype not in native_dtypes():
        return _wrap_foreign_dtype(array)
    # What torch aborts on, and what must have a NULL pointer, is not for numpy
    # to export; size-1 dimensions with odd strides are harmless (measured).
    if array.size and (array.flags.forc or min(array.strides) >= 0):
        tensor = ArrayTensor()
        tensor._array = array
        tensor.__dlpack__ = array.__dlpack__  # type: ignore[method-assign]  # a slot
        if producer is not None:
            tensor._producer = producer
        return tensor
    return _general(array, _array_memory(array, producer), from_numpy(array.dtype), 0, 0)


def _check_strides(array: Array) -> None:
    if array.size > 1 and any(step % array.itemsize for step in array.strides):
        raise ExchangeError(
            f"byte strides {array.strides} are no multiples of the item size {array.itemsize}, "
            "which DLPack counts in; make a compact copy: numpy.ascontiguousarray(x)"
        )


def _wrap_foreign_dtype(array: Array) -> Tensor:
    """The Tensor over an array of a type that numpy does not export (ml_dtypes')."""
    dtype = from_numpy(array.dtype)
    flags = FLAG_SUBBYTE_PADDED if dtype.is_subbyte else 0
    return _build(array.view(carrier_dtype(dtype)), _array_memory(array), dtype, 0, flags)


def make_tensor(
    memory: Memory,
    byte_offset: int,
    dtype: DType,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    *,
    readonly: bool = False,
    flags: int = 0,
) -> Tensor:
    """The Tensor at *byte_offset* of *memory*; *strides* in elements, None for compact."""
    if len(shape) > MAX_NDIM:
        raise ExchangeError(f"{len(shape)} dimensions; {MAX_NDIM} can be used (numpy's limit)")
    try:
        array = carrier(memory, byte_offset, dtype, shape, strides, readonly)
    except (ValueError, OverflowError) as exc:  # extents whose product overflows, beside a 0
        raise ExchangeError(f"shape {shape} of {dtype} is more than numpy can describe") from exc
    return _build(array, memory, dtype, byte_offset, flags)


def _build(array: Array, memory: Memory, dtype: DType, byte_offset: int, flags: int) -> Tensor:
    if not flags and memory.device is _CPU and native_dtypes().get(array.dtype) is dtype:
        return wrap_array(array)
    return _general(array, memory, dtype, byte_offset, flags)


def _general(array: Array, memory: Memory, dtype: DType, byte_offset: int, flags: int) -> Tensor:
    tensor = object.__new__(Tensor)
    tensor._array = array
    tensor._memory = memory
    tensor._dtype = dtype
    tensor._byte_offset = byte_offset
    tensor._flags = flags
    return tensor


def _array_memory(array: Array, producer: type | None = None) -> Memory:
    """The memory under *array*, from its first element on."""
    origin = _array_origin(array, producer)
    return Memory(_CPU, address_of(array), origin, array)


def _array_origin(array: Array, producer: type | None) -> str:
    known = memory_of(array)
    if known is not None:
        return known.origin
    kind = producer or type(array if array.base is None else array.base)
    return f"{kind.__module__}.{kind.__qualname__}"


def address_of(array: Array) -> int:
    """The address of the first element of *array*."""
    address: int = array.__array_interface__["data"][0]
    return address
