"""Capsules and structs of a tensor, as numpy's C code makes them of its carrier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.core.dlpack.exports import export_capsule, export_managed, own_export

if TYPE_CHECKING:
    from dlbridge.core.dlpack.capsules import ManagedTensor

    from .tensor import Tensor

__all__ = ["capsule_of", "managed_address_of", "managed_of"]


def capsule_of(tensor: Tensor, version: tuple[int, int] | None, flags: int) -> object:
    """A new capsule of *tensor*, with *flags* added; *version* as ``max_version``."""
    return export_capsule(tensor._array, version, tensor._image(flags))


def managed_address_of(tensor: Tensor) -> int:
    """The address of a new ``DLManagedTensorVersioned`` of *tensor*, which the caller owns."""
    return export_managed(tensor._array, tensor._table_image(0))


def managed_of(tensor: Tensor, flags: int) -> ManagedTensor:
    """A new struct of *tensor*, owned, with *flags* added. Its fields are not read."""
    return own_export(tensor._array, tensor._table_image(flags))
