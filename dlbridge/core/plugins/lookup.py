"""Finds devices: by what a caller names, by what they are, all that are here; trims them."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from dlbridge.core.plugins.registry import (
    BUILT_IN,
    LOADED,
    Plugin,
    all_backends,
    backends,
    is_served,
    plugin_named,
    plugin_of,
)
from dlbridge.core.public import for_guests, public
from dlbridge.core.values.devices import Device, UnknownName, device as _device, split, type_names
from dlbridge.core.values.dtypes import is_name
from dlbridge.core.values.text import did_you_mean
from dlbridge.errors import DeviceLost, DeviceNotFound, Error

if TYPE_CHECKING:
    from dlbridge.typing import DeviceLike


@for_guests
def check_device(device: DeviceLike) -> Device:
    """Return the device that somebody has named, if a backend here serves it.

    Parameters
    ----------
    device : DeviceLike
        `dlbridge.device` says what is accepted; also a device that only another library can use.

    Returns
    -------
    Device
        Tensors can be made there.

    Raises
    ------
    TypeError
        If it is no device.
    ValueError
        If no device has such a name.
    BackendUnavailable
        If there is no backend for it, or its driver is not here.
    ExchangeError
        If the backend has no device of that number. It is also a BufferError.

    Examples
    --------
    >>> from dlbridge.extending import check_device
    >>> check_device("cpu")
    dlbridge.device('cpu:0')
    """
    if isinstance(device, str):
        if device in FOUND:
            return FOUND[device]
        name, selector = split(device)
        if name == BUILT_IN or is_served(name):
            checked = FOUND[device] = _of_backend(device, name, selector)
            return checked
    try:
        checked = _device(device)
    except UnknownName:
        raise _unknown(device) from None  # it says the same, without what is here
    plugin_of(checked)
    return checked


def _unknown(wanted: object) -> ValueError:
    """The error for a text that names no device, with what there is on this machine."""
    name, _, _ = str(wanted).partition(":")
    here = backends()
    hint = did_you_mean(name, [*here, *type_names()])
    if name.lower() == "gpu":
        drivers = [f"'{driver}:0'" for driver in _OF_GPUS if driver in here]
        hint = f" (a GPU is called by its backend: {' or '.join(drivers)})" if drivers else ""
    elif name in _OF_TORCH:
        hint = f" (did you mean 'torch-{name}'?)"
    elif not hint and is_name(name):
        hint = "; that is a dtype, and this argument is the device"
    elif not hint and name in sys.modules:
        hint = f"; a library is named by like={name!r}"
    return ValueError(
        f"{wanted!r}: no device is called {name!r}{hint}; the backends that are installed here "
        f"are {', '.join(here)}, and dlbridge.devices() lists their devices"
    )


_OF_GPUS = ("cuda", "rocm", "oneapi", "vulkan", "opencl", "webgpu", "metal")
_OF_TORCH = ("mps", "npu", "hpu", "mtia")


@public
def device(obj: DeviceLike | int, index: int | None = None) -> Device:
    """Return the `Device` of *obj*, whether or not it can be used here.

    Parameters
    ----------
    obj : DeviceLike
        A `Device`; a string (``"cuda:1"``, ``"cuda"`` for its first device,
        ``"type99:0"``, ``"opencl:Intel"`` where the backend finds devices by
        name); a DLDeviceType, an integer beside *index*; ``(type, index)``, two integers; a
        device of torch, jax or tvm_ffi; or an object with ``__dlpack_device__()``.
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
        if isinstance(obj, str) and index is None and is_served(obj.partition(":")[0]):
            return check_device(obj)
        if isinstance(exc, UnknownName):
            raise _unknown(obj) from None
        raise


FOUND: dict[str, Device] = {}
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
            said = exc.args[0] if len(exc.args) == 1 else exc  # that of a KeyError would be a repr
            raise DeviceNotFound(f"there is no {wanted}: {said}") from exc
    device = Device.of(plugin.device_type, selector or 0, name)
    plugin_of(device)
    return device


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
    identity = Identity()
    if plugin.device_info is not None:
        info = plugin.device_info(device.index)
        kind, memory = info.get("kind"), info.get("memory")
        identity.uuid = uuid_text(info.get("uuid"))
        identity.pci = pci_text(info.get("pci"))
        identity.kind = kind if isinstance(kind, str) else None
        identity.memory = memory if isinstance(memory, int) else None
    _known[device] = plugin, identity
    return identity


def same_device(device: Device, name: str) -> Device | None:
    """The device of the backend *name* that is physically *device*; None if none is known."""
    if not isinstance(name, str):
        raise TypeError(f"same_device takes the name of a backend, such as 'vulkan', not {name!r}")
    if ":" in name:
        backend = name.partition(":")[0]
        raise ValueError(f"{name!r} is a device; give the name of a backend, such as {backend!r}")
    others = _devices_of(name)
    wanted = identity_of(device)
    if name == device.name:
        return device
    if wanted.uuid is not None:
        for other in others:
            if identity_of(other).uuid == wanted.uuid:
                return other
    if wanted.pci is None:
        return None
    # Parts of one device (MIG, sub-devices) share its address: then it says too little.
    there = [other for other in others if identity_of(other).pci == wanted.pci]
    return there[0] if len(there) == 1 else None


@public
def devices(backend: str | None = None) -> list[Device]:
    """Return the devices that can be used here now; loads the backends to ask them.

    Parameters
    ----------
    backend : str, optional
        The backend that is asked. None: all that are installed. Those that cannot be
        used here are left out then; `info` gives the reasons.

    Returns
    -------
    list of Device
        In the order of `backends`, and of the numbers of each backend.

    Raises
    ------
    BackendUnavailable
        With the reason, if *backend* is named and cannot be used here.
    BackendError
        If *backend* is named and broken.

    Examples
    --------
    >>> bridge.devices("cpu")
    [dlbridge.device('cpu:0')]
    >>> set(bridge.devices("cpu")) <= set(bridge.devices())
    True
    """
    if backend is not None:
        return _devices_of(backend)
    listed: list[Device] = []
    for name in all_backends():
        with suppress(Error):
            listed += _devices_of(name)
    return listed


def _devices_of(name: str) -> list[Device]:
    plugin = plugin_named(name)
    return [Device.of(plugin.device_type, index, name) for index in range(plugin.device_count())]


@public
def trim(device: DeviceLike | None = None) -> None:
    """Give back to the system what backends keep of freed memory.

    A backend may keep the memory of freed tensors, because new memory costs time.
    Other programs, and other parts of this one, cannot use it meanwhile. The
    environment variable ``DLBRIDGE_POOL_LIMIT`` (bytes for each device) limits it
    from the start.

    Parameters
    ----------
    device : DeviceLike or None
        `dlbridge.device` says what is accepted. None: all devices of the backends that
        are loaded; no other backend is loaded for it.

    Raises
    ------
    BackendUnavailable
        If no backend here serves *device*.
    DeviceError
        If a driver refuses; with None the other devices have been asked all the same.

    Notes
    -----
    It may wait for work that was queued before. Memory of tensors that exist does not
    change, and a backend that keeps nothing has nothing to do.

    Examples
    --------
    >>> bridge.trim("cpu")
    """
    if device is not None:
        where = check_device(device)
        _trim(plugin_of(where), where.index)
        return
    failure: Error | None = None
    for name in LOADED.copy():  # one step: others may be loading a backend
        plugin = plugin_named(name)
        for index in range(0 if plugin.trim is None else plugin.device_count()):
            try:
                _trim(plugin, index)
            except DeviceLost:  # its memory is gone
                continue
            except Error as exc:
                failure = failure or exc
    if failure is not None:
        raise failure


def _trim(plugin: Plugin, index: int) -> None:
    if plugin.trim is not None:
        plugin.trim(index)


_PREFIX = r"(?ai:gpu|mig)-"  # not compiled here: few processes ask for identities
_DIGITS = r"[0-9a-f]+"
_PCI = (
    r"(?ai)(?:(?P<domain>[0-9a-f]+):)?(?P<bus>[0-9a-f]{1,2}):(?P<device>[0-9a-f]{1,2})"
    r"(?:\.(?P<function>[0-9a-f]))?"
)


class Identity:
    """What tells a physical device from all others, and what it is; None for what is not known."""

    uuid: str | None = None
    pci: str | None = None
    kind: str | None = None
    memory: int | None = None


def uuid_text(said: object) -> str | None:
    """``"0123abcd-4567-89ef-0123-456789abcdef"`` for what a driver says; None if it is no UUID.

    Sixteen hexadecimal digits are AMD's: its driver's 16 bytes are these letters.
    """
    if not isinstance(said, str):
        return None
    digits = re.sub(_PREFIX, "", said.strip(), count=1).replace("-", "").lower()
    if re.fullmatch(_DIGITS, digits) is None:
        return None
    if len(digits) == 16:
        digits = digits.encode().hex()
    if len(digits) != 32 or not digits.strip("0"):
        return None
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def pci_text(said: object) -> str | None:
    """``"0000:3b:00.0"`` for what a driver says; None if it is no PCI address."""
    match = re.fullmatch(_PCI, said.strip()) if isinstance(said, str) else None
    if match is None:
        return None
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
