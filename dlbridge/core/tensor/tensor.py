"""Tensor: some memory on one device, seen as an n-dimensional array."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.structs import FLAG_SUBBYTE_PADDED, MAX_NDIM
from dlbridge.core.implementation_details.python_api import refuse_subinterpreters
from dlbridge.core.public import public
from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import DType, check, dtype as as_dtype, from_numpy
from dlbridge.errors import ExchangeError

from .carriers import (
    CarrierBase,
    address_of,
    carrier,
    carrier_dtype,
    counts_elements,
    native_dtypes,
)
from .indexing import basic_index
from .memory import Memory
from .metadata import TensorMetadata
from .ordering import host_access

if TYPE_CHECKING:
    import numpy as np

    from dlbridge.core.moves.host_views import HostView
    from dlbridge.typing import DeviceLike, DTypeLike, StreamLike

    from .operand import Operand

    Array = np.ndarray[Any, Any]

__all__ = ["ArrayTensor", "Tensor", "make_tensor", "wrap_array", "writable"]

refuse_subinterpreters()

_CPU = Device.of(1, 0)


class _ExchangeTable:
    """The capsule of our exchange table, as an attribute of `Tensor` (dlpack.h 1.3)."""

    def __get__(self, _tensor: Tensor | None, _cls: type[Tensor]) -> Any:
        from dlbridge.core.outgoing.own_table import table_capsule

        return table_capsule()


@public
class Tensor(TensorMetadata):
    """An n-dimensional array in memory that some library or device owns.

    Made by `dlbridge.from_dlpack`, `asarray`, `empty`, `zeros` and `to_device`,
    not by calling the class. It never copies unless asked. Views share memory
    and keep it alive. Metadata never changes, so a tensor may be used from any
    thread.

    Examples
    --------
    >>> t = bridge.from_dlpack(np.arange(6, dtype="float32").reshape(2, 3))
    >>> t
    dlbridge.Tensor(float32, shape=(2, 3), device=cpu:0, memory from numpy.ndarray)
    >>> t[:, 1].tolist()
    [1.0, 4.0]
    """

    __slots__ = ()

    # Under both names that dlpack.h has given it: `foreign_tables.NAMES`.
    __dlpack_c_exchange_api__ = _ExchangeTable()
    __c_dlpack_exchange_api__ = _ExchangeTable()

    def __init__(self, *_arguments: object, **_keywords: object) -> None:
        raise TypeError(
            f"a {type(self).__name__} is not made by calling its class: dlbridge.from_dlpack and "
            "asarray make one from another library's array, empty and zeros a new one"
        )

    # Views ---------------------------------------------------------------

    def __getitem__(self, index: Any) -> Tensor:
        """Return a view; *index* is made of int, slice, None and Ellipsis."""
        return self._view(self._array[basic_index(index)])

    def reshape(self, *shape: int | tuple[int, ...]) -> Tensor:
        """Return a view of the same elements in another shape.

        Parameters
        ----------
        *shape : int or tuple of int
            The new extents, in elements; one may be -1 and is inferred.

        Returns
        -------
        Tensor
            On the same memory.

        Raises
        ------
        ValueError
            Where the numbers of elements differ.
        ExchangeError
            Where the strides do not allow it without a copy.

        Examples
        --------
        >>> bridge.zeros((2, 3)).reshape(3, -1).shape
        (3, 2)
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
        """Return a view with the dimensions in another order.

        Parameters
        ----------
        *axes : int
            The old dimension at each new place; reversed if none are given.

        Returns
        -------
        Tensor
            On the same memory.

        Examples
        --------
        >>> bridge.zeros((2, 3, 4)).transpose(2, 0, 1).shape
        (4, 2, 3)
        """
        return self._view(self._array.transpose(*axes))

    @property
    def mT(self) -> Tensor:
        """The transpose of the last two dimensions, of a stack of matrices (array API 2024.12)."""
        if self.ndim < 2:
            raise ValueError(f"mT is for 2 dimensions and more, this tensor has {self.ndim}")
        return self.transpose(*range(self.ndim - 2), self.ndim - 1, self.ndim - 2)

    @property
    def T(self) -> Tensor:
        """The transpose of a matrix (array API 2024.12)."""
        if self.ndim != 2:
            raise ValueError(f"T is for 2 dimensions, this tensor has {self.ndim}; use transpose()")
        return self.transpose()

    def view(self, dtype: DTypeLike) -> Tensor:
        """Return the same memory as elements of another dtype of equal size.

        Parameters
        ----------
        dtype : DTypeLike
            The new type; `dlbridge.dtype` says what is taken.

        Returns
        -------
        Tensor
            On the same memory.

        Raises
        ------
        ExchangeError
            Where the sizes of the elements differ.

        Examples
        --------
        >>> bridge.from_dlpack(np.array([1.0], "float32")).view("int32").tolist()
        [1065353216]
        """
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
        """Return a numpy view of memory that the host can read.

        Returns
        -------
        numpy.ndarray
            Of the type `DType.numpy`, on the same memory.

        Raises
        ------
        ExchangeError
            On devices that the host cannot read, naming the copy; for packed
            sub-byte elements, which numpy does not have.

        Examples
        --------
        >>> bridge.zeros(3).numpy()
        array([0., 0., 0.], dtype=float32)
        """
        if not self.device.is_host:
            raise ExchangeError(
                f"the tensor is on {self.device}, which the host does not read; "
                "dlbridge.to_device(t, 'cpu') copies it"
            )
        host_access(self._memory)
        array = self._array[...]
        if self._dtype.is_subbyte and not self.is_padded:
            raise ExchangeError(
                f"{self._dtype} elements are packed, numpy has no such type; "
                "dlbridge.unpack_bits(t.tobytes(), t.dtype, t.size) gives their raw codes"
            )
        wanted = self._dtype.numpy
        return array if wanted == array.dtype else array.view(wanted)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the elements for ``np.asarray(t)`` (numpy's ``__array__`` protocol)."""
        array = self.numpy()
        if dtype is not None and dtype != array.dtype:
            if copy is False:
                raise ValueError(f"{array.dtype} cannot become {dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __buffer__(self, flags: int) -> memoryview:
        """Return the memory for ``memoryview(t)`` on Python 3.12 and later (PEP 688)."""
        return self.numpy().data

    def tolist(self) -> Any:  # nested lists of Python scalars, or a scalar: the shape decides
        """Return the elements as nested Python lists; copied from the device if need be.

        Returns
        -------
        list or scalar
            One level of lists for each dimension.

        Examples
        --------
        >>> bridge.asarray([[1, 2], [3, 4]]).tolist()
        [[1, 2], [3, 4]]
        """
        if self.device.is_host:
            return self.numpy().tolist()
        from dlbridge.core.moves.transfer import to_compact_host

        return to_compact_host(self).numpy().tolist()

    def tobytes(self) -> bytes:
        r"""Return the bytes of the elements, row-major and packed; they may be on any device.

        Returns
        -------
        bytes
            ``t.dtype.nbytes(t.size)`` bytes, or one byte per element if
            `Tensor.is_padded`.

        Examples
        --------
        >>> bridge.asarray([1, 2], dtype="uint8").tobytes()
        b'\x01\x02'
        """
        from dlbridge.core.moves.pickling import tobytes

        return tobytes(self)

    def item(self) -> Any:  # any Python scalar: the dtype decides
        """Return the only element as a Python object.

        Returns
        -------
        scalar
            As `tolist` gives it.

        Raises
        ------
        ValueError
            If the tensor does not have exactly one element.

        Examples
        --------
        >>> bridge.asarray([1.5, 2.5])[1].item()
        2.5
        """
        if self.size != 1:
            raise ValueError(f"item() needs exactly one element, this tensor has {self.size}")
        return self.reshape(()).tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the elements (protocol 5: out-of-band on the CPU) and the name of the device."""
        from dlbridge.core.moves.pickling import reduce

        return reduce(self, operator.index(protocol))

    @staticmethod
    def _unpickle(raw: Any, dtype: str, shape: tuple[int, ...], device: str, flags: int) -> Tensor:
        from dlbridge.core.moves.pickling import unpickle

        return unpickle(raw, dtype, shape, device, flags)

    def __bool__(self) -> bool:
        """Return the truth of the only element."""
        if self.size != 1:
            raise ValueError(f"a tensor of {self.size} elements is neither true nor false")
        return bool(self.item())

    def __contains__(self, value: object) -> bool:
        """Raise TypeError: array libraries compare elements, dlbridge does not."""
        raise TypeError("a Tensor does not compare elements; use t.numpy() or like='torch'")

    def __iter__(self) -> Iterator[Tensor]:
        """Iterate over the views along the first dimension."""
        return (self[index] for index in range(len(self)))

    # Out: DLPack ------------------------------------------------------------

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:  # a PyCapsule, a type without a name before Python 3.13
        """Return a capsule for one consumer (array API 2024.12).

        Parameters
        ----------
        stream : int or None
            The consumer's stream, by the rules of the device (its backend
            knows them); -1: do not order.
        max_version : tuple of two ints or None
            The newest DLPack version that the consumer takes.
        dl_device : tuple of two ints or None
            ``(device_type, device_id)`` of the capsule: this device's or the CPU's.
        copy : bool or None
            True for a copy, False for none, None for one where needed.

        Raises
        ------
        BufferError
            For what the standard lets a producer refuse.
        """
        from dlbridge.core.outgoing.producer import produce

        return produce(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return ``(device_type, device_id)`` as plain ints (array API 2024.12)."""
        return self.device.dlpack

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA Array Interface, version 3; AttributeError off CUDA (`hasattr` is False)."""
        from dlbridge.core.outgoing.cuda_array_interface import describe

        return describe(self)

    # Out: other devices, native objects ------------------------------------------

    def to_device(self, device: DeviceLike, /, *, stream: StreamLike | None = None) -> Tensor:
        """Return the tensor on *device* (array API 2024.12); see `dlbridge.to_device`.

        Parameters
        ----------
        device : DeviceLike
            Where to; `dlbridge.device` says what is taken.
        stream : StreamLike, optional
            The stream of *device* that a copy is queued on.

        Returns
        -------
        Tensor
            This tensor if it is there already; else on shared memory where
            that is possible, or a copy.

        Examples
        --------
        >>> t = bridge.zeros(3)
        >>> t.to_device("cpu") is t
        True
        """
        from dlbridge.core.api import to_device

        return to_device(self, device, stream=stream)

    def operand(self) -> Operand:
        """Return what a kernel needs to work on the memory, and put the kernel's work in order.

        Work that is queued on `Operand.stream` comes after the earlier work on
        this memory, and later work of dlbridge on it comes after that.

        Returns
        -------
        Operand
            It keeps the memory alive: hold it until your work has been queued.

        Examples
        --------
        >>> o = bridge.zeros((2, 3)).operand()
        >>> o.device, o.shape, o.nbytes, o.readonly
        (dlbridge.device('cpu:0'), (2, 3), 24, False)
        """
        from .operand import operand_of

        operand = operand_of(self)
        if operand.size:
            operand.access()
        return operand

    def host_view(self) -> HostView:
        """Return the memory as a CPU tensor without a copy: ``with t.host_view() as h``.

        Returns
        -------
        HostView
            A context manager that gives the CPU tensor, and a DLPack producer.

        Raises
        ------
        ExchangeError
            With the reason, where the host cannot address the memory.

        Examples
        --------
        >>> t = bridge.zeros(3)
        >>> with t.host_view() as h:
        ...     h.numpy()[:] = 7
        >>> t.tolist()
        [7.0, 7.0, 7.0]
        """
        from dlbridge.core.moves.host_views import host_view

        return host_view(self)

    def to_native(self) -> Any:  # each backend's own class
        """Return the device ecosystem's own object over the same memory.

        Returns
        -------
        object
            A pyopencl array on OpenCL, for example; a numpy array on the CPU.

        Raises
        ------
        ExchangeError
            Where the device's backend has no such objects.

        Examples
        --------
        >>> bridge.zeros(3).to_native()
        array([0., 0., 0.], dtype=float32)
        """
        from dlbridge.core.outgoing.native import to_native

        return to_native(self)

    def _forget_memory(self) -> None:
        """Drop the memory, so that every later use finds none: the tensor has expired."""
        del self._array, self._memory

    def _release_shared(self) -> None:
        """Drop what the exchange table and libtvm_ffi share, unless a consumer still has it."""
        for name in ("_shared", "_native"):
            if hasattr(self, name) and not getattr(self, name).is_lent():
                delattr(self, name)


class ArrayTensor(Tensor):
    """A CPU tensor that numpy describes fully, exported by numpy's own C method.

    ``__dlpack__`` of the instance is the carrier's bound method, which hides
    the method of the class: a consumer calls C and nothing else
    (`np.from_dlpack` 150 ns, 300 through a Python method). The instances have a
    ``__dict__`` for it: a slot of that name would hide the method of the class
    from consumers that look it up on the type (MLX). Only `_array` and
    ``__dlpack__`` are set, so making a tensor is cheap too.
    """

    # The class is called where tensors are made: object.__new__ would cost 25 ns more.
    if not TYPE_CHECKING:
        __init__ = object.__init__

    _byte_offset = 0
    _flags = 0
    _producer: type | None = None

    @property
    def _dtype(self) -> DType:  # type: ignore[override]  # a slot in Tensor
        return native_dtypes()[self._array.dtype]

    @property
    def _memory(self) -> Memory:  # type: ignore[override]  # a slot in Tensor
        return _array_memory(self._array, self._producer)

    @property
    def device(self) -> Device:
        """The CPU."""
        return _CPU

    @property
    def origin(self) -> str:
        """The source of the memory, for people."""
        return _array_origin(self._array, self._producer)

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return address_of(self._array)

    def numpy(self) -> Array:
        """Return a numpy view."""
        return self._array[...]

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def _forget_memory(self) -> None:
        del self._array, self.__dlpack__

    def _view(self, array: Array, dtype: DType | None = None) -> Tensor:
        if dtype is None:
            return wrap_array(array, self._producer)
        return _build(array, self._memory, dtype, 0, 0)


Tensor._unpickle.__module__ = "dlbridge"  # where pickle finds the class


def wrap_array(array: Array, producer: type | None = None) -> Tensor:
    """The Tensor over a numpy *array*, which the caller must not use any more.

    *producer* is the type that the memory came from, where the base of the array
    does not show it. ExchangeError for types that DLPack does not have, with the
    way out.
    """
    if not array.flags.forc:
        _check_strides(array)
    if array.dtype not in native_dtypes():
        return _wrap_foreign_dtype(array)
    # numpy does not export negative strides, on which torch aborts, nor empty
    # tensors, which must have a NULL pointer. Size-1 dimensions may have any
    # strides (measured).
    if array.size and (array.flags.forc or min(array.strides) >= 0):
        tensor = ArrayTensor()
        tensor._array = array
        tensor.__dlpack__ = array.__dlpack__  # type: ignore[method-assign]  # as the class says
        if producer is not None:
            tensor._producer = producer
        return tensor
    return _general(array, _array_memory(array, producer), from_numpy(array.dtype), 0, 0)


def _check_strides(array: Array) -> None:
    if array.size > 1 and any(step % array.itemsize for step in array.strides):
        raise ExchangeError(
            f"byte strides {array.strides} are not multiples of the item size {array.itemsize}, "
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
    if memory.device is not _CPU:  # as `_general`, without the call
        tensor = object.__new__(Tensor)
        tensor._array = array
        tensor._memory = memory
        tensor._dtype = dtype
        tensor._byte_offset = byte_offset
        tensor._flags = flags
        return tensor
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


def writable(tensor: Tensor) -> Tensor:
    """The same memory without the mark READ_ONLY, for a library that never writes."""
    return make_tensor(
        tensor._memory, tensor._byte_offset, tensor.dtype, tensor.shape, tensor.strides
    )


def _array_memory(array: Array, producer: type | None = None) -> Memory:
    """The memory under *array*, from its first element on."""
    origin = _array_origin(array, producer)
    return Memory(_CPU, address_of(array), origin, array)


def _array_origin(array: Array, producer: type | None) -> str:
    base: object = array
    while (base := getattr(base, "base", None)) is not None:
        if isinstance(base, CarrierBase):
            return base.memory.origin
    kind = producer or type(array if array.base is None else array.base)
    return f"{kind.__module__}.{kind.__qualname__}"
