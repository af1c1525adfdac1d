"""A tensor in a GPUBuffer, as users of wgpu get and give it."""

from dataclasses import dataclass
from typing import Any

from dlbridge.kit.buffer_array import BufferArray

__all__ = ["WebGPUArray"]


@dataclass(frozen=True, eq=False)
class WebGPUArray(BufferArray):
    """Elements in a ``wgpu.GPUBuffer``; *offset* and *strides* are in bytes.

    It keeps *owner* alive. Work on the queue of its *device* comes in turn with dlbridge's work.
    """

    device: Any = None
