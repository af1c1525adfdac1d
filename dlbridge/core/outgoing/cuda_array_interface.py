"""The CUDA Array Interface, version 3, of our tensors.

Source: Numba's documentation, "CUDA Array Interface (Version 3)".
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dlbridge.core.incoming.cuda_array_interface import LEGACY_STREAM, VERSION
from dlbridge.core.plugins.streams import current_stream, wait
from dlbridge.core.tensor.operand import Operand, operand_of
from dlbridge.core.values.devices import DLDeviceType
from dlbridge.core.values.layout import is_compact
from dlbridge.errors import BackendUnavailable, ExchangeError

if TYPE_CHECKING:
    from dlbridge.core.tensor.tensor import Tensor
    from dlbridge.core.values.dtypes import DType

__all__ = ["describe"]

EXPORT_STREAM = "DLBRIDGE_CUDA_ARRAY_INTERFACE_EXPORT_STREAM"
"""Environment variable: 0 makes exports say that no stream needs to be waited for."""

_CUDA = (DLDeviceType.kDLCUDA, DLDeviceType.kDLCUDAManaged, DLDeviceType.kDLCUDAHost)
_TYPESTRS = {"bfloat16": "<V2"}  # as torch and ml_dtypes write it; all float8 are |V1


def describe(tensor: Tensor) -> dict[str, Any]:
    """The dictionary for a *tensor* that CUDA can reach, new at each call.

    AttributeError for other tensors and for types without a typestr, so that
    ``hasattr(tensor, "__cuda_array_interface__")`` is right for consumers.
    """
    device = tensor.device
    if device.type not in _CUDA:
        raise AttributeError(
            f"a tensor on {device} has no __cuda_array_interface__: CUDA cannot reach it"
        )
    typestr = _typestr(tensor.dtype)
    operand = operand_of(tensor)
    compact = is_compact(operand.shape, operand.strides)
    steps = tuple([step * tensor.itemsize for step in operand.strides])
    interface: dict[str, Any] = {
        "shape": operand.shape,
        "typestr": typestr,
        "data": (tensor.data_ptr(), operand.readonly),
        "strides": None if compact else steps,
        "stream": _exported_stream(operand),
        "version": VERSION,
    }
    if "V" in typestr:
        interface["descr"] = [("", typestr)]
    return interface


def _typestr(dtype: DType) -> str:
    if dtype.lanes == 1 and not dtype.is_subbyte:
        if dtype.name in _TYPESTRS:
            return _TYPESTRS[dtype.name]
        if dtype.name.startswith("float8"):
            return "|V1"
        try:
            found = dtype.numpy
        except ExchangeError:
            pass
        else:
            return str(found.str)
    raise AttributeError(
        f"{dtype} has no typestr in the CUDA Array Interface; use DLPack, or view it as uint8"
    )


def _exported_stream(operand: Operand) -> int | None:
    """The stream that a consumer must wait for: our current one, after our work; never 0."""
    device = operand.device
    last = operand.memory.last_use if operand.memory is not None else None
    if device.type == DLDeviceType.kDLCUDAHost or os.environ.get(EXPORT_STREAM) == "0":
        return None  # work on pinned memory is done when our calls return
    try:
        stream = current_stream(device)
    except BackendUnavailable:  # no work of ours is on it; it came ready on the default stream
        return LEGACY_STREAM
    if last is not None:
        wait(device, last.handle)
    return stream or LEGACY_STREAM
