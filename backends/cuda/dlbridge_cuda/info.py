"""What a device is called, and what it has."""

from __future__ import annotations

import uuid

from .contexts import attribute
from .driver import call, version

__all__ = ["device_info", "find_device"]


def device_info(device_id: int) -> dict[str, object]:
    """Name, memory (bytes), UUID, PCI address, driver, compute capability, and abilities."""
    device = call("cuDeviceGet", device_id)
    number = version()
    return {
        "name": _text(call("cuDeviceGetName", 256, device)),
        "memory": int(call("cuDeviceTotalMem", device)),
        "uuid": f"GPU-{uuid.UUID(bytes=bytes(call('cuDeviceGetUuid', device).bytes))}",
        "pci": _text(call("cuDeviceGetPCIBusId", 32, device)),
        "driver": f"CUDA {number // 1000}.{number % 1000 // 10}",
        "host_memory_shared": bool(attribute(device_id, "INTEGRATED")),
        "compute_capability": f"{attribute(device_id, 'COMPUTE_CAPABILITY_MAJOR')}."
        f"{attribute(device_id, 'COMPUTE_CAPABILITY_MINOR')}",
        "multiprocessors": attribute(device_id, "MULTIPROCESSOR_COUNT"),
        "memory_pools": bool(attribute(device_id, "MEMORY_POOLS_SUPPORTED")),
        "concurrent_managed_access": bool(attribute(device_id, "CONCURRENT_MANAGED_ACCESS")),
        "reads_host_page_tables": bool(
            attribute(device_id, "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES")
        ),
    }


def find_device(name: str, count: int) -> int:
    """The first of *count* devices with *name* in its name, UUID or PCI address.

    LookupError lists the devices if there is none.
    """
    known = []
    for device_id in range(count):
        found = device_info(device_id)
        words = f"{found['name']} {found['uuid']} {found['pci']}"
        if name.casefold() in words.casefold():
            return device_id
        known.append(f"{device_id}: {words}")
    raise LookupError(f"no CUDA device is called {name!r}; there are {'; '.join(known)}")


def _text(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode("utf-8", "replace").strip()
