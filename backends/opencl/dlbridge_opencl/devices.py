"""The OpenCL devices of this machine, the context of each, and what each says of itself."""

from __future__ import annotations

import ctypes
import os
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyopencl as cl

from dlbridge.errors import BackendUnavailable, ExchangeError
from dlbridge.kit.resources import shared_lock

from .driver import Driver, lasting

if TYPE_CHECKING:
    from collections.abc import Mapping

INSTALL = (
    "install the driver of your GPU's vendor, or for the CPU PoCL: pip install 'pyopencl[pocl]' "
    "(with Debian's or Ubuntu's packages: apt install pocl-opencl-icd)"
)

SIMULATORS = ("Oclgrind",)
"""Platforms that are numbered last: correct, thousands of times slower, and crash
if two threads call them at once."""

_lock = shared_lock()
_devices: list[Device] = lasting([])
CONTEXTS: dict[int, cl.Context] = lasting({})
"""device_id -> its context, once there is one: see `context`."""


@dataclass(frozen=True)
class Device:
    """A device, with the properties that are often asked for."""

    number: int
    """Its device_id."""
    handle: cl.Device
    name: str
    platform: str
    memory: int
    """Bytes."""
    max_allocation: int
    """CL_DEVICE_MAX_MEM_ALLOC_SIZE: bytes in one buffer that every driver must accept; some
    accept more."""
    kind: str
    """``"cpu"``, ``"gpu"``, ``"accelerator"`` or ``"other"``."""
    thread_safe: bool
    """Whether two threads may be in the driver at once."""
    shares_memory: bool
    """CL_DEVICE_HOST_UNIFIED_MEMORY: the host reaches its memory without a copy."""
    driver: Driver
    """What each call goes through."""

    @cached_property
    def is_cpu(self) -> bool:
        """Whether it is the processor itself."""
        return self.kind == "cpu"

    @cached_property
    def copies_at_once(self) -> bool:
        """Whether its driver copies content that a buffer is made with in the caller's thread.

        Those of CPUs do.
        """
        return self.is_cpu and self.shares_memory and self.thread_safe


def device_count() -> int:
    """Number of devices on all platforms; BackendUnavailable if there is none."""
    return len(_all())


def device(device_id: int) -> Device:
    """The device with that number; ExchangeError if there is none."""
    if device_id >= 0:
        try:
            return _devices[device_id]
        except IndexError:  # or they are not known yet
            pass
    devices = _all()
    if not 0 <= device_id < len(devices):
        raise ExchangeError(
            f"opencl:{device_id} is not a valid device; the devices are opencl:0 to "
            f"opencl:{len(devices) - 1}"
        )
    return devices[device_id]


def find(handle: cl.Device) -> int | None:
    """The number of pyopencl's device *handle*; None if it is not listed, as a sub-device."""
    for each in _all():
        if each.handle == handle:
            return each.number
    return None


def context(device_id: int) -> cl.Context:
    """The context in which the device's memory is made: the user's, or one made here."""
    made = CONTEXTS.get(device_id)
    if made is not None:
        return made
    chosen = device(device_id)
    with _lock:
        if device_id not in CONTEXTS:
            doing = f"making a context on {chosen.name}"
            CONTEXTS[device_id] = chosen.driver.run(doing, cl.Context, [chosen.handle])
        return CONTEXTS[device_id]


def contexts() -> set[int]:
    """The handles of the contexts in which memory is each."""
    return {each.int_ptr for each in list(CONTEXTS.values())}


def use_context(context: cl.Context) -> None:
    """Allocate memory in *context* from now on, on each of its devices.

    For programs that have a context of their own: their kernels can then use
    what dlbridge allocates. Call it when the program starts.

    Parameters
    ----------
    context : pyopencl.Context
        A context with at least one device that ``clGetDeviceIDs`` lists.

    Raises
    ------
    TypeError
        If *context* is something else.
    dlbridge.ExchangeError
        If dlbridge knows none of the context's devices.
    dlbridge.DeviceError
        In a forked child.

    Notes
    -----
    A tensor stays in the context in which it was made. Copies between contexts
    go through host memory.

    Examples
    --------
    >>> import dlbridge, dlbridge_opencl, pyopencl
    >>> context = pyopencl.Context(pyopencl.get_platforms()[0].get_devices())
    >>> dlbridge_opencl.use_context(context)
    """
    if not isinstance(context, cl.Context):
        raise TypeError(
            f"use_context takes a pyopencl.Context, not {context!r}; pyopencl.Context(devices) "
            "makes one, and t.to_native().context is the one of a tensor on an OpenCL device"
        )
    for each in _all():
        each.driver.check()
    numbers = [number for number in map(find, context.devices) if number is not None]
    if not numbers:
        raise ExchangeError(f"{context!r} has no device that clGetDeviceIDs lists")
    with _lock:
        CONTEXTS.update(dict.fromkeys(numbers, context))


def device_info(device_id: int) -> Mapping[str, object]:
    """Describe a device: the properties that ``dlbridge info`` and ``dlbridge doctor`` print.

    Parameters
    ----------
    device_id : int
        The device.

    Returns
    -------
    mapping of str to object
        ``name``, ``kind``, ``platform``, ``driver``, ``version``, ``memory`` and
        ``max_allocation`` in bytes, ``host_memory_shared``, ``compute_units``,
        ``max_work_group_size``, ``svm``, and ``uuid`` and ``pci`` where the driver says
        them. A simulator also has ``advice``.

    Raises
    ------
    dlbridge.ExchangeError
        If there is no such device.

    Examples
    --------
    >>> import dlbridge
    >>> name = dlbridge.backend("opencl").device_info(0)["name"]
    """
    chosen = device(device_id)
    info: dict[str, object] = {
        "name": chosen.name,
        "kind": chosen.kind,
        "platform": chosen.platform,
        "driver": chosen.handle.driver_version,
        "version": chosen.handle.version,
        "memory": chosen.memory,
        "max_allocation": chosen.max_allocation,
        "host_memory_shared": chosen.shares_memory,
        "compute_units": chosen.handle.max_compute_units,
        "max_work_group_size": chosen.handle.max_work_group_size,
        "svm": _svm(chosen.handle),
        **_identity(chosen.handle),
    }
    if chosen.platform in SIMULATORS:
        info["advice"] = f"a simulator, correct but slow; {INSTALL.partition(';')[0]}"
    return info


def _all() -> list[Device]:
    if not _devices:
        with _lock:
            if not _devices:
                _devices.extend(_enumerate())
    return _devices


def _enumerate() -> list[Device]:
    try:
        platforms = cl.get_platforms()
    except cl.Error as exc:  # PLATFORM_NOT_FOUND_KHR: the loader found no driver
        where = os.environ.get("OCL_ICD_VENDORS") or "/etc/OpenCL/vendors"
        if not Path(where).exists():
            where += ", which does not exist"
        raise BackendUnavailable(
            f"opencl: no driver was found ({exc}; drivers are listed in {where}); {INSTALL}"
        ) from exc
    # Otherwise the platforms keep the loader's order.
    platforms.sort(key=lambda platform: platform.name in SIMULATORS)
    troubles: list[str] = []
    drivers = {several: Driver(several) for several in (True, False)}
    devices: list[Device] = []
    for platform in platforms:
        try:
            devices += [
                _describe(number, handle, platform.name, drivers)
                for number, handle in enumerate(platform.get_devices(), len(devices))
            ]
        except cl.Error as exc:  # a broken driver must not hide the others
            troubles.append(f"{platform.name}: {exc}")
    if not devices:
        reasons = "; ".join(troubles) or ", ".join(platform.name for platform in platforms)
        raise BackendUnavailable(f"opencl: no driver has a device ({reasons}); {INSTALL}")
    return devices


def _describe(
    number: int, handle: cl.Device, platform: str, drivers: Mapping[bool, Driver]
) -> Device:
    several = platform.strip() not in SIMULATORS
    return Device(
        number=number,
        handle=handle,
        name=handle.name.strip(),
        platform=platform.strip(),
        memory=handle.global_mem_size,
        max_allocation=handle.max_mem_alloc_size,
        kind=next((word for word, bit in _KINDS.items() if handle.type & bit), "other"),
        thread_safe=several,
        shares_memory=bool(handle.host_unified_memory),
        driver=drivers[several],
    )


_KINDS = {
    "cpu": cl.device_type.CPU,
    "gpu": cl.device_type.GPU,
    "accelerator": cl.device_type.ACCELERATOR,
}


def _svm(handle: cl.Device) -> str:
    try:
        capabilities = handle.svm_capabilities
    except cl.Error:  # older than OpenCL 2.0
        return "none"
    kinds = cl.device_svm_capabilities
    names = {
        "coarse-grain buffer": kinds.COARSE_GRAIN_BUFFER,
        "fine-grain buffer": kinds.FINE_GRAIN_BUFFER,
        "fine-grain system": kinds.FINE_GRAIN_SYSTEM,
        "atomics": kinds.ATOMICS,
    }
    return ", ".join(name for name, bit in names.items() if capabilities & bit) or "none"


# Its UUID and PCI address, by the extensions that say them ------------------------------

UUID_KHR, UUID_SIZE = 0x106A, 16
"""CL_DEVICE_UUID_KHR (cl_khr_device_uuid) and CL_UUID_SIZE_KHR."""

PCI_BUS_INFO_KHR = 0x410F
"""CL_DEVICE_PCI_BUS_INFO_KHR (cl_khr_pci_bus_info): domain, bus, device, function."""


def _identity(handle: cl.Device) -> dict[str, object]:
    """``uuid`` and ``pci`` of a device, each where its driver says it."""
    extensions = handle.extensions.split()
    identity: dict[str, object] = {}
    if "cl_khr_device_uuid" in extensions:
        raw = _ask(handle, UUID_KHR, ctypes.c_ubyte * UUID_SIZE)
        if raw is not None:
            identity["uuid"] = str(uuid.UUID(bytes=bytes(raw)))
    address = None
    if "cl_khr_pci_bus_info" in extensions:
        address = _ask(handle, PCI_BUS_INFO_KHR, ctypes.c_uint32 * 4)
    elif "cl_nv_device_attribute_query" in extensions:
        address = _nvidia_address(handle)
    if address is not None:
        domain, bus, device, function = address
        identity["pci"] = f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
    return identity


def _nvidia_address(handle: cl.Device) -> tuple[int, int, int, int] | None:
    """NVIDIA's older extension: its slot number holds the device and, in 3 bits, the function."""
    info = cl.device_info
    domain = 0
    with suppress(cl.Error, AttributeError):  # younger than the other two
        domain = handle.get_info(info.PCI_DOMAIN_ID_NV)
    try:
        bus, slot = handle.get_info(info.PCI_BUS_ID_NV), handle.get_info(info.PCI_SLOT_ID_NV)
    except (cl.Error, AttributeError):
        return None
    return domain, bus, slot >> 3, slot & 7


def _ask(handle: cl.Device, what: int, kind: Any) -> Any:
    """What clGetDeviceInfo gives for *what*, which pyopencl does not know, as a *kind*; or None."""
    function = _function()
    if function is None:
        return None
    answer, written = kind(), ctypes.c_size_t()
    size = ctypes.sizeof(answer)
    status = function(handle.int_ptr, what, size, ctypes.byref(answer), ctypes.byref(written))
    return answer if status == 0 and written.value == size else None


@cache
def _function() -> Any:
    """ClGetDeviceInfo of the loader that pyopencl is linked with; None where it cannot be found."""
    try:
        function = ctypes.CDLL(cl._cl.__file__).clGetDeviceInfo
    except (OSError, AttributeError):  # this system does not look in what a library is linked with
        return None
    function.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint,
        ctypes.c_size_t,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_size_t),
    ]
    function.restype = ctypes.c_int32
    return function
