"""Which physical device is meant: UUID and PCI address, and the same device elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.core.values.devices import Device
from dlbridge.core.values.identity import Identity, pci_text, uuid_text

from .lookup import plugin_of
from .records import plugin_named

if TYPE_CHECKING:
    from .records import Plugin

__all__ = ["identity_of", "same_device"]

_known: dict[Device, tuple[Plugin, Identity]] = {}
"""What each device has said; a number means one device as long as the process lives."""


def identity_of(device: Device) -> Identity:
    """What the backend of *device* says of it; loads the backend.

    BackendUnavailable or ExchangeError if there is no such device here.
    """
    plugin = plugin_of(device)
    known = _known.get(device)
    if known is not None and known[0] is plugin:
        return known[1]
    found = Identity(None, None)
    if plugin.device_info is not None:
        info = plugin.device_info(device.index)
        found = Identity(uuid_text(info.get("uuid")), pci_text(info.get("pci")))
    _known[device] = plugin, found
    return found


def same_device(device: Device, name: str) -> Device | None:
    """The device of the backend *name* that is physically *device*; None if none is known."""
    _check_name(name)
    plugin = plugin_named(name)
    wanted = identity_of(device)
    if name == device.name:
        return device
    count = plugin.device_count()
    others = [Device.of(plugin.device_type, index, name) for index in range(count)]
    if wanted.uuid is not None:
        for other in others:
            if identity_of(other).uuid == wanted.uuid:
                return other
    if wanted.pci is None:
        return None
    # Parts of one device (MIG, sub-devices) share its address: then it says too little.
    there = [other for other in others if identity_of(other).pci == wanted.pci]
    return there[0] if len(there) == 1 else None


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"same_device takes the name of a backend, such as 'vulkan', not {name!r}")
    if ":" in name:
        raise ValueError(
            f"{name!r} is a device; give the name of a backend, such as {name.partition(':')[0]!r}"
        )
