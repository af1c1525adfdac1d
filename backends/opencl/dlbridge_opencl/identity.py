"""A device's UUID and PCI address, by the extensions that say them."""

from __future__ import annotations

import ctypes
import uuid
from contextlib import suppress
from functools import cache
from typing import Any

import pyopencl as cl

UUID_KHR, UUID_SIZE = 0x106A, 16
"""CL_DEVICE_UUID_KHR (cl_khr_device_uuid) and CL_UUID_SIZE_KHR."""

PCI_BUS_INFO_KHR = 0x410F
"""CL_DEVICE_PCI_BUS_INFO_KHR (cl_khr_pci_bus_info): domain, bus, device, function."""


def identity(handle: cl.Device) -> dict[str, object]:
    """``uuid`` and ``pci`` of a device, each where its driver says it."""
    extensions = handle.extensions.split()
    found: dict[str, object] = {}
    if "cl_khr_device_uuid" in extensions:
        raw = _ask(handle, UUID_KHR, ctypes.c_ubyte * UUID_SIZE)
        if raw is not None:
            found["uuid"] = str(uuid.UUID(bytes=bytes(raw)))
    address = None
    if "cl_khr_pci_bus_info" in extensions:
        address = _ask(handle, PCI_BUS_INFO_KHR, ctypes.c_uint32 * 4)
    elif "cl_nv_device_attribute_query" in extensions:
        address = _nvidia_address(handle)
    if address is not None:
        domain, bus, device, function = address
        found["pci"] = f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
    return found


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
