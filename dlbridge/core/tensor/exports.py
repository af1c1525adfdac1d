"""Capsules and structs of a tensor, as numpy's C code makes them of its carrier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.exports import Image, OwnExport, export_capsule
from dlbridge.core.dlpack.structs import FLAG_SUBBYTE_PADDED

from .array_tensor import ArrayTensor, NumpyTensor
from .metadata import carrier_of
from .operand import operand_of
from .tensor import Tensor

if TYPE_CHECKING:
    import numpy as np

__all__ = ["capsule_of", "own_export_of"]


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
