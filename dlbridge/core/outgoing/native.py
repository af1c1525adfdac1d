"""A tensor as the object of its device's own ecosystem: a pyopencl array, for example."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.core.plugins.failures import fail
from dlbridge.core.plugins.lookup import backend_of, supports
from dlbridge.core.plugins.streams import chosen_stream
from dlbridge.core.tensor.operand import operand_of
from dlbridge.core.values.devices import Device
from dlbridge.errors import ExchangeError
from dlbridge.protocol import NativeArray, SupportsNative

if TYPE_CHECKING:
    from dlbridge.core.tensor.tensor import Tensor

__all__ = ["check_whole_elements", "to_native"]

_CPU = Device.of(1, 0)


def check_whole_elements(tensor: Tensor) -> None:
    """ExchangeError for packed elements: who counts a native object's bytes would leave them."""
    dtype = tensor.dtype
    if dtype.is_subbyte and not tensor.is_padded:
        raise ExchangeError(
            f"{dtype} elements are packed: {tensor.size} of them are {tensor.nbytes} bytes, and "
            "work on an object of that shape would go beyond; t.view('uint8') has the bytes, and "
            "dlbridge.astype(t.to_device('cpu'), 'float32') the numbers"
        )


def to_native(tensor: Tensor) -> object:
    """See `Tensor.to_native`."""
    operand = operand_of(tensor)
    device = operand.device
    if device is _CPU:
        return tensor.numpy()
    plugin = backend_of(device)
    if not supports(plugin, SupportsNative):
        raise ExchangeError(f"the backend of {device} has no native objects; use DLPack")
    check_whole_elements(tensor)
    if operand.size:
        operand.access()  # the work that its user queues comes after our last work on it
    size = operand.dtype.itemsize
    array = NativeArray(
        device_id=device.index,
        data=operand.data,
        offset=operand.byte_offset,
        dtype=operand.dtype.name,
        shape=operand.shape,
        strides=tuple([step * size for step in operand.strides]),
        readonly=operand.readonly,
        owner=tensor,
        stream=chosen_stream(device),
    )
    try:
        return plugin.to_native(array)
    except Exception as exc:
        fail(exc, device.name, "to_native")
