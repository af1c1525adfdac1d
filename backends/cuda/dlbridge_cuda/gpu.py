"""The CUDA driver as the parts of `dlbridge.kit` use it."""
# ruff: noqa: D102  # the methods are described in StreamDriver

from __future__ import annotations

from collections.abc import Mapping
from ctypes import Structure, addressof, c_int, c_uint, c_uint64, c_void_p
from functools import cache
from itertools import starmap
from typing import Any

from dlbridge.kit.driver import (
    ALL_STREAMS,
    LastingStream,
    Location,
    StreamDriver,
    StreamState,
)
from dlbridge.kit.events import EventPool
from dlbridge.kit.limits import pool_limit
from dlbridge.kit.regions import Side
from dlbridge.kit.status import StreamGoneError

from . import info, lasting
from .contexts import attribute, device_in_use, primary, run, run_somewhere
from .driver import call, check, cu, device_count, guard, status, table, version
from .raw import functions as cuda, give, take_back

__all__ = ["GPU", "LEGACY", "PER_THREAD", "default_pool", "events", "gpu"]

LEGACY, PER_THREAD = 1, 2
"""Handles of the default streams (``CU_STREAM_LEGACY``, ``CU_STREAM_PER_THREAD``). The driver's
0 means either, by a compile-time choice, and is never passed on from here."""

_CONTEXT_EVENTS = 12050  # the first driver with cuCtxRecordEvent
_RUNS = StreamState.RUNS
_IMPLICIT, _NOT_READY = 906, 600  # CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, CUDA_ERROR_NOT_READY
_PEER_ACCESS_ALREADY_ENABLED = 704


class _Attributes(Structure):
    """What is asked about an address (``CU_POINTER_ATTRIBUTE_...``), 8 bytes for each answer."""

    _fields_ = (
        ("memory", c_uint),  # MEMORY_TYPE
        ("_1", c_uint),
        ("ordinal", c_int),  # DEVICE_ORDINAL
        ("_2", c_uint),
        ("managed", c_uint),  # IS_MANAGED
        ("_3", c_uint),
        ("context", c_uint64),  # CONTEXT
    )


_ATTRIBUTES = (c_int * 4)(2, 9, 8, 1)
_Cells = c_void_p * 4
_KINDS = {0: "pageable", 1: "host", 2: "device"}  # CUmemorytype; 0: the driver does not know it


@cache
def default_pool(device_id: int) -> Any:
    """The device's default pool, told to keep what is freed; None if it has none.

    It keeps up to the user's limit (`pool_limit`), or everything. A release threshold of 0, the
    default, gives everything back to the system at each synchronisation. One that somebody else
    has set is left alone: the pool belongs to the whole process.
    """
    limit = min(pool_limit(2**64 - 1), 2**64 - 1)
    if not attribute(device_id, "MEMORY_POOLS_SUPPORTED"):
        return None
    pool = call("cuDeviceGetDefaultMemPool", call("cuDeviceGet", device_id))
    threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD

    def keep() -> None:
        if int(call("cuMemPoolGetAttribute", pool, threshold)) == 0:
            call("cuMemPoolSetAttribute", pool, threshold, cu.cuuint64_t(limit))

    run(primary(device_id), keep)
    return int(pool)


class GPU(StreamDriver):
    """The driver API; a place is a context."""

    api = "CUDA"
    memory_api = "the CUDA driver"
    device_name = "cuda"
    default_stream = LEGACY
    has_boxes = True
    table = table
    guard = guard

    # Places

    def device_count(self) -> int:
        return device_count()

    def device_info(self, device_id: int) -> Mapping[str, object]:
        return info.device_info(device_id)

    place = staticmethod(primary)
    run = staticmethod(run)  # type: ignore[assignment]  # mypy: a generic one is no T

    def place_of(self, stream: int, device_id: int) -> int:
        if stream <= PER_THREAD:
            return primary(device_id)
        cell = c_uint64()
        code = cuda.cuStreamGetCtx(stream, cell)
        if code:
            check("cuStreamGetCtx", code)
        return cell.value

    def stream_device(self, stream: int, device_id: int) -> int | None:
        context = self.place_of(stream, device_id)
        if context == primary(device_id):
            return device_id
        found = int(run(context, call, "cuCtxGetDevice"))
        return found if context == primary(found) else None

    def is_lasting(self, place: Any) -> bool:
        return int(primary(int(call("cuCtxGetDevice")))) == int(place)

    def host_device(self) -> int:
        return device_in_use()

    # Capture

    def stream_state(self, stream: int) -> StreamState:
        if stream == ALL_STREAMS:
            return StreamState.BLOCKED if lasting.is_capture_known() else StreamState.RUNS
        captured = c_int()
        code = cuda.cuStreamIsCapturing(stream, captured)
        if code == _IMPLICIT:
            return StreamState.BLOCKED
        if code == 0 and captured.value:
            return StreamState.CAPTURED
        return _RUNS  # any other error is the next call's to report

    # Streams

    def keeper(self, stream: int, device_id: int) -> object:
        return True if stream <= PER_THREAD else lasting.owner(stream)

    def require_stream(self, stream: int, device_id: int) -> None:
        """Nothing: who passes a stream says that it exists, and the driver cannot be asked."""

    def stream_id(self, stream: int, device_id: int) -> int | None:
        is_known = stream > PER_THREAD and lasting.has_owner(stream)
        return int(call("cuStreamGetId", stream)) if is_known else None

    def lasting(self, stream: int, device_id: int) -> LastingStream:
        return lasting.lasting(stream, device_id)

    def all_threads(self, stream: int) -> int:
        # The driver orders the legacy stream after every thread's own default stream (CUDA
        # driver API, "Stream synchronization behavior").
        return LEGACY if stream == PER_THREAD else stream

    def wait_for_stream(self, stream: int) -> None:
        code = cuda.cuStreamSynchronize(stream)
        if code:
            check("cuStreamSynchronize", code)

    def is_idle(self, stream: int) -> bool:
        return _is_ready("cuStreamQuery", cuda.cuStreamQuery(stream))

    def wait_for_device(self) -> None:
        call("cuCtxSynchronize")

    # Events

    def create_event(self) -> int:
        return int(call("cuEventCreate", cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))

    def destroy_event(self, event: Any) -> None:
        call("cuEventDestroy", event)

    def record_event(self, event: Any, stream: int) -> None:
        if stream == ALL_STREAMS:
            if version() < _CONTEXT_EVENTS:
                raise StreamGoneError("CUDA 12.5 is the first with an event behind all streams")
            call("cuCtxRecordEvent", call("cuCtxGetCurrent"), event)
        else:
            code = cuda.cuEventRecord(event, stream)
            if code:
                check("cuEventRecord", code)

    def wait_event(self, stream: int, event: Any) -> None:
        code = cuda.cuStreamWaitEvent(stream, event, 0)
        if code:
            check("cuStreamWaitEvent", code)

    def wait_for_event(self, event: Any) -> None:
        code = cuda.cuEventSynchronize(event)
        if code:
            check("cuEventSynchronize", code)

    def is_event_done(self, event: Any) -> bool:
        return _is_ready("cuEventQuery", cuda.cuEventQuery(event))

    # Memory

    def room(self) -> tuple[int, int]:
        free, total = call("cuMemGetInfo")
        return int(free), int(total)

    def allocate(self, nbytes: int, cell: c_uint64) -> None:
        give("cuMemAlloc", cell, nbytes)

    def free(self, pointer: int, codes: list[int]) -> None:
        take_back("cuMemFree", codes, pointer)

    pool = staticmethod(default_pool)

    def allocate_async(self, pool: Any, nbytes: int, stream: int, cell: c_uint64) -> None:
        # Not cuMemAllocAsync: it takes the pool of the stream's device.
        code = cuda.cuMemAllocFromPoolAsync(cell, nbytes, pool, stream)
        if code:
            cell.value = 0
            check("cuMemAllocFromPoolAsync", code)

    def free_async(self, pointer: int, stream: int, codes: list[int]) -> None:
        codes.extend(starmap(cuda.cuMemFreeAsync, ((pointer, stream),)))
        if codes[-1]:
            check("cuMemFreeAsync", codes[-1])

    def trim_pool(self, pool: Any) -> None:
        call("cuMemPoolTrimTo", pool, 0)

    def allocate_pinned(self, nbytes: int, cell: c_uint64) -> None:
        flags = cu.CU_MEMHOSTALLOC_PORTABLE | cu.CU_MEMHOSTALLOC_DEVICEMAP
        give("cuMemHostAlloc", cell, nbytes, flags)

    def free_pinned(self, pointer: int, codes: list[int]) -> None:
        take_back("cuMemFreeHost", codes, pointer)

    cannot_lock = frozenset({1, 2, 304, 712, 801})
    """Statuses of cuMemHostRegister for memory that cannot be locked: CUDA_ERROR_INVALID_VALUE
    (read-only pages, file mappings), OUT_OF_MEMORY (the limit of locked memory), OPERATING_SYSTEM,
    HOST_MEMORY_ALREADY_REGISTERED, NOT_SUPPORTED."""

    def lock_pages(
        self, device_id: int, address: int, nbytes: int, readonly: bool, codes: list[int]
    ) -> None:
        flags = cu.CU_MEMHOSTREGISTER_PORTABLE | cu.CU_MEMHOSTREGISTER_DEVICEMAP
        if readonly and attribute(device_id, "READ_ONLY_HOST_REGISTER_SUPPORTED"):
            flags |= cu.CU_MEMHOSTREGISTER_READ_ONLY
        take_back("cuMemHostRegister", codes, address, nbytes, flags)

    def unlock_pages(self, address: int, codes: list[int]) -> None:
        take_back("cuMemHostUnregister", codes, address)

    def locate(self, address: int, device_id: int) -> Location:
        """One call for four attributes."""
        own = c_uint64()
        code = cuda.cuCtxGetCurrent(own)
        if code:
            check("cuCtxGetCurrent", code)
        if not own.value:
            return run_somewhere(device_id, self._locate, address)
        return self._locate(address)

    def _locate(self, address: int) -> Location:
        values = _Attributes()
        start = addressof(values)
        cells = _Cells(start, start + 8, start + 16, start + 24)
        code = cuda.cuPointerGetAttributes(4, _ATTRIBUTES, cells, address)
        if code:
            check("cuPointerGetAttributes", code)
        kind = "managed" if values.managed else _KINDS.get(values.memory, "pageable")
        found, context, refusal = values.ordinal, values.context, ""
        if kind == "device" and context and context != primary(found):  # 0: pool memory
            refusal = (
                "belongs to a CUDA context of its exporter's own, not to the primary context of "
                f"device {found}; copy it through the host, or make the exporter use the primary "
                "context"
            )
        return Location(kind, found, refusal)

    def reads_pageable(self, device_id: int) -> bool:
        return bool(attribute(device_id, "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES"))

    # Copies

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        code = cuda.cuMemcpyAsync(target, source, nbytes, stream)
        if code:
            check("cuMemcpyAsync", code)

    def copy_from_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        code = cuda.cuMemcpyHtoDAsync(target, source, nbytes, stream)
        if code:
            check("cuMemcpyHtoDAsync", code)

    def copy_to_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        code = cuda.cuMemcpyDtoHAsync(target, source, nbytes, stream)
        if code:
            check("cuMemcpyDtoHAsync", code)

    def copy_peer(
        self, device_id: int, target: int, source_id: int, source: int, nbytes: int, stream: int
    ) -> None:
        _let_see(device_id, source_id)
        contexts = primary(device_id), primary(source_id)
        call("cuMemcpyPeerAsync", target, contexts[0], source, contexts[1], nbytes, stream)

    def fill(self, target: int, value: int, nbytes: int, stream: int) -> None:
        code = cuda.cuMemsetD8Async(target, value, nbytes, stream)
        if code:
            check("cuMemsetD8Async", code)

    def max_pitch(self, device_id: int) -> int:
        return attribute(device_id, "MAX_PITCH")

    def copy_rectangle(
        self, target: Side, source: Side, height: int, width: int, stream: int
    ) -> None:
        region = cu.CUDA_MEMCPY2D()
        _describe(region, target, source, height, width)
        call("cuMemcpy2DAsync", region, stream)

    def copy_box(
        self, target: Side, source: Side, depth: int, height: int, width: int, stream: int
    ) -> None:
        region = cu.CUDA_MEMCPY3D()
        region.Depth = depth
        region.srcHeight = source.strides[0] // source.strides[1]
        region.dstHeight = target.strides[0] // target.strides[1]
        _describe(region, target, source, height, width)
        call("cuMemcpy3DAsync", region, stream)


gpu = GPU()
events = EventPool(gpu)
"""The events of all backends of this package."""


@cache
def _let_see(device_id: int, source_id: int) -> None:
    """Let *device_id* read memory of *source_id*, pool memory too; no harm if it cannot."""
    if not int(call("cuDeviceCanAccessPeer", device_id, source_id)):
        return
    run(primary(device_id), _enable_peer, device_id, source_id)


def _enable_peer(device_id: int, source_id: int) -> None:
    code, _ = status("cuCtxEnablePeerAccess", primary(source_id), 0)
    if code not in (0, _PEER_ACCESS_ALREADY_ENABLED) or not attribute(
        source_id, "MEMORY_POOLS_SUPPORTED"
    ):
        return  # too many peers: the copy works all the same, through the host
    access = cu.CUmemAccessDesc()
    access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = device_id
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    pool = call("cuDeviceGetDefaultMemPool", call("cuDeviceGet", source_id))
    call("cuMemPoolSetAccess", pool, [access], 1)


def _is_ready(function: str, code: int) -> bool:
    """What the status *code* of a question about an event or a stream says."""
    if code != _NOT_READY:
        check(function, code)
    return code == 0


def _describe(region: Any, target: Side, source: Side, height: int, width: int) -> None:
    host, device = cu.CUmemorytype.CU_MEMORYTYPE_HOST, cu.CUmemorytype.CU_MEMORYTYPE_UNIFIED
    region.WidthInBytes, region.Height = width, height
    region.srcPitch, region.dstPitch = source.strides[-1], target.strides[-1]
    if source.on_host:
        region.srcMemoryType, region.srcHost = host, source.address
    else:
        region.srcMemoryType, region.srcDevice = device, source.address
    if target.on_host:
        region.dstMemoryType, region.dstHost = host, target.address
    else:
        region.dstMemoryType, region.dstDevice = device, target.address
