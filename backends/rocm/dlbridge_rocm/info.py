"""The description of a device."""

from __future__ import annotations

import string
import uuid

from .devices import attribute
from .driver import answer, call, version
from .library import ffi, loaded_already

__all__ = ["device_info"]

_HEX = frozenset(string.hexdigits.encode())


def device_info(device_id: int) -> dict[str, object]:
    """Name, memory (bytes), UUID, PCI address, driver, architecture number, and abilities.

    ``hipDeviceProp_t`` would tell more, but its layout changes between
    versions of HIP.
    """
    major, minor = version()
    return {
        "name": _text("hipDeviceGetName", 256, device_id),
        "memory": int(answer("hipDeviceTotalMem", "size_t", device_id)),
        "uuid": _uuid(bytes(ffi.buffer(answer("hipDeviceGetUuid", "hipUUID", device_id).bytes))),
        "pci": _text("hipDeviceGetPCIBusId", 32, device_id),
        "driver": f"HIP {major}.{minor}",
        "library": ", ".join(loaded_already()),  # two would not know each other's memory
        "host_memory_shared": bool(attribute(device_id, "Integrated")),
        "compute_capability": f"{attribute(device_id, 'ComputeCapabilityMajor')}."
        f"{attribute(device_id, 'ComputeCapabilityMinor')}",
        "multiprocessors": attribute(device_id, "MultiprocessorCount"),
        "warp_size": attribute(device_id, "WarpSize"),
        "memory_pools": bool(attribute(device_id, "MemoryPoolsSupported")),
        "concurrent_managed_access": bool(attribute(device_id, "ConcurrentManagedAccess")),
        "pageable_memory_access": bool(attribute(device_id, "PageableMemoryAccess")),
    }


def _text(function: str, size: int, device_id: int) -> str:
    text = ffi.new("char[]", size)
    call(function, text, size, device_id)
    return str(ffi.string(text).decode("utf-8", "replace").strip())


def _uuid(raw: bytes) -> str:
    """Format a UUID as ``rocm-smi`` does: AMD's runtime gives 16 characters, others 16 bytes."""
    if set(raw) <= _HEX:
        return f"GPU-{raw.decode()}"
    return f"GPU-{uuid.UUID(bytes=raw)}"
