"""The Tensor that owns an imported struct, on the device that a backend knows it by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.core.dlpack.structs import FLAG_IS_COPIED, FLAG_READ_ONLY, FLAG_SUBBYTE_PADDED
from dlbridge.core.plugins.lookup import supports
from dlbridge.core.plugins.registry import backend, loaded
from dlbridge.core.values.devices import Device, DLDeviceType
from dlbridge.errors import BackendUnavailable, ExchangeError
from dlbridge.protocol import SupportsForeignData

from .memory import Memory
from .tensor import make_tensor

if TYPE_CHECKING:
    from dlbridge.core.dlpack.capsules import ManagedTensor

    from .tensor import Tensor

__all__ = ["adopt"]

_CPU = Device.of(1, 0)


def adopt(
    managed: ManagedTensor, origin: str, *, name: str | None = None, immutable: bool = False
) -> Tensor:
    """The Tensor that owns *managed*.

    *origin* says where it came from, as text. *name* is the backend, for a device
    type that several backends share. *immutable* marks memory as read-only where
    the producer could not say it.
    """
    fields = managed.fields
    kind, index, data = fields.device_type, fields.device_id, fields.data
    device = _CPU if kind == DLDeviceType.kDLCPU else Device.of(kind, index, name)
    if not device.is_address and 0 not in fields.shape:
        device, data = _bind(device, data, origin)
    if fields.flags & FLAG_SUBBYTE_PADDED and fields.dtype.bits < 8 and fields.dtype.lanes > 1:
        raise ExchangeError(
            f"padded {fields.dtype} elements: dlpack.h does not say whether each lane is padded; "
            "export them packed, or with one lane"
        )
    memory = Memory(device, data, origin, managed)
    return make_tensor(
        memory,
        fields.byte_offset,
        fields.dtype,
        fields.shape,
        fields.strides,
        readonly=immutable or bool(fields.flags & FLAG_READ_ONLY),
        # Padding means nothing on types of whole bytes.
        flags=fields.flags
        & (FLAG_IS_COPIED | (FLAG_SUBBYTE_PADDED if fields.dtype.is_subbyte else 0)),
    )


def _bind(device: Device, data: int, origin: str) -> tuple[Device, int]:
    """The device and handle as the backend knows them; unchanged if it does not.

    Where several loaded backends share the type (kDLExtDev), the handle belongs
    to the one that recognises it. If none does, the handle stays opaque.
    """
    sharing = loaded(device.type)
    if not any(name != device.name for name, _ in sharing):
        return _bind_to(device.name, device, data, origin)
    for name, plugin in sharing:
        if supports(plugin, SupportsForeignData):
            try:
                return _bind_to(name, device, data, origin)
            except ExchangeError:
                continue  # not its own
    return device, data


def _bind_to(name: str, device: Device, data: int, origin: str) -> tuple[Device, int]:
    try:
        plugin = backend(name)
    except BackendUnavailable:
        return device, data
    if supports(plugin, SupportsForeignData):
        index, data = plugin.import_data(device.index, data, origin.rpartition(".")[0])
        device = Device.of(device.type, index, name)
    return device, data
