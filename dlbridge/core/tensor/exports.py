"""Capsules and structs of a tensor, as numpy's C code makes them of its carrier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.core.dlpack.exports import Image, export_capsule, export_managed, own_export
from dlbridge.core.dlpack.structs import FLAG_SUBBYTE_PADDED

from .operand import operand_of

if TYPE_CHECKING:
    from dlbridge.core.dlpack.capsules import ManagedTensor

    from .operand import Operand
    from .tensor import Tensor

__all__ = ["capsule_of", "managed_address_of", "managed_of"]


def capsule_of(tensor: Tensor, version: tuple[int, int] | None, flags: int) -> object:
    """A new capsule of *tensor*, with *flags* added; *version* as ``max_version``."""
    operand = operand_of(tensor)
    return export_capsule(operand.carrier, version, _image(operand, flags))


def managed_address_of(tensor: Tensor) -> int:
    """The address of a new ``DLManagedTensorVersioned`` of *tensor*, which the caller owns."""
    operand = operand_of(tensor)
    return export_managed(operand.carrier, _image_if_needed(operand, 0))


def managed_of(tensor: Tensor, flags: int) -> ManagedTensor:
    """A new struct of *tensor*, owned, with *flags* added. Its fields are not read."""
    operand = operand_of(tensor)
    return own_export(operand.carrier, _image_if_needed(operand, flags))


def _image(operand: Operand, extra_flags: int) -> Image:
    """The fields that turn numpy's export of the carrier into the tensor's."""
    device, data, offset = operand.device, operand.data, operand.byte_offset
    if not operand.size:
        data = offset = 0
    elif device.is_address:
        data, offset = data + offset, 0
    flags = (operand.flags & FLAG_SUBBYTE_PADDED) | extra_flags
    return Image(data, device.dlpack, operand.ndim, operand.dtype, offset, flags)


def _image_if_needed(operand: Operand, extra_flags: int) -> Image | None:
    """`_image`, or None where numpy's export is right as it is."""
    if operand.memory is None and not extra_flags:
        return None
    return _image(operand, extra_flags)
