"""The description of a device."""

from __future__ import annotations

import uuid

from .contexts import attribute
from .driver import call, version

__all__ = ["device_info"]


def device_info(device_id: int) -> dict[str, object]:
    """Name, memory (bytes), UUID, PCI address, driver, compute capability, and abilities."""
    device = call("cuDeviceGet", device_id)
    number = version()
    name = _text(call("cuDeviceGetName", 256, device))
    kind = "MIG" if " MIG " in name else "GPU"  # a slice has a UUID of its own, so written
    return {
        "name": name,
        "memory": int(call("cuDeviceTotalMem", device)),
        "uuid": f"{kind}-{uuid.UUID(bytes=bytes(call('cuDeviceGetUuid', device).bytes))}",
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


def _text(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode("utf-8", "replace").strip()
