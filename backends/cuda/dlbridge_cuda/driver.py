"""The CUDA driver's library, and its names, numbers and structures (``cuda.h``).

Only the driver API is used: it is shared by every CUDA library of the process, where each may
bring a runtime of its own. NVIDIA's cuda-python finds the library and knows the numbers. The
functions are called by ctypes, which has C write what they give into memory of ours: those of
``cuda.bindings`` return tuples, and a signal's exception between the call and the assignment
loses what is in them (375 of 644 such exceptions did). ``cuda.core`` aborts the process when a
daemon thread is inside it while Python ends (six of six).
"""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_ushort, c_void_p
from functools import cache

from cuda.bindings import driver as cu
from cuda.pathfinder import load_nvidia_dynamic_lib

from dlbridge.errors import BackendUnavailable

if getattr(cu, "HIP_PYTHON", False):  # its numbers are HIP's, and many names are missing
    raise BackendUnavailable(
        "no CUDA bindings: the package cuda.bindings that is here calls HIP, and is of "
        "hip-python-interop; for AMD's GPUs take dlbridge-rocm, for NVIDIA's `pip uninstall "
        "hip-python-interop`, then `pip install --force-reinstall cuda-bindings`"
    )

MINIMUM_VERSION = 12000
"""The oldest driver API that has every function used here under its present
name and layout (``cuDriverGetVersion``: 1000 * major + 10 * minor)."""


@cache  # only success is kept: a driver may be installed later
def library() -> ctypes.CDLL:
    """The library that every user of CUDA in the process has."""
    try:
        path = load_nvidia_dynamic_lib("cuda").abs_path
    except RuntimeError as exc:  # DynamicLibNotFoundError
        raise BackendUnavailable(
            "no CUDA driver: libcuda could not be loaded; install NVIDIA's driver "
            "(inside a container, start it with GPU support)"
        ) from exc
    return ctypes.CDLL(path)


NAMES = {
    "init": "cuInit",
    "version": "cuDriverGetVersion",
    "count_devices": "cuDeviceGetCount",
    "get_device": "cuDeviceGet",
    "get_attribute": "cuDeviceGetAttribute",
    "get_name": "cuDeviceGetName",
    "get_pci": "cuDeviceGetPCIBusId",
    "get_uuid": "cuDeviceGetUuid_v2",
    "get_memory": "cuDeviceTotalMem_v2",
    "get_error_name": "cuGetErrorName",
    "get_error_text": "cuGetErrorString",
    "get_context": "cuCtxGetCurrent",
    "set_context": "cuCtxSetCurrent",
    "get_context_device": "cuCtxGetDevice",
    "retain": "cuDevicePrimaryCtxRetain",
    "get_state": "cuDevicePrimaryCtxGetState",
    "exchange_capture_mode": "cuThreadExchangeStreamCaptureMode",
    "can_access_peer": "cuDeviceCanAccessPeer",
    "enable_peer": "cuCtxEnablePeerAccess",
    "wait_for_device": "cuCtxSynchronize",
    "get_room": "cuMemGetInfo_v2",
    "allocate": "cuMemAlloc_v2",
    "allocate_managed": "cuMemAllocManaged",
    "free": "cuMemFree_v2",
    "allocate_async": "cuMemAllocFromPoolAsync",
    "free_async": "cuMemFreeAsync",
    "get_pool": "cuDeviceGetDefaultMemPool",
    "get_pool_attribute": "cuMemPoolGetAttribute",
    "set_pool_attribute": "cuMemPoolSetAttribute",
    "set_pool_access": "cuMemPoolSetAccess",
    "trim_pool": "cuMemPoolTrimTo",
    "allocate_pinned": "cuMemHostAlloc",
    "free_pinned": "cuMemFreeHost",
    "lock_pages": "cuMemHostRegister_v2",
    "unlock_pages": "cuMemHostUnregister",
    "locate": "cuPointerGetAttributes",
    "copy": "cuMemcpyAsync",
    "copy_from_host": "cuMemcpyHtoDAsync_v2",
    "copy_to_host": "cuMemcpyDtoHAsync_v2",
    "copy_peer": "cuMemcpyPeerAsync",
    "copy_rectangle": "cuMemcpy2DAsync_v2",
    "copy_box": "cuMemcpy3DAsync_v2",
    "fill": "cuMemsetD8Async",
    "wait_for_stream": "cuStreamSynchronize",
    "query_stream": "cuStreamQuery",
    "wait_event": "cuStreamWaitEvent",
    "is_capturing": "cuStreamIsCapturing",
    "get_stream_context": "cuStreamGetCtx",
    "get_stream_flags": "cuStreamGetFlags",
    "create_event": "cuEventCreate",
    "destroy_event": "cuEventDestroy_v2",
    "record_event": "cuEventRecord",
    "record_all": "cuCtxRecordEvent",
    "query_event": "cuEventQuery",
    "wait_for_event": "cuEventSynchronize",
    "get_granularity": "cuMemGetAllocationGranularity",
    "create": "cuMemCreate",
    "release": "cuMemRelease",
    "export": "cuMemExportToShareableHandle",
    "open": "cuMemImportFromShareableHandle",
    "reserve": "cuMemAddressReserve",
    "unreserve": "cuMemAddressFree",
    "map": "cuMemMap",
    "unmap": "cuMemUnmap",
    "set_access": "cuMemSetAccess",
    "open_external": "cuImportExternalMemory",
    "map_external": "cuExternalMemoryGetMappedBuffer",
    "close_external": "cuDestroyExternalMemory",
}
"""Function of `dlbridge.kit.driver.StreamDriver` -> its symbol in the library."""

SIGNATURES = {
    "get_device": "Ii",
    "get_error_name": "ih",
    "get_error_text": "ih",
    "get_context_device": "I",
    "retain": "Pi",
    "get_state": "iII",
    "allocate_managed": "Pnu",
    "locate": "uhhh",
    "copy_rectangle": "hh",
    "copy_box": "hh",
    "get_stream_context": "hP",
    "get_stream_flags": "hI",
    "record_all": "ph",
    "get_granularity": "Phi",
    "create": "Pnhq",
    "release": "h",
    "export": "hhiq",
    "open": "Phi",
    "reserve": "Pnnhq",
    "unreserve": "hn",
    "map": "hnnhq",
    "unmap": "hn",
    "set_access": "hnhn",
    "open_external": "Ph",
    "map_external": "Phh",
    "close_external": "h",
}
"""Letters as in `dlbridge.kit.driver`."""

ATTRIBUTES = {
    name: int(getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{theirs or name.upper()}"))
    for name, theirs in {
        "max_pitch": "",
        "multiprocessor_count": "",
        "integrated": "",
        "compute_capability_major": "",
        "compute_capability_minor": "",
        "managed_memory": "",
        "concurrent_managed": "CONCURRENT_MANAGED_ACCESS",
        "reads_host_page_tables": "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES",
        "files": "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
        "locks_read_only": "READ_ONLY_HOST_REGISTER_SUPPORTED",
        "memory_pools": "MEMORY_POOLS_SUPPORTED",
    }.items()
}
"""What is asked of a device -> its ``CU_DEVICE_ATTRIBUTE_...``."""

_ASKED = ("MEMORY_TYPE", "DEVICE_ORDINAL", "IS_MANAGED", "CONTEXT")


class PointerAttributes(Structure):
    """What is asked about an address (``CU_POINTER_ATTRIBUTE_...``), 8 bytes for each answer."""

    ASKED = (c_int * 4)(
        *(int(getattr(cu.CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}")) for name in _ASKED)
    )
    Cells = c_void_p * 4
    _fields_ = (
        ("memory", c_uint),  # MEMORY_TYPE
        ("_1", c_uint),
        ("ordinal", c_int),  # DEVICE_ORDINAL
        ("_2", c_uint),
        ("managed", c_uint),  # IS_MANAGED
        ("_3", c_uint),
        ("context", c_uint64),  # CONTEXT
    )


def _side(end: str, *deep: str) -> list[tuple[str, type]]:
    sizes = [f"{end}XInBytes", f"{end}Y", *(f"{end}{each}" for each in deep)]
    return [
        *((name, c_size_t) for name in sizes),
        (f"{end}MemoryType", c_int),
        *((f"{end}{each}", c_uint64) for each in ("Host", "Device", "Array")),
        *([(f"{end}Reserved", c_uint64)] if deep else []),
        (f"{end}Pitch", c_size_t),
        *([(f"{end}Height", c_size_t)] if deep else []),
    ]


class Rectangle(Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (*_side("src"), *_side("dst"), ("WidthInBytes", c_size_t), ("Height", c_size_t))


class Box(Structure):
    """CUDA_MEMCPY3D."""

    _fields_ = (
        *_side("src", "Z", "LOD"),
        *_side("dst", "Z", "LOD"),
        *((each, c_size_t) for each in ("WidthInBytes", "Height", "Depth")),
    )


class Access(Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location_type", c_int), ("location_id", c_int), ("flags", c_int))


class MemoryProperties(Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", c_int),
        ("requestedHandleTypes", c_int),
        ("location_type", c_int),
        ("location_id", c_int),
        ("win32HandleMetaData", c_void_p),
        ("compressionType", c_ubyte),
        ("gpuDirectRDMACapable", c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 4),
    )


class ExternalMemory(Structure):
    """CUDA_EXTERNAL_MEMORY_HANDLE_DESC; the handle is a file descriptor."""

    _fields_ = (
        ("type", c_int),
        ("fd", c_int * 5),  # a union that begins at a multiple of 8: see `make`
        ("size", c_uint64),
        ("flags", c_uint),
        ("reserved", c_uint * 16),
    )

    @classmethod
    def make(cls, fd: int, nbytes: int) -> ExternalMemory:
        """The memory of *nbytes* behind an opaque POSIX file descriptor."""
        made = cls(type=1, size=nbytes)  # CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
        made.fd[1] = fd
        return made


class ExternalBuffer(Structure):
    """CUDA_EXTERNAL_MEMORY_BUFFER_DESC."""

    _fields_ = (
        ("offset", c_uint64),
        ("size", c_uint64),
        ("flags", c_uint),
        ("reserved", c_uint * 16),
    )
