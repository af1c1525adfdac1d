"""The producer's side of the standard: the checks, order and copies of ``__dlpack__``.

Source: array API 2025.12, ``__dlpack__`` and ``__dlpack_device__``; dlpack.h 1.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.requests import check_copy, check_device, check_version
from dlbridge.core.dlpack.structs import FLAG_IS_COPIED
from dlbridge.core.implementation_details.callers import is_called_by_torch
from dlbridge.core.libraries.descriptions import KNOWN
from dlbridge.core.moves.host_views import shared_on_host
from dlbridge.core.moves.plans import why_no_host_view
from dlbridge.core.moves.transfer import copy_of, copy_to_host
from dlbridge.core.tensor.consumers import order_consumer
from dlbridge.core.tensor.exports import capsule_of
from dlbridge.core.tensor.metadata import has_negative_strides
from dlbridge.core.tensor.operand import operand_of
from dlbridge.core.values.suggestions import with_article
from dlbridge.errors import ExchangeError

from .mpi_questions import refuse_elements, refuse_handle

if TYPE_CHECKING:
    from dlbridge.core.tensor.tensor import Tensor

__all__ = ["produce"]

_CPU = (1, 0)


def produce(
    tensor: Tensor, stream: object, max_version: object, dl_device: object, copy: Any
) -> object:
    """A new capsule of *tensor*: the body of ``__dlpack__``, see `Tensor.__dlpack__`."""
    version = check_version(max_version)
    check_copy(copy)
    own = tensor.__dlpack_device__()
    target = own if dl_device is None else check_device(dl_device)
    if target == own:
        if not tensor.device.is_host:
            _refuse_torch(tensor)
        if dl_device is None and (copy is False or (stream is not None and version is None)):
            refuse_elements(tensor, version)
            refuse_handle(tensor, stream, version)
        exported, flags = _copied_or_not(tensor, copy)
        order_consumer(exported, stream)  # after the copy, which is work on our stream too
        return capsule_of(exported, version, flags)
    if target == _CPU:
        return _export_to_host(tensor, version, stream, copy)
    raise ExchangeError(
        f"a tensor on {tensor.device} cannot be exported to the device {target}: the standard "
        "asks for its own device or the CPU; use dlbridge.to_device first"
    )


def _refuse_torch(tensor: Tensor) -> None:
    """ExchangeError for a device that torch has no tensors on.

    torch 2.13 answers the capsule with an internal error, which asks for a report to torch.
    """
    kinds = KNOWN["torch"].device_types
    if kinds is not None and tensor.device.type not in kinds and is_called_by_torch():
        raise ExchangeError(
            f"torch has no tensors on {tensor.device}; dlbridge.to_device(t, 'cpu', like='torch') "
            "brings the tensor to the CPU"
        )


def _copied_or_not(tensor: Tensor, copy: bool | None) -> tuple[Tensor, int]:
    """The tensor that is exported to its own device, and the flags to add."""
    if copy is True:
        return copy_of(tensor), FLAG_IS_COPIED
    if has_negative_strides(tensor):
        if copy is False:
            raise ExchangeError(
                f"negative strides {tensor.strides} are exported as a copy (some consumers "
                "abort on them), and copy=False forbids it; pass copy=None, or export a compact "
                "copy, dlbridge.to_device(t, t.device, copy=True)"
            )
        return copy_of(tensor), FLAG_IS_COPIED
    return tensor, 0


def _export_to_host(
    tensor: Tensor, version: tuple[int, int] | None, stream: object, copy: bool | None
) -> object:
    if stream is not None:
        raise ValueError(
            f"{with_article(str(tensor.device))} tensor exported to the CPU is synchronised; "
            "stream must be None, "
            f"not {stream!r}"
        )
    if copy is not True:
        shared = shared_on_host(tensor)
        if shared is not None:
            return capsule_of(shared, version, 0)
    if copy is False:
        raise ExchangeError(
            f"{why_no_host_view(operand_of(tensor))}; copy=False forbids copying it to the CPU"
        )
    return capsule_of(copy_to_host(tensor), version, FLAG_IS_COPIED)
