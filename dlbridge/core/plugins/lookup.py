"""From what a user says to a device that exists, and from a device to its backend."""

from __future__ import annotations

from typing import Any, TypeGuard, TypeVar

from dlbridge.core.values.devices import Device, device as _device, split
from dlbridge.errors import ExchangeError
from dlbridge.protocol import Backend, SupportsDeviceNames

from .registry import LOADED, backend, backends

__all__ = ["backend_of", "device", "find_device", "supports"]


_Capability = TypeVar("_Capability")

_supported: dict[tuple[type, type], bool] = {}


def supports(plugin: object, capability: type[_Capability]) -> TypeGuard[_Capability]:
    """Whether *plugin* has all members of the protocol *capability*.

    As ``isinstance`` says for its class, but looked up once: on a protocol
    that takes 5 to 20 us each time (measured on Python 3.11).
    """
    key = type(plugin), capability
    found = _supported.get(key)
    if found is None:
        found = _supported[key] = isinstance(plugin, capability)
    return found


def backend_of(device: Device) -> Backend:
    """The backend of *device*. BackendUnavailable or BackendError if there is none.

    ExchangeError if it has no device of that index, or is for another type.
    """
    known = _usable.get(device)
    if known is not None and LOADED.get(device.name) is known:
        return known
    plugin = backend(device.name)
    if plugin.device_type != device.type:
        raise ExchangeError(
            f"backend {device.name!r} is for device type {plugin.device_type}, not {device.type:d}"
        )
    count = plugin.device_count()
    if device.index >= count:
        raise ExchangeError(
            f"there is no {device}: backend {device.name!r} has {count} "
            f"device{'s' if count != 1 else ''} here, counted from 0"
        )
    _usable[device] = plugin
    return plugin


_usable: dict[Device, Backend] = {}
"""Cache of validated devices, with the backend that serves each."""


def find_device(wanted: Any) -> Device:
    """The device that *wanted* means, with a backend that can use it.

    Takes what `dlbridge.device` takes, the names of installed backends, and
    names that a backend knows (``"opencl:Intel"``).
    """
    if isinstance(wanted, str):
        known = _found.get(wanted)
        if known is not None:
            return known
        name, selector = split(wanted)
        if name in backends():
            found = _found[wanted] = _of_backend(wanted, name, selector)
            return found
    found = _device(wanted)
    backend_of(found)
    return found


def device(obj: Any, index: int | None = None) -> Device:
    """The `Device` of anything that names one, whether or not it can be used here.

    Takes a `Device`; a string (``"cuda:1"``, ``"cuda"`` for its first device,
    ``"type21:0"``), the name of an installed backend, or one that a backend
    finds (``"opencl:Intel"``); a type and an *index*; ``(type, index)``; the
    device objects of torch, jax and tvm_ffi; and anything with
    ``__dlpack_device__()``.

    ValueError for names and indices that cannot be, TypeError for what is no
    device, ExchangeError for one that DLPack cannot name.
    """
    try:
        return _device(obj, index)
    except ValueError:
        if isinstance(obj, str) and index is None and obj.partition(":")[0] in backends():
            return find_device(obj)
        raise


_found: dict[str, Device] = {}
"""Devices by what they were asked for: a look at the installed backends takes 2 ms."""


def _of_backend(wanted: str, name: str, selector: int | str | None) -> Device:
    plugin = backend(name)
    if isinstance(selector, str):
        if not supports(plugin, SupportsDeviceNames):
            raise ValueError(
                f"{wanted!r}: backend {name!r} finds devices by number only ('{name}:0')"
            )
        selector = plugin.find_device(selector)
    found = Device.of(plugin.device_type, selector or 0, name)
    backend_of(found)
    return found
