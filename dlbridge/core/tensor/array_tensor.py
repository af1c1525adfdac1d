"""Tensors are made here, over numpy arrays and over memory of any device; and they expire here."""

from __future__ import annotations

from functools import partial
from math import lcm
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

from dlbridge import _methods as methods
from dlbridge.core.dlpack.exports import export_array
from dlbridge.core.dlpack.foreign_tables import TABLE_NAMES
from dlbridge.core.dlpack.structs import FLAG_IS_COPIED, FLAG_SUBBYTE_PADDED, MAX_NDIM
from dlbridge.core.implementation_details.python_api import address_of
from dlbridge.core.public import for_guests
from dlbridge.core.traces import is_recording
from dlbridge.core.values.devices import CPU
from dlbridge.core.values.dtypes import NUMPY_OWN, DType, alignment_of, from_numpy
from dlbridge.core.values.layout import reach, why_impossible
from dlbridge.core.values.text import WithAbsentNames, with_article
from dlbridge.errors import ExchangeError

from .memory import (
    NATIVE_DTYPES,
    CarrierBase,
    Memory,
    carrier,
    carrier_dtype,
    counts_elements,
    native_dtypes,
    with_usual_strides,
)
from .metadata import carrier_of
from .tensor import Tensor, refuse_call

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    Array = np.ndarray[Any, Any]


class _Sealed(WithAbsentNames):
    """The class of the classes that are not called: ``type(t)()`` would have no memory."""

    def __call__(self, *_arguments: object, **_keywords: object) -> NoReturn:
        refuse_call(self)


class NumpyTensor(Tensor, metaclass=_Sealed):
    """A CPU tensor whose memory a numpy array keeps; it is never empty.

    The array is the carrier, and `_dtype` is the type of the elements, which numpy
    may not have. Nothing else is set, so making one is cheap: what the array
    knows is read from it.
    """

    __slots__ = ("_producer", "expires")

    # `new_array_tensor` runs it: object.__new__ would cost 25 ns more.
    if not TYPE_CHECKING:
        __init__ = object.__init__

    device = CPU  # no property as in Tensor, which would be a call
    _array: Array
    _byte_offset = 0
    _flags = 0
    _producer: type
    """The type that the memory came from, if the base of the array does not show it."""
    expires: bool
    """Whether it is the tensor of a host view's block: it does not keep the memory after that."""

    @property
    def _memory(self) -> Memory:  # type: ignore[override]  # a slot in Tensor
        return _array_memory(self._array, _producer_of(self))

    @property
    def origin(self) -> str:
        """The source of the memory, for people."""
        return _array_origin(self._array, _producer_of(self))

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return address_of(self._array)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    __tensor_device__ = __dlpack_device__

    def _forget_memory(self) -> None:
        del self._array

    def _view(self, array: Array, dtype: DType | None = None) -> Tensor:
        return label_array(array, dtype or self._dtype, 0, _producer_of(self))


def _producer_of(tensor: NumpyTensor) -> type | None:
    return getattr(tensor, "_producer", None)  # a slot that is empty, mostly


class MethodProperty(property):
    """A property whose value is a bound method, and that the class has as a function, too.

    Some consumers look methods up on the type, and take only what can be called
    there (MLX). With a getter of C the lookup in an instance runs no Python.
    """

    # `dataclass(slots=True)` of CPython 3.14 looks for the cell of `__class__` in the function
    # that is here; one of C has none.
    fget = None

    def __init__(self, getter: Callable[[Any], Any]) -> None:
        super().__init__(getter)
        self._getter = getter

    def __call__(self, tensor: Tensor, /, **keywords: Any) -> Any:
        """Return what the method of *tensor* returns, for who has it from the class."""
        return self._getter(tensor)(**keywords)


class ArrayTensor(NumpyTensor):
    """A CPU tensor that numpy describes fully, exported by numpy's own C method.

    ``__dlpack__`` is the carrier's bound method: a consumer calls C and nothing
    else (`np.from_dlpack` 165 ns, 600 through a Python method). Only `_array` and
    the slot for that method are set.
    """

    __slots__ = ("__tensor_export__",)

    __tensor_export__: Callable[..., Any]
    __dlpack__: Any = MethodProperty(attrgetter("__tensor_export__"))

    @property
    def _dtype(self) -> DType:  # type: ignore[override]  # a slot in Tensor
        return NATIVE_DTYPES[self._array.dtype]

    def numpy(self, copy: bool | None = None, force: bool = False) -> Array:
        """Return a numpy view, or a copy if *copy* is true."""
        if copy:
            array = self._array
            return methods.array_copy(self, array) if is_recording() else array.copy()
        return self._array[...]

    def _forget_memory(self) -> None:
        del self._array, self.__tensor_export__

    def _view(self, array: Array, dtype: DType | None = None) -> Tensor:
        if dtype is None:
            return wrap_array(array, _producer_of(self))
        return label_array(array, dtype, 0, _producer_of(self))


for _cls in (NumpyTensor, ArrayTensor):  # for users they are one class: `type(t)`, and in errors
    _cls.__module__, _cls.__name__, _cls.__qualname__ = "dlbridge", "Tensor", "Tensor"


# As a call of the class that is not sealed. (Sealed, isinstance costs 50 ns where types differ.)
_call: Any = type.__call__
new_array_tensor: Callable[[], ArrayTensor] = _call.__get__(ArrayTensor)
_new_numpy_tensor: Callable[[], NumpyTensor] = _call.__get__(NumpyTensor)


# Over numpy arrays ------------------------------------------------------------


@for_guests
def wrap_array(array: Array, producer: type | None = None) -> Tensor:
    """Return a tensor on the memory of a numpy array, which the caller must not use any more.

    The array itself is kept, so that a later change of its shape, for example, would be one of the
    tensor. Pass ``array[...]`` if anybody else has it.

    Parameters
    ----------
    array : numpy.ndarray
        A new array or view, not of a subclass, of the host's memory.
    producer : type, optional
        The class that the memory came from, where the base of the array does not show it.

    Returns
    -------
    Tensor
        On the CPU; `Tensor.readonly` if the array is.

    Raises
    ------
    ExchangeError
        For types that DLPack does not have, with the way out. It is also a BufferError.

    Examples
    --------
    >>> from dlbridge.extending import wrap_array
    >>> wrap_array(np.arange(6).reshape(2, 3)[:, ::-1]).tolist()
    [[2, 1, 0], [5, 4, 3]]
    """
    flags = array.flags
    if not flags.forc:
        _check_strides(array)
    array = with_usual_strides(array) if 1 in array.shape else array
    if array.dtype not in (NATIVE_DTYPES or native_dtypes()):
        # A type that numpy does not export (ml_dtypes').
        dtype = from_numpy(array.dtype)
        marks = FLAG_SUBBYTE_PADDED if dtype.is_subbyte else 0
        return label_array(array.view(carrier_dtype(dtype)), dtype, marks, producer)
    # numpy does not export negative strides, on which torch 2.13 aborts, nor empty
    # tensors, which must have a NULL pointer.
    if array.size and (flags.forc or min(array.strides) >= 0):
        return wrap_plain(array, producer, readonly=not flags.writeable)
    return _over_array(array, NATIVE_DTYPES[array.dtype], 0, producer)


@for_guests
def import_array(array: Array) -> Tensor:
    """Return a tensor on the memory of a numpy array, which stays the caller's.

    Parameters
    ----------
    array : numpy.ndarray
        Any array that is not of a subclass. Its metadata may change later.

    Returns
    -------
    Tensor
        On the CPU; `Tensor.readonly` if the array is.

    Raises
    ------
    ExchangeError
        For types that DLPack does not have, with the way out. It is also a BufferError.

    Examples
    --------
    >>> from dlbridge.extending import import_array
    >>> import_array(np.arange(3)).tolist()
    [0, 1, 2]
    """
    array = array[...]
    flags = array.flags
    # Most arrays are `carray`. Not `farray`: numpy sets that for strided arrays, too.
    plain = flags.carray or (flags.forc and flags.behaved)
    if plain and array.dtype in NATIVE_DTYPES and array.size:
        tensor = new_array_tensor()  # as `wrap_plain`, without a call
        tensor._array = array
        tensor.__tensor_export__ = array.__dlpack__
        return tensor
    return wrap_array(array)


def wrap_plain(array: Any, producer: type | None = None, readonly: bool = False) -> ArrayTensor:
    """As `wrap_array`, of an *array* that needs none of its checks."""
    tensor = new_array_tensor()
    tensor._array = array
    # Ours has a message for legacy consumers of read-only memory.
    tensor.__tensor_export__ = partial(export_array, array) if readonly else array.__dlpack__
    if producer is not None:
        tensor._producer = producer
    return tensor


def _check_strides(array: Array) -> None:
    if array.size > 1 and any(step % array.itemsize for step in array.strides):
        raise ExchangeError(
            f"byte strides {array.strides} are not multiples of the item size {array.itemsize}, "
            "which DLPack counts in; make a compact copy: numpy.ascontiguousarray(x)"
        )


@for_guests
def check_array(array: Array, origin: str) -> None:
    """Raise if no memory has the elements of an array as somebody has described them.

    numpy does not look at that.

    Parameters
    ----------
    array : numpy.ndarray
        It was made of what an object says of its memory.
    origin : str
        Who has described it, for the message.

    Raises
    ------
    ExchangeError
        For NULL, and for elements that span more than an address space. It is also a BufferError.

    Examples
    --------
    >>> from dlbridge.extending import check_array
    >>> check_array(np.zeros(3), "an example")
    """
    if not array.size:
        return
    if array.flags.forc:
        low, high = 0, array.nbytes
    else:
        low, high = reach(array.shape, array.strides)
        high += array.itemsize - 1
    address = address_of(array)
    why = why_impossible(address, 0, low, high) if address else "elements whose data is NULL"
    if why:
        raise ExchangeError(
            f"{origin} has shape {array.shape} and byte strides {array.strides}: {why}"
        )


def label_array(array: Array, dtype: DType, flags: int, producer: type | None = None) -> Tensor:
    """The Tensor over *array*, a carrier whose elements are of *dtype*."""
    if not flags and native_dtypes().get(array.dtype) is dtype:
        return wrap_array(array, producer)
    return _over_array(array, dtype, flags, producer)


def _over_array(array: Array, dtype: DType, flags: int, producer: type | None) -> Tensor:
    if not array.size or flags or counts_elements(dtype):
        return _general(array, _array_memory(array, producer), dtype, 0, flags)
    tensor = label_plain(array, dtype)
    if producer is not None:
        tensor._producer = producer
    return tensor


def label_plain(array: Any, dtype: DType) -> NumpyTensor:
    """As `label_array`, of an *array* that is not empty, and whose items are the elements."""
    tensor = _new_numpy_tensor()
    tensor._array = array
    tensor._dtype = dtype
    return tensor


def _array_memory(array: Array, producer: type | None = None) -> Memory:
    """The memory under *array*, from its first element on."""
    return Memory(CPU, address_of(array), _array_origin(array, producer), array)


def _array_origin(array: Array, producer: type | None) -> str:
    base: object = array
    while (base := getattr(last := base, "base", None)) is not None:
        if isinstance(base, CarrierBase):
            return base.memory.origin
    kind = producer or type(last)
    return f"{kind.__module__}.{kind.__qualname__}"


# Over memory ------------------------------------------------------------------


@for_guests
def tensor_on(
    memory: Memory,
    dtype: DType,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    *,
    byte_offset: int = 0,
    readonly: bool = False,
    padded: bool = False,
    copied: bool = False,
) -> Tensor:
    """Return a tensor on some memory, which it keeps alive.

    Parameters
    ----------
    memory : Memory
        Where the elements are.
    dtype : DType
        The type of an element.
    shape : tuple of int
        The extents, in elements; 0 or more each.
    strides : tuple of int, optional
        The distances between neighbours, in elements. None: row-major, without gaps.
    byte_offset : int
        The bytes from the start of *memory* to the first element.
    readonly : bool
        Whether nobody may write to it; *memory* does not say so.
    padded : bool
        Whether elements below a byte take a byte each.
    copied : bool
        Whether it is known to be a copy, `Tensor.is_copied`.

    Returns
    -------
    Tensor
        On the device of *memory*. Nothing is copied, and nothing is read.

    Raises
    ------
    ExchangeError
        If no tensor has such extents or strides, or *memory* is NULL and has elements. It is also a
        BufferError.

    Notes
    -----
    Whether the elements lie inside the memory is for the caller to check: a `Memory` does not
    know its length.

    Examples
    --------
    >>> from dlbridge.extending import Memory, tensor_on
    >>> pixels = np.arange(6, dtype="uint8")
    >>> memory = Memory(bridge.device("cpu"), pixels.ctypes.data, "an example", pixels)
    >>> tensor_on(memory, bridge.dtype("uint8"), (2, 2), (3, 1), byte_offset=1).tolist()
    [[1, 2], [4, 5]]
    """
    try:
        array = carrier(memory, byte_offset, dtype, shape, strides, readonly)
    except (ValueError, OverflowError) as exc:
        if len(shape) > MAX_NDIM:
            raise ExchangeError(
                f"{len(shape)} dimensions; {MAX_NDIM} can be used (numpy's limit)"
            ) from None
        # Extents whose product overflows, beside a 0.
        raise ExchangeError(
            f"shape {shape} of {dtype} is more than numpy can describe, also without elements: "
            "give the array smaller extents first, such as x.reshape(0)"
        ) from exc
    on_cpu = memory.device is CPU
    if (
        on_cpu
        and not padded
        and not copied
        and dtype.name in NUMPY_OWN  # `native_dtypes`, in a third of the time
        and array.size
        and (not strides or min(strides) >= 0)
    ):
        array = with_usual_strides(array) if strides else array
        tensor = new_array_tensor()  # as `wrap_plain`, without a call
        tensor._array = array
        tensor.__tensor_export__ = partial(export_array, array) if readonly else array.__dlpack__
        return tensor
    flags = (FLAG_SUBBYTE_PADDED if padded else 0) | (FLAG_IS_COPIED if copied else 0)
    if on_cpu:
        return build(array, memory, dtype, byte_offset, flags)
    there = object.__new__(Tensor)  # as `_general`, without a call
    there._array, there._memory, there._dtype = array, memory, dtype
    there._byte_offset, there._flags = byte_offset, flags
    return there


def build(array: Array, memory: Memory, dtype: DType, byte_offset: int, flags: int) -> Tensor:
    """The Tensor over *memory* with the carrier *array*, its first element at *byte_offset*."""
    if memory.device is CPU and not flags and NATIVE_DTYPES.get(array.dtype) is dtype:
        return wrap_array(array)
    return _general(array, memory, dtype, byte_offset, flags)


def new_on_device(memory: Memory, dtype: DType, shape: tuple[int, ...], flags: int) -> Tensor:
    """As `tensor_on`, compact on memory of a device; a tensor has had that *shape* before."""
    tensor = object.__new__(Tensor)  # as `_general`, without a call
    tensor._array = carrier(memory, 0, dtype, shape, None, False)
    tensor._memory, tensor._dtype = memory, dtype
    tensor._byte_offset, tensor._flags = 0, flags
    return tensor


def _general(array: Array, memory: Memory, dtype: DType, byte_offset: int, flags: int) -> Tensor:
    tensor = object.__new__(Tensor)
    tensor._array, tensor._memory, tensor._dtype = array, memory, dtype
    tensor._byte_offset, tensor._flags = byte_offset, flags
    return tensor


def writable(tensor: Tensor) -> Tensor:
    """The same memory without the mark READ_ONLY, for a library that never writes."""
    offset = tensor._byte_offset
    return tensor_on(tensor._memory, tensor.dtype, tensor.shape, tensor.strides, byte_offset=offset)


# Expired: using a tensor after its loan has ended raises ExchangeError --------------


def expirer(what: str, reason: str) -> Callable[[Tensor], None]:
    """A function that expires a tensor: the memory can no longer be used through it.

    The tensor was *what*; each later use raises ExchangeError with the *reason*,
    through all references to the tensor. It changes the class of the tensor to one
    with the same layout (``core/implementation_details``).
    """

    def refuse(self: Tensor, name: str) -> NoReturn:
        # As __getattr__: it is called for the memory, which is no longer set.
        if not hasattr(type(self), name):
            raise AttributeError(f"'Tensor' object has no attribute {name!r}")
        raise ExchangeError(f"this tensor was {what}, {reason}")

    members: dict[str, Any] = {
        "__slots__": (),
        "__getattr__": refuse,
        "__repr__": lambda self: f"dlbridge.Tensor({what} that has expired)",
        # It does not look at the memory of a tensor that is there already.
        "to_device": lambda self, *_, **__: refuse(self, "to_device"),
        # No exchange table: a consumer cannot understand what raises in one.
        **dict.fromkeys(TABLE_NAMES),
    }
    expired = {cls: type("Tensor", (cls,), members) for cls in (Tensor, NumpyTensor, ArrayTensor)}

    def expire(tensor: Tensor) -> None:
        tensor._forget_memory()
        tensor.__class__ = expired[type(tensor)]

    return expire


expire_host_view = expirer(
    "a host view",
    "which expired with its block: make another with t.host_view(), "
    "or copy in the block what must stay (numpy.array(h), dlbridge.to_device(h, 'cpu', copy=True))",
)

expire_lent = expirer(
    "lent to a callback",
    "which has returned: copy in the callback what must stay "
    "(numpy.array(t), dlbridge.to_device(t, 'cpu', copy=True))",
)


# Views as elements of another size --------------------------------------------------


def view_resized(old: Tensor, new: DType) -> Tensor:
    """The memory of *old* as elements of *new*, whose size is another one.

    Only the carrier is made anew, so it is the same on all devices.
    """
    dtype, new_bits = old.dtype, new.bits * new.lanes
    bits = 8 * dtype.itemsize if old.is_padded else dtype.bits * dtype.lanes
    why = _why_not_viewed(old, new, bits, new_bits)
    if why:
        raise ExchangeError(f"view({new}) of {dtype} {old.shape}: {why}")
    array = carrier_of(old)
    *outer, last = old.shape
    strides = None
    if not array.flags.c_contiguous:
        strides = *[step * bits // new_bits for step in old.strides[:-1]], 1
    memory, offset, shape = old._memory, old._byte_offset, (*outer, last * bits // new_bits)
    resized = carrier(memory, offset, new, shape, strides, not array.flags.writeable, array)
    return build(resized, memory, new, offset, old._flags & ~FLAG_SUBBYTE_PADDED)


def _why_not_viewed(old: Tensor, new: DType, bits: int, new_bits: int) -> str:
    """Why *old*, with elements of *bits* in memory, is no tensor of *new*; empty if it is one."""
    shape, strides, memory = old.shape, old.strides, old._memory
    if old.is_padded and new.is_subbyte:
        return (
            f"each {old.dtype} of this tensor takes a byte (it is padded), and whether "
            f"{with_article(str(new))} should too is not clear; view('uint8') shows the bytes"
        )
    if not shape:
        return (
            f"a tensor without dimensions keeps its element size, and {new_bits} bits are not "
            f"{bits}; t.reshape(1) gives it a dimension"
        )
    if shape[-1] * bits % new_bits:
        fit = shape[-1] // (step := lcm(bits, new_bits) // bits) * step
        way = f"; a part: dlbridge.to_device(t[..., :{fit}], t.device, copy=True)" if fit else ""
        return (
            f"the last dimension of {shape[-1]} elements has {shape[-1] * bits} bits, which is no "
            f"whole number of {new} of {new_bits}{way}"
        )
    if not old.is_contiguous():
        copied = "make a compact copy first: dlbridge.to_device(t, t.device, copy=True)"
        if shape[-1] > 1 and strides[-1] != 1:
            return (
                f"the last dimension has the stride {strides[-1]}, and only neighbours in memory "
                f"can become one element or several; {copied}"
            )
        for extent, step in zip(shape[-2::-1], strides[-2::-1], strict=True):
            if extent > 1 and step * bits % new_bits:
                return (
                    f"neighbours along a dimension of {extent} are {step * bits} bits apart, which "
                    f"is no multiple of {new_bits}; {copied}"
                )
    start = old._byte_offset + (memory.data if memory.device.is_address else 0)
    alignment = alignment_of(new)  # where kernels and other libraries do not fault
    if old.size and start % alignment:
        return (
            f"{with_article(str(new))} must begin at a multiple of {alignment} bytes, and the "
            f"first would be {start % alignment} past one; copy the bytes first: "
            "dlbridge.to_device(t, t.device, copy=True)"
        )
    return ""
