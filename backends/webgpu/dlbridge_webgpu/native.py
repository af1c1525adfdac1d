"""A tensor in a GPUBuffer, as users of wgpu get and give it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dlbridge.protocol import NativeArray

__all__ = ["WebGPUArray"]


@dataclass(frozen=True, eq=False)
class WebGPUArray:
    """Elements in a ``wgpu.GPUBuffer``; *offset* and *strides* are in bytes.

    It keeps *owner* alive. Work on the queue of its *device* comes in turn with dlbridge's work.
    """

    buffer: Any
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0
    strides: tuple[int, ...] | None = None
    readonly: bool = False
    owner: object = field(default=None, repr=False)
    device: Any = None

    def described(self, device_id: int, data: int, readonly: bool = False) -> NativeArray:
        """What ``from_native`` returns; with *readonly* the buffer itself must not be written."""
        layout = self.offset, self.dtype, self.shape, self.strides
        return NativeArray(device_id, data, *layout, self.readonly or readonly, owner=self)
