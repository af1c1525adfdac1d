"""A tensor for a consumer: its capsules and structs, and the order with the consumer's stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.exports import Image, OwnExport, export_capsule
from dlbridge.core.dlpack.requests import check_host_stream
from dlbridge.core.dlpack.structs import FLAG_SUBBYTE_PADDED
from dlbridge.core.plugins.records import plugin_named
from dlbridge.core.plugins.streams import current_use
from dlbridge.core.values.devices import DLDeviceType
from dlbridge.errors import BackendUnavailable, Error

from .array_tensor import ArrayTensor, NumpyTensor
from .memory import access
from .metadata import carrier_of
from .operand import operand_of
from .tensor import Tensor

if TYPE_CHECKING:
    import numpy as np

    from .memory import Memory
    from .tensor import Tensor


def capsule_of(tensor: Tensor, version: tuple[int, int] | None, flags: int) -> object:
    """A new capsule of *tensor*, with *flags* added; *version* as ``max_version``."""
    array, image = _described(tensor, flags)
    return export_capsule(array, version, image)


def own_export_of(tensor: Tensor, flags: int = 0) -> OwnExport:
    """A new struct of *tensor*, with *flags* added, and its owner."""
    return OwnExport(*_described(tensor, flags))


def _described(tensor: Tensor, flags: int) -> tuple[np.ndarray[Any, Any], Image | None]:
    """The carrier, and the fields that make numpy's export of it the tensor's; None if it is."""
    array = carrier_of(tensor)
    if not flags and type(tensor) is ArrayTensor:
        return array, None
    if tensor.is_padded:
        flags |= FLAG_SUBBYTE_PADDED
    if type(tensor) is not Tensor and isinstance(tensor, NumpyTensor):
        return array, Image(tensor.dtype, flags, None)
    operand = operand_of(tensor)
    device, data, offset = operand.device, operand.data, operand.byte_offset
    if not operand.size:
        data = offset = 0
    elif device.is_address:
        data, offset = data + offset, 0
    return array, Image(operand.dtype, flags, (data, device.dlpack, offset))


def order_consumer(tensor: Tensor, stream: object) -> None:
    """Make the consumer's *stream* wait for our work on *tensor*; -1: no wait is wanted.

    The backend of the device knows which values are allowed. Without a backend
    only None and -1 are possible: the memory was ready on the default stream when
    it was imported.
    """
    device = tensor.device
    if device.is_host and device.type is not DLDeviceType.kDLCUDAManaged:
        check_host_stream(stream)
        return
    if stream == -1 and not isinstance(stream, bool):
        return
    try:
        plugin = plugin_named(device.name)
    except BackendUnavailable:
        if stream is None:
            return
        raise
    if plugin.normalize_stream is not None and plugin.wait is not None:
        consumer = plugin.normalize_stream(device.index, stream)
        if consumer != -1:
            # The last work of ours, and what may have been queued beside it.
            memory = tensor._memory
            ours = {current_use(device, plugin).handle}
            if memory.last_use is not None:
                ours |= {memory.last_use.handle}
            for producer in ours - {consumer}:
                plugin.wait(device.index, consumer, producer)
    elif stream is not None:
        raise TypeError(f"{device} has no streams; stream must be None or -1, not {stream!r}")


def order_consumer_on_current_stream(memory: Memory) -> None:
    """Treat the work of a consumer that asks for our current stream as work of ours on *memory*.

    The functions of an exchange table do not synchronise; the consumer launches on the stream
    that the table names. That stream waits for our earlier work on the memory, and a free waits
    for it. An error is logged, because those functions cannot raise.
    """
    try:
        access(memory)
    except BackendUnavailable:
        pass  # no work of ours is on it
    except Error as exc:
        import logging  # 4 ms, of the 20 that the first tensor takes

        log = logging.getLogger(__name__)
        log.warning("a consumer of %s memory is not ordered: %s", memory.device, str(exc))
