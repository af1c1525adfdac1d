"""What a tensor says of itself: dtype, shape, device, where the memory comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.capsules import FLAG_IS_COPIED, FLAG_SUBBYTE_PADDED
from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import DType

from .memory import Memory

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Described"]


class Described:
    """The metadata of a `Tensor`: read off its carrier and its memory, never changed."""

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
    _native: Any  # what dlbridge.ffi exported or got, so that it is the same object again
    _shared: Any  # what the exchange table hands out; set at the first such export
    _memory: Memory
    _dtype: DType
    _byte_offset: int
    _flags: int
    __hash__ = object.__hash__

    @property
    def dtype(self) -> DType:
        """The type of one element."""
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, in elements."""
        shape: tuple[int, ...] = self._array.shape
        return shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Steps between neighbours, in elements (not bytes, as in DLPack)."""
        itemsize = self._array.itemsize
        return tuple(step // itemsize for step in self._array.strides)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._array.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._array.size

    @property
    def itemsize(self) -> int:
        """Bytes of one element stored by itself (`DType.itemsize`)."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, packed together."""
        return self.dtype.nbytes(self.size, padded=self.is_padded)

    @property
    def device(self) -> Device:
        """Where the memory is."""
        return self._memory.device

    @property
    def readonly(self) -> bool:
        """Whether nobody may write through this tensor (DLPACK_FLAG_BITMASK_READ_ONLY)."""
        return not self._array.flags.writeable

    @property
    def is_copied(self) -> bool:
        """Whether the producer said that it made a copy for us (IS_COPIED)."""
        return bool(self._flags & FLAG_IS_COPIED)

    @property
    def is_padded(self) -> bool:
        """Whether sub-byte elements take a byte each (IS_SUBBYTE_TYPE_PADDED)."""
        return bool(self._flags & FLAG_SUBBYTE_PADDED)

    @property
    def byte_offset(self) -> int:
        """Bytes from the memory's start to the first element; 0 where `data_ptr` has it."""
        return 0 if self.device.is_address else self._byte_offset

    @property
    def origin(self) -> str:
        """Where the memory comes from, in words."""
        return self._memory.origin

    def data_ptr(self) -> int:
        """The address of the first element; on handle devices the handle itself.

        Beside a handle (OpenCL, Vulkan, Metal, ...) goes `byte_offset`. An
        empty tensor has 0.
        """
        if not self.size:
            return 0
        data = self._memory.data
        return data + self._byte_offset if self.device.is_address else data

    def is_contiguous(self) -> bool:
        """Whether the elements lie row-major without gaps."""
        return self._array.flags.c_contiguous

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("a tensor without dimensions has no len()")
        return self.shape[0]

    def __repr__(self) -> str:
        flags = ", readonly" if self.readonly else ""
        return (
            f"dlbridge.Tensor({self.dtype}, shape={self.shape}, device={self.device}{flags}, "
            f"memory from {self.origin})"
        )
