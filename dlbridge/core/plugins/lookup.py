"""Finds the device that a caller names, and the backend of a device."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from dlbridge.core.public import public
from dlbridge.core.values.devices import (
    Device,
    UnknownName,
    device as _device,
    split,
    type_names,
)
from dlbridge.core.values.suggestions import did_you_mean
from dlbridge.errors import BackendUnavailable, DeviceNotFound, Error, ExchangeError

from .records import Plugin, plugin_named
from .registry import LOADED, backends

if TYPE_CHECKING:
    from dlbridge.typing import DeviceLike

__all__ = ["device", "find_device", "plugin_of"]


def plugin_of(device: Device) -> Plugin:
    """The backend of *device*, with its members.

    BackendUnavailable or BackendError if it cannot be loaded.
    ExchangeError if it does not have the index, or is for another type.
    """
    known = _usable.get(device)
    if known is not None and LOADED.get(device.name) is known.backend:
        return known
    plugin = plugin_named(device.name)
    if plugin.device_type != device.type:
        raise ExchangeError(
            f"backend {device.name!r} is for device type {plugin.device_type}, not {device.type:d}"
        )
    count = plugin.device_count()
    if device.index >= count:
        listed = _listed(plugin, device.name, count)
        raise DeviceNotFound(
            f"there is no {device}: backend {device.name!r} has {count} "
            f"device{'s' if count != 1 else ''} here, counted from 0{listed}"
        )
    _usable[device] = plugin
    return plugin


def _listed(plugin: Plugin, name: str, count: int) -> str:
    """The devices of *plugin* by number, with their names where it has them, for a message."""
    shown = []
    for index in range(min(count, 8)):
        called: object = None
        if plugin.device_info is not None:
            with suppress(Error):  # the message is about something else, and has the number
                called = plugin.device_info(index).get("name")
        shown.append(f"{name}:{index}" + (f" ({called})" if called else ""))
    return f": {', '.join(shown)}{', ...' if count > 8 else ''}" if shown else ""


_usable: dict[Device, Plugin] = {}
"""Cache of validated devices, with the backend that serves each."""


def find_device(wanted: DeviceLike) -> Device:
    """The device that *wanted* names; its backend is loaded and has that device.

    Takes the same as `device`.
    """
    if isinstance(wanted, str):
        known = _found.get(wanted)
        if known is not None:
            return known
        name, selector = split(wanted)
        if name in backends():
            found = _found[wanted] = _of_backend(wanted, name, selector)
            return found
    try:
        found = _device(wanted)
    except UnknownName:
        raise _unknown(wanted) from None  # it says the same, without what is here
    try:
        plugin_of(found)
    except BackendUnavailable as exc:
        if not isinstance(wanted, int):
            raise
        raise BackendUnavailable(
            f"{wanted:d} is not the number of a device: an integer is a device type of DLPack, and "
            f"{int(wanted)} is {found.name}; write the name and the number, such as 'cuda:0'"
        ) from exc
    return found


def _unknown(wanted: object) -> ValueError:
    """The error for a text that names no device, with what there is on this machine."""
    name, _, _ = str(wanted).partition(":")
    here = backends()
    hint = did_you_mean(name, [*here, *type_names()])
    if name.lower() == "gpu":
        drivers = [f"'{driver}:0'" for driver in _OF_GPUS if driver in here]
        hint = f" (a GPU is called by its backend: {' or '.join(drivers)})" if drivers else ""
    return ValueError(
        f"{wanted!r}: no device is called {name!r}{hint}; the backends that are installed here "
        f"are {', '.join(here)}, and dlbridge.devices() lists their devices. DLPack also knows "
        f"{', '.join(sorted(set(type_names()) - set(here)))}, and typeN for a type by number"
    )


_OF_GPUS = ("cuda", "rocm", "oneapi", "vulkan", "opencl", "webgpu", "metal")


@public
def device(obj: DeviceLike, index: int | None = None) -> Device:
    """Return the `Device` of *obj*, whether or not it can be used here.

    Parameters
    ----------
    obj : DeviceLike
        A `Device`; a string (``"cuda:1"``, ``"cuda"`` for its first device,
        ``"type99:0"``, ``"opencl:Intel"`` where the backend finds devices by
        name); a DLDeviceType; ``(type, index)``, two integers; a device of torch, jax or
        tvm_ffi; or an object with ``__dlpack_device__()``.
    index : int, optional
        Which device, from 0, where *obj* does not say it.

    Returns
    -------
    Device
        The one object of that value.

    Raises
    ------
    TypeError
        If *obj* is not a device.
    ValueError
        For an unknown name, and for an index that cannot exist.
    ExchangeError
        For a device that DLPack does not have.

    Examples
    --------
    >>> bridge.device("cuda:1").dlpack
    (2, 1)
    >>> bridge.device(np.zeros(3))
    dlbridge.device('cpu:0')
    """
    try:
        return _device(obj, index)
    except ValueError as exc:
        if isinstance(obj, str) and index is None and obj.partition(":")[0] in backends():
            return find_device(obj)
        if isinstance(exc, UnknownName):
            raise _unknown(obj) from None
        raise


def _said(error: LookupError) -> str:
    """The message of *error*; that of a KeyError would be its repr."""
    return str(error.args[0]) if len(error.args) == 1 else str(error)


_found: dict[str, Device] = {}
"""Cache: devices by the text that named them. Listing the installed backends takes 2 ms."""


def _of_backend(wanted: str, name: str, selector: int | str | None) -> Device:
    plugin = plugin_named(name)
    if isinstance(selector, str):
        if plugin.find_device is None:
            raise ValueError(
                f"{wanted!r}: backend {name!r} finds devices by number only ('{name}:0')"
            )
        try:
            selector = plugin.find_device(selector)
        except LookupError as exc:
            raise DeviceNotFound(f"there is no {wanted}: {_said(exc)}") from exc
    found = Device.of(plugin.device_type, selector or 0, name)
    plugin_of(found)
    return found
