"""Arrays for libraries that have buffers and no arrays: what ``from_native`` takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from dlbridge.protocol import NativeArray

__all__ = ["BufferArray"]


@dataclass(frozen=True, eq=False)
class BufferArray:
    """Elements in a buffer object of a library; *offset* and *strides* are in bytes.

    It keeps *buffer* and *owner* alive. A backend makes a subclass of it in its own package, by
    which `dlbridge.asarray` finds the backend.
    """

    buffer: Any
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0
    strides: tuple[int, ...] | None = None
    readonly: bool = False
    owner: object = field(default=None, repr=False)

    @classmethod
    def over(cls, buffer: Any, array: NativeArray, **more: Any) -> Self:
        """What ``to_native`` returns for *array*, whose memory *buffer* is; it keeps the owner.

        *more* is what a subclass has beside.
        """
        layout = array.dtype, array.shape, array.offset, array.strides, array.readonly
        return cls(buffer, *layout, array.owner, **more)

    def described(self, device_id: int, data: int, readonly: bool = False) -> NativeArray:
        """What ``from_native`` returns; with *readonly* the buffer itself must not be written."""
        layout = self.offset, self.dtype, self.shape, self.strides
        return NativeArray(device_id, data, *layout, self.readonly or readonly, owner=self)
