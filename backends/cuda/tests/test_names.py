"""The table of names, numbers and structures, against those of NVIDIA's own bindings."""

import ctypes
import re
from pathlib import Path

import pytest
from cuda.bindings import driver as cu
from dlbridge_cuda import driver, external, gpu

from dlbridge.kit import driver as kit

PACKAGE = Path(driver.__file__).parent


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (kit._RELAXED, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED),
        (kit._DISABLE_TIMING, cu.CUevent_flags.CU_EVENT_DISABLE_TIMING),
        (kit._RELEASE_THRESHOLD, cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD),
        (kit._DEVICE, cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE),
        (kit._READ_WRITE, cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
        (kit._FOR_ALL | kit._MAPPED, cu.CU_MEMHOSTALLOC_PORTABLE | cu.CU_MEMHOSTALLOC_DEVICEMAP),
        (3, cu.CU_MEMHOSTREGISTER_PORTABLE | cu.CU_MEMHOSTREGISTER_DEVICEMAP),
        (gpu._READ_ONLY, cu.CU_MEMHOSTREGISTER_READ_ONLY),
        (gpu._NON_BLOCKING, cu.CUstream_flags.CU_STREAM_NON_BLOCKING),
        (gpu._HOST, cu.CUmemorytype.CU_MEMORYTYPE_HOST),
        (gpu._UNIFIED, cu.CUmemorytype.CU_MEMORYTYPE_UNIFIED),
        (external._FILE, cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        (external._PINNED, cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED),
        (kit.NOT_SUPPORTED, cu.CUresult.CUDA_ERROR_NOT_SUPPORTED),
        (kit.NOT_READY, cu.CUresult.CUDA_ERROR_NOT_READY),
        (kit.IMPLICIT, cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
        (kit._ALREADY_ENABLED, cu.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
    ],
)
def test_numbers(ours, theirs):
    assert ours == int(theirs)


def location(obj, number):
    obj.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    obj.location.id = number


def rectangle(obj):
    obj.srcXInBytes, obj.srcY, obj.srcHost, obj.srcDevice, obj.srcPitch = 1, 2, 3, 4, 5
    obj.dstXInBytes, obj.dstY, obj.dstHost, obj.dstDevice, obj.dstPitch = 6, 7, 8, 9, 10
    obj.srcMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_HOST
    obj.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_UNIFIED
    obj.WidthInBytes, obj.Height = 11, 12


def box(obj):
    rectangle(obj)
    obj.srcZ, obj.srcLOD, obj.srcHeight, obj.dstZ, obj.dstLOD, obj.dstHeight = range(13, 19)
    obj.Depth = 19


def access(obj):
    location(obj, 5)
    obj.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE


def properties(obj):
    location(obj, 6)
    obj.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    obj.requestedHandleTypes = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def external_memory(obj):
    obj.type = cu.CUexternalMemoryHandleType.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
    obj.size, obj.handle.fd = 1 << 40, 77


def external_buffer(obj):
    obj.offset, obj.size = 3, 1 << 40


@pytest.mark.parametrize(
    ("ours", "theirs", "fill"),
    [
        (
            driver.Rectangle(1, 2, 1, 3, 4, 0, 5, 6, 7, 4, 8, 9, 0, 10, 11, 12),
            "CUDA_MEMCPY2D",
            rectangle,
        ),
        (
            driver.Box(
                *(1, 2, 13, 14, 1, 3, 4, 0, 0, 5, 15),
                *(6, 7, 16, 17, 4, 8, 9, 0, 0, 10, 18),
                *(11, 12, 19),
            ),
            "CUDA_MEMCPY3D",
            box,
        ),
        (driver.Access(1, 5, 3), "CUmemAccessDesc", access),
        (kit._Access(1, 5, 3), "CUmemAccessDesc", access),
        (driver.MemoryProperties(1, 1, 1, 6), "CUmemAllocationProp", properties),
        (
            driver.ExternalMemory.make(77, 1 << 40),
            "CUDA_EXTERNAL_MEMORY_HANDLE_DESC",
            external_memory,
        ),
        (
            driver.ExternalBuffer(3, 1 << 40),
            "CUDA_EXTERNAL_MEMORY_BUFFER_DESC",
            external_buffer,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_structures_are_laid_out_as_theirs(ours, theirs, fill):
    """The same bytes for the same values."""
    obj = getattr(cu, theirs)()
    fill(obj)
    assert bytes(ours) == ctypes.string_at(obj.getPtr(), ctypes.sizeof(ours))


def test_every_function_is_of_the_driver(fake):
    """By their names without a version, and each has a signature and a user."""
    signatures = {**kit._SIGNATURES, **driver.SIGNATURES}
    assert set(driver.NAMES) == set(driver.NAMES) & set(signatures)
    for symbol in driver.NAMES.values():
        assert hasattr(cu, re.sub(r"_v\d+$", "", symbol)), symbol
        assert hasattr(driver.library(), symbol), symbol
    sources = [*PACKAGE.glob("[!d]*.py"), *Path(kit.__file__).parent.glob("*.py")]
    source = re.sub(
        r"^    \"\w+\": .*$", "", "\n".join(map(Path.read_text, sources)), flags=re.MULTILINE
    )
    used = set(re.findall(r"(?:functions\.|\")(\w+)", source))
    assert set(driver.NAMES) - used == set()
