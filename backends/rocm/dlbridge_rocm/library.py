"""Finds and opens libamdhip64, the HIP runtime, and has its names, numbers and structures.

Two HIP runtimes in one process do not know each other's streams and memory, so
one that is loaded already (torch's wheels for ROCm bring their own) is used
before any other is opened. ``hip-python`` (10.0) is not used: it opened the system's beside the
one that was loaded, and gives tuples, as ``cuda.bindings`` does.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Iterator
from ctypes import Structure, c_int, c_uint, c_void_p
from functools import cache
from pathlib import Path

from dlbridge.errors import BackendUnavailable

MINIMUM_VERSION = (5, 0)
"""The oldest HIP that has every function used here, or an answer without it."""

NAMES = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so")
"""Names that the loader is asked for in the end, newest first; the last is that of a
development package, and of ROCm's own wheels."""

_MAPS = Path("/proc/self/maps")


@cache  # only success is kept: ROCm may be installed, or torch imported, later
def load() -> ctypes.CDLL:
    """The HIP runtime, opened at the first call and never closed.

    BackendUnavailable, with every path that was tried, if there is none.
    """
    attempts = []
    for candidate in candidates():
        try:
            return ctypes.CDLL(candidate)
        except OSError as exc:
            attempts.append(f"{candidate} ({exc})")
    raise BackendUnavailable(
        f"no HIP runtime: tried {'; '.join(attempts)}. Install ROCm (Debian, Ubuntu: apt install "
        "libamdhip64-5; or AMD's packages), or set ROCM_PATH to where it is"
    )


def candidates() -> Iterator[str]:
    """Give the paths where a runtime may be, in the order in which they are tried."""
    yield from loaded_already()
    if os.environ.get("ROCM_PATH"):
        yield str(Path(os.environ["ROCM_PATH"], "lib", "libamdhip64.so"))
    yield from _rocm_sdk()
    yield from NAMES


def loaded_already() -> list[str]:
    """The paths of the HIP runtimes in this process, as the kernel maps them."""
    if not _MAPS.exists():
        return []
    lines = (line.split(None, 5) for line in _MAPS.read_text().splitlines())
    paths = (fields[5] for fields in lines if len(fields) == 6)
    return list(dict.fromkeys(path for path in paths if Path(path).name.startswith("libamdhip64")))


def _rocm_sdk() -> list[str]:
    """The runtime of ROCm's own wheels, asked from their package ``rocm_sdk`` if it is there."""
    try:
        paths = importlib.import_module("rocm_sdk").find_libraries("amdhip64")
    except Exception:  # not installed, or broken: then the next path
        return []
    return [str(path) for path in paths]


FUNCTIONS = {
    "version": "hipRuntimeGetVersion",
    "count_devices": "hipGetDeviceCount",
    "get_attribute": "hipDeviceGetAttribute",
    "get_name": "hipDeviceGetName",
    "get_pci": "hipDeviceGetPCIBusId",
    "get_uuid": "hipDeviceGetUuid",
    "get_memory": "hipDeviceTotalMem",
    "get_last_error": "hipGetLastError",
    "get_context": "hipGetDevice",
    "set_context": "hipSetDevice",
    "exchange_capture_mode": "hipThreadExchangeStreamCaptureMode",
    "can_access_peer": "hipDeviceCanAccessPeer",
    "enable_peer": "hipDeviceEnablePeerAccess",
    "wait_for_device": "hipDeviceSynchronize",
    "get_room": "hipMemGetInfo",
    "allocate": "hipMalloc",
    "free": "hipFree",
    "allocate_async": "hipMallocFromPoolAsync",
    "free_async": "hipFreeAsync",
    "get_pool": "hipDeviceGetDefaultMemPool",
    "get_pool_attribute": "hipMemPoolGetAttribute",
    "set_pool_attribute": "hipMemPoolSetAttribute",
    "set_pool_access": "hipMemPoolSetAccess",
    "trim_pool": "hipMemPoolTrimTo",
    "allocate_pinned": "hipHostMalloc",
    "free_pinned": "hipHostFree",
    "lock_pages": "hipHostRegister",
    "unlock_pages": "hipHostUnregister",
    "get_device_pointer": "hipHostGetDevicePointer",
    "locate": "hipPointerGetAttributes",
    "copy": "hipMemcpyAsync",
    "copy_peer": "hipMemcpyPeerAsync",
    "copy_rectangle": "hipMemcpy2DAsync",
    "fill": "hipMemsetAsync",
    "wait_for_stream": "hipStreamSynchronize",
    "query_stream": "hipStreamQuery",
    "wait_event": "hipStreamWaitEvent",
    "is_capturing": "hipStreamIsCapturing",
    "get_stream_device": "hipStreamGetDevice",  # since HIP 5.6
    "create_event": "hipEventCreateWithFlags",
    "destroy_event": "hipEventDestroy",
    "record_event": "hipEventRecord",
}
"""Function of `dlbridge.kit.driver.StreamDriver` -> its symbol in the library.

Every value here and below is the same in HIP 5.2, 6 and 7 unless a comment says otherwise.
"""

SIGNATURES = {
    "get_last_error": "",
    "get_device_pointer": "Phu",
    "locate": "hh",
    "copy": "hhnih",
    "copy_rectangle": "hnhnnnih",
    "get_stream_device": "hI",
}
"""Letters as in `dlbridge.kit.driver`."""

ATTRIBUTES = {
    "concurrent_managed": 9,  # ConcurrentManagedAccess
    "integrated": 16,
    "compute_capability_major": 23,
    "max_pitch": 58,
    "compute_capability_minor": 61,
    "multiprocessor_count": 63,
    "pageable_memory_access": 65,
    "warp_size": 87,
    "memory_pools": 88,  # MemoryPoolsSupported
}
"""What is asked of a device -> its ``hipDeviceAttribute...``."""


class PointerAttributes(Structure):
    """hipPointerAttribute_t."""

    _fields_ = (
        ("type", c_int),  # a hipMemoryType, which HIP 6 renumbered; `memoryType` in HIP 5
        ("device", c_int),
        ("devicePointer", c_void_p),
        ("hostPointer", c_void_p),
        ("isManaged", c_int),
        ("allocationFlags", c_uint),
    )
