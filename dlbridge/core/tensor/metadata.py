"""The metadata of a tensor: dtype, shape, strides, device, and the source of its memory.

Also what users of other libraries try on a tensor, and what to write instead.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn

from dlbridge._absent_names import TENSOR_NAMES
from dlbridge.core.dlpack.structs import FLAG_IS_COPIED, FLAG_SUBBYTE_PADDED
from dlbridge.core.public import for_guests
from dlbridge.core.values.devices import CPU, Device
from dlbridge.core.values.dtypes import NUMPY_OWN
from dlbridge.core.values.text import AbsentNames
from dlbridge.errors import ExchangeError
from dlbridge.kit.resources import Owner

from .memory import CarrierBase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np

    from dlbridge.core.values.dtypes import DType

    from .memory import Memory


_NOT_ALWAYS = frozenset({"__array_interface__", "__arrow_c_array__", "__cuda_array_interface__"})
_NOT_ALWAYS |= {"_native", "_producer", "_shared", "expires"}  # slots, which may be empty


class OtherNames(AbsentNames, absent=TENSOR_NAMES):
    """The base of tensors that explains names and operators which they do not have."""

    __slots__ = ()

    def __dir__(self) -> Iterable[str]:
        """Return the names that are there."""
        names = super().__dir__()
        return [name for name in names if name not in _NOT_ALWAYS or hasattr(self, name)]

    if not TYPE_CHECKING:  # to a type checker it would say that it can be done

        def __setitem__(self, _index: object, _value: object) -> NoReturn:
            """Raise TypeError, which names the copy."""
            raise TypeError(
                "a Tensor takes no assignment: dlbridge.copy_(t[index], array) copies an array "
                "into it, and dlbridge.copy_(t[index], dlbridge.full_like(t[index], 1)) a number"
            )


def _refusal(name: str, operator: str, mirror: str) -> Callable[..., object]:
    """The method *name*; *mirror* is the one by which the other operand does the same."""

    def refuse(tensor: object, *other: object) -> object:
        """Raise TypeError, which names a library that computes."""
        # Arrays of other libraries may take a tensor. Python would ask them next, and if they
        # refuse, too, would say "unsupported operand", with the names of two types.
        if other and mirror and not isinstance(other[0], OtherNames):
            theirs = getattr(type(other[0]), mirror, None)
            result = NotImplemented if theirs is None else theirs(other[0], tensor)
            if result is not NotImplemented:
                return result
        home = type(other[0]).__module__.partition(".")[0] if other else ""
        like = home if home in _COMPUTING else "numpy"
        raise TypeError(
            f"a Tensor does not compute (operator {operator}): take an array of a library that "
            f"does, such as dlbridge.to_device(t, 'cpu', like='{like}')"
        )

    refuse.__name__ = name
    refuse.__qualname__ = f"Tensor.{name}"
    return refuse


_COMPUTING = ("cupy", "jax", "paddle", "tensorflow", "torch")

# Names of methods, each with its operator and its mirror. A reflected operator has none: it is
# asked for when the other operand has refused.
_WITH_MIRROR = "lt:<:gt gt:>:lt le:<=:ge ge:>=:le neg:-: pos:+: invert:~: abs:abs: round:round:"
_ARITHMETIC = "add:+ sub:- mul:* truediv:/ floordiv:// mod:% divmod:divmod pow:** matmul:@"
_BITWISE = "and:& or:| xor:^ lshift:<< rshift:>>"
_METHODS = [triple.split(":") for triple in _WITH_MIRROR.split()]
for _name, _sign in (pair.split(":") for pair in f"{_ARITHMETIC} {_BITWISE}".split()):
    _METHODS += [[_name, _sign, f"r{_name}"], [f"r{_name}", _sign, ""]]

for _name, _sign, _mirror in _METHODS:
    _method = _refusal(f"__{_name}__", _sign, _mirror and f"__{_mirror}__")
    setattr(OtherNames, f"__{_name}__", _method)


class TensorMetadata(OtherNames):
    """The metadata of a `Tensor`, read from its carrier and its memory. It never changes."""

    __slots__ = (
        "__weakref__",
        "_array",
        "_byte_offset",
        "_dtype",
        "_flags",
        "_memory",
        "_native",
        "_shared",
    )

    _array: np.ndarray[Any, Any]
    _native: Any  # the object of libtvm_ffi for this tensor: always the same one
    _shared: Any  # the structs that the exchange table lends; set at the first such export
    _memory: Memory
    _dtype: DType
    _byte_offset: int
    _flags: int
    if TYPE_CHECKING:

        def __hash__(self) -> int: ...

    else:
        __hash__ = object.__hash__

    @property
    def dtype(self) -> DType:
        """The type of one element.

        Examples
        --------
        >>> bridge.empty(3, "bfloat16").dtype
        dlbridge.dtype('bfloat16')
        """
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent of each dimension, in elements."""
        shape: tuple[int, ...] = self._array.shape
        return shape

    @property
    def strides(self) -> tuple[int, ...]:
        """The distance between neighbours along each dimension, in elements.

        DLPack counts so (``dlpack.h`` 1.3, DLTensor); numpy counts in bytes.

        Examples
        --------
        >>> bridge.zeros((2, 3)).strides
        (3, 1)
        """
        itemsize = self._array.itemsize
        return tuple([step // itemsize for step in self._array.strides])

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._array.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._array.size

    def numel(self) -> int:
        """Return the number of elements: `size`, by the name in torch and TVM-FFI.

        Returns
        -------
        int
            The product of the extents; 1 without dimensions.

        Examples
        --------
        >>> bridge.zeros((2, 3)).numel()
        6
        """
        return self._array.size

    def same_as(self, other: object) -> bool:
        """Return whether *other* is this very tensor, as TVM-FFI's objects do.

        Parameters
        ----------
        other : object
            Anything.

        Returns
        -------
        bool
            False for another tensor on the same memory, too.

        Examples
        --------
        >>> t = bridge.zeros(3)
        >>> t.same_as(t), t.same_as(t[...])
        (True, False)
        """
        return other is self

    @property
    def itemsize(self) -> int:
        """The bytes of one element that is stored alone, as `DType.itemsize`."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all elements; sub-byte elements are counted packed, unless `is_padded`."""
        return self.dtype.nbytes(self.size, padded=self.is_padded)

    @property
    def device(self) -> Device:
        """The device that the memory is on."""
        return self._memory.device

    @property
    def readonly(self) -> bool:
        """Whether writing through this tensor is forbidden (DLPACK_FLAG_BITMASK_READ_ONLY)."""
        return not self._array.flags.writeable

    @property
    def is_copied(self) -> bool:
        """Whether the producer made a copy for this tensor (DLPACK_FLAG_BITMASK_IS_COPIED)."""
        return bool(self._flags & FLAG_IS_COPIED)

    @property
    def is_padded(self) -> bool:
        """Whether sub-byte elements take a byte each (..._IS_SUBBYTE_TYPE_PADDED)."""
        return bool(self._flags & FLAG_SUBBYTE_PADDED)

    @property
    def byte_offset(self) -> int:
        """The bytes from `data_ptr` to the first element; 0 where `data_ptr` includes them.

        It is 0 on devices whose data is an address, and may be positive where
        it is a handle (OpenCL, Vulkan).
        """
        return 0 if self.device.is_address else self._byte_offset

    @property
    def origin(self) -> str:
        """The source of the memory in words, such as the name of a type."""
        return self._memory.origin

    def data_ptr(self) -> int:
        """Return the address of the first element; on handle devices the handle.

        Returns
        -------
        int
            An address in bytes; on OpenCL, Vulkan, Metal and other devices
            whose memory has handles, the handle, beside which `byte_offset`
            goes. 0 for an empty tensor.

        Notes
        -----
        The tensor keeps the memory alive, the number does not. For work of
        your own on the memory take `Tensor.operand`, which orders it too.

        Examples
        --------
        >>> a = np.arange(3)
        >>> bridge.from_dlpack(a)[1:].data_ptr() - a.ctypes.data
        8
        """
        if not self.size:
            return 0
        data = self._memory.data
        return data + self._byte_offset if self.device.is_address else data

    def is_contiguous(self) -> bool:
        """Return whether the elements lie row-major without gaps.

        Returns
        -------
        bool
            True also for an empty tensor.

        Examples
        --------
        >>> t = bridge.zeros((2, 3))
        >>> t.is_contiguous(), t.transpose().is_contiguous()
        (True, False)
        """
        return self._array.flags.c_contiguous

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("a tensor without dimensions has no len(); t.item() is its element")
        return self.shape[0]

    def __repr__(self) -> str:
        """Return the metadata, and the elements where they fit into a line and the memory is ours.

        That is CPU memory that numpy or dlbridge has allocated. No other memory is read: what a
        producer has described wrongly, or has freed, would end the process, and a debugger shows
        a tensor without being asked. ``print`` and `tolist` read any memory.
        """
        shown = _elements_in_a_line(self) if _is_allocated_here(self) else ""
        return describe(self).replace("(", f"({shown}, " if shown else "(", 1)


def describe(tensor: TensorMetadata) -> str:
    """What messages call the tensor: nothing of the memory is read."""
    flags = ", readonly" if tensor.readonly else ""
    return (
        f"dlbridge.Tensor({tensor.dtype}, shape={tensor.shape}, device={tensor.device}{flags}, "
        f"memory from {tensor.origin})"
    )


_LINE = 60
"""Characters of elements that a repr shows at most."""


def _is_allocated_here(tensor: TensorMetadata) -> bool:
    """Whether it is CPU memory that numpy or dlbridge has allocated: reading that is safe."""
    if tensor.device is not CPU:
        return False
    array = _first_array(tensor)
    if not tensor.size:
        return True
    if isinstance(base := array.base, CarrierBase):
        memory = base.memory  # a host view is an allocation, too, and has an owner
        return memory.allocation is not None and memory.owner is None
    return base is None and array.flags.owndata


def _first_array(tensor: TensorMetadata) -> Any:
    """The array of numpy that the tensor's is a view of: its base is the owner of the memory."""
    array: Any = tensor._array
    while type(array.base) is type(array):
        array = array.base
    return array


def is_given_back(tensor: TensorMetadata) -> bool:
    """Whether a deleter of `from_blob` is called when nothing uses the memory any more."""
    base = _first_array(tensor).base
    memory = base.memory if isinstance(base, CarrierBase) else tensor._memory
    owner = memory.allocation if memory.owner is None else memory.owner
    blob = owner.resource if isinstance(owner, Owner) else None
    return getattr(blob, "deleter", None) is not None


def _elements_in_a_line(tensor: TensorMetadata) -> str:
    """The elements as one line of text; empty where that is long or numpy has no such type."""
    import numpy as np

    array = tensor._array
    if tensor.dtype.name not in NUMPY_OWN or (array.ndim != 1 and array.size > _LINE // 2):
        return ""
    with np.printoptions(edgeitems=3, threshold=10, linewidth=sys.maxsize):
        text = np.array2string(array, separator=", ", formatter={})
    text = " ".join(text.split()).replace("[ ", "[")
    return text if len(text) <= _LINE else ""


def carrier_of(tensor: TensorMetadata) -> np.ndarray[Any, Any]:
    """The array whose shape and strides are the tensor's; ExchangeError if it has expired."""
    return tensor._array


def memory_under(tensor: TensorMetadata) -> Memory:
    """The memory that the tensor is in."""
    return tensor._memory


@for_guests
def numpy_type(tensor: TensorMetadata) -> np.dtype[Any]:
    """Return the type of a numpy view of a tensor.

    Parameters
    ----------
    tensor : Tensor
        On any device.

    Returns
    -------
    numpy.dtype
        One of numpy or of ml_dtypes.

    Raises
    ------
    ExchangeError
        For elements that numpy cannot have, with the way out. It is also a BufferError.

    Examples
    --------
    >>> from dlbridge.extending import numpy_type
    >>> numpy_type(bridge.zeros(3, "int16"))
    dtype('int16')
    """
    dtype = tensor.dtype
    if dtype.is_subbyte and not tensor.is_padded:
        raise ExchangeError(
            f"{dtype} elements are packed, numpy has no such type; "
            "dlbridge.astype(t, 'float32') and t.tolist() give their numbers, "
            "dlbridge.unpack_bits(t.tobytes(), t.dtype, t.size) their raw codes"
        )
    return dtype.numpy


def release_shared(tensor: TensorMetadata) -> None:
    """Drop what the exchange table and libtvm_ffi share, unless a consumer still has it."""
    for name in ("_shared", "_native"):
        if hasattr(tensor, name) and not getattr(tensor, name).is_lent():
            delattr(tensor, name)


LOST_WRITES = "what is written into the copy does not reach the tensor"


def has_negative_strides(tensor: TensorMetadata) -> bool:
    """Whether a stride is negative.

    torch 2.13 aborts the process on negative strides, and a producer does not
    know its consumer, so such tensors are exported as a copy.
    """
    array = tensor._array
    return (
        not (array.flags.c_contiguous and array.size)  # mostly
        and min(array.strides, default=0) < 0
        and any(
            stride < 0 and extent > 1
            for stride, extent in zip(tensor.strides, tensor.shape, strict=True)
        )
    )
