"""Raw Vulkan handles in and out, for users of the `vulkan` package and of C.

Handles are integers here. `VulkanArray` is all that another user of the same
VkDevice needs to use a tensor's memory, and to wait for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import prod
from typing import Any, NoReturn

from dlbridge.protocol import NativeArray

from .library import handle
from .memory import Buffer


@dataclass(frozen=True, eq=False)
class VulkanArray:
    """A tensor in a VkBuffer, as raw handles. It keeps the memory alive.

    The elements begin *offset* bytes into *buffer*. Work of dlbridge on it is
    done when the timeline *semaphore* has reached *value*: wait for that in
    your submission, or call ``synchronize``. Hold *lock* while you submit to
    *queue*; dlbridge's later work then comes after yours.
    """

    instance: int
    physical_device: int
    device: int
    queue: int
    queue_family: int
    buffer: int
    memory: int
    memory_offset: int
    """Where *buffer* is bound in *memory*, in bytes. Several buffers share one memory."""
    buffer_size: int
    semaphore: int
    value: int
    lock: Any = field(repr=False)
    mapped: int
    """Host address of the buffer's first byte; 0 if there is none."""
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    readonly: bool
    device_id: int
    data: int
    """The DLTensor's data, the address of a DlbridgeVulkanBuffer (docs/vulkan.md)."""
    owner: object = field(repr=False)
    memory_owner: object = field(default=None, repr=False)
    """Of a buffer that was wrapped. It waits for dlbridge's work on it when it is dropped."""

    def __array__(self, *_: object, **__: object) -> NoReturn:
        """Raise TypeError: numpy would make an array of one object."""
        raise TypeError(
            "a VulkanArray is memory of a device: dlbridge.to_device(x, 'cpu', like='numpy') "
            "copies its elements"
        )

    def described(self) -> NativeArray:
        """The same tensor in dlbridge's terms."""
        layout = self.offset, self.dtype, self.shape, self.strides
        return NativeArray(self.device_id, self.data, *layout, self.readonly, owner=self)


def describe(source: Buffer, array: NativeArray, memory_owner: object = None) -> VulkanArray:
    """*array*, which lies in *source*, with its raw handles.

    From now on others may use the queue, and dlbridge's waits cover their work too.
    """
    device = source.device
    queue = device.queue
    queue.shared = True
    return VulkanArray(
        instance=handle(device.instance),
        physical_device=handle(device.physical.pointer),
        device=handle(device.pointer),
        queue=queue.number,
        queue_family=queue.family,
        buffer=source.buffer,
        memory=source.memory,
        memory_offset=source.start,
        buffer_size=source.nbytes,
        semaphore=queue.semaphore,
        value=source.last_use,
        lock=queue.lock,
        mapped=source.mapped,
        offset=array.offset,
        dtype=array.dtype,
        shape=array.shape,
        strides=array.strides,
        readonly=array.readonly,
        device_id=array.device_id,
        data=array.data,
        owner=array.owner,
        memory_owner=memory_owner,
    )


def bytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    """The bytes of compact elements of a dtype string; a bool has 8 bits."""
    match = re.fullmatch(r"[a-z]+(\d+)(?:_\w+?)?(?:x(\d+))?", dtype)
    bits = int(match[1]) * int(match[2] or 1) if match else 8
    return -(-prod(shape) * bits // 8)
