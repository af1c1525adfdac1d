"""The HIP runtime as the parts of `dlbridge.kit` use it."""
# ruff: noqa: D102  # the methods are described in StreamDriver

from __future__ import annotations

from collections.abc import Mapping
from ctypes import c_uint64
from functools import cache
from typing import Any

from dlbridge.errors import ExchangeError
from dlbridge.kit.driver import Location, StreamDriver, StreamState, WrongDeviceError
from dlbridge.kit.events import EventPool
from dlbridge.kit.limits import pool_limit
from dlbridge.kit.regions import Side
from dlbridge.kit.status import NoPoolError, StreamGoneError

from . import info
from .devices import attribute, run
from .driver import (
    INVALID_VALUE,
    NOT_READY,
    NOT_SUPPORTED,
    answer,
    call,
    check,
    device_count,
    give,
    guard,
    status,
    table,
    take_back,
    version,
)
from .library import constant, ffi

__all__ = ["GPU", "default_pool", "events", "gpu", "without_pool"]

_IMPLICIT = 906  # hipErrorStreamCaptureImplicit
_DESTROYED = frozenset({400, 709, INVALID_VALUE})
"""Statuses for a stream that was destroyed: hipErrorInvalidHandle,
hipErrorContextIsDestroyed, hipErrorInvalidValue."""

# hipMemoryType to kinds of `Location`. HIP 6 renumbered it (hip_runtime_api.h); what is not listed
# (arrays) does not belong in a tensor. HIP 5 has no type of managed memory.
_KINDS_5 = {0: "host", 1: "device", 3: "managed"}
_KINDS_6 = {0: "pageable", 1: "host", 2: "device", 3: "managed", 11: "managed"}

without_pool: set[int] = set()
"""Devices that have hipMallocFromPoolAsync, and refuse it."""


class GPU(StreamDriver):
    """The HIP runtime; a place is a device.

    The newest runtimes read the handle of a stream unchecked in hipStreamIsCapturing and in
    allocations, but not in hipStreamGetDevice; so that is asked before each use.
    """

    api = "HIP"
    memory_api = "the HIP runtime"
    device_name = "rocm"
    default_stream = 0
    table = table
    guard = guard

    # Places

    def device_count(self) -> int:
        return device_count()

    def device_info(self, device_id: int) -> Mapping[str, object]:
        return info.device_info(device_id)

    def place(self, device_id: int) -> int:
        return device_id

    run = staticmethod(run)  # type: ignore[assignment]  # mypy: a generic one is no T

    def place_of(self, stream: int, device_id: int) -> int:
        home = _device_of(stream, device_id)
        if home is None:
            raise StreamGoneError(f"stream {stream:#x} was destroyed, or is not a HIP stream")
        return home

    # Capture

    def stream_state(self, stream: int) -> StreamState:
        captured = ffi.new("hipStreamCaptureStatus *")
        code = status("hipStreamIsCapturing", stream, captured)
        if code == _IMPLICIT:
            return StreamState.BLOCKED
        if code == 0 and captured[0] != constant("hipStreamCaptureStatusNone"):
            return StreamState.CAPTURED
        return StreamState.RUNS  # any other error is the next call's to report

    # Streams

    def keeper(self, stream: int, device_id: int) -> object:
        return None if _device_of(stream, device_id) is None else True

    def stream_id(self, stream: int, device_id: int) -> int | None:
        if stream == 0:
            return None
        found = ffi.new("unsigned long long *")
        code = status("hipStreamGetId", stream, found)
        if code == NOT_SUPPORTED:  # before HIP 7
            return None
        check("hipStreamGetId", code)
        return int(found[0])

    def wait_for_stream(self, stream: int) -> None:
        if self.keeper(stream, 0) is None:
            raise StreamGoneError(f"stream {stream:#x} was destroyed")
        call("hipStreamSynchronize", stream)

    def is_idle(self, stream: int) -> bool:
        return _is_ready("hipStreamQuery", stream)

    def wait_for_device(self) -> None:
        call("hipDeviceSynchronize")

    # Events

    # hipEventQuery and hipEventSynchronize end captures of other threads in ROCm 7.0 to 7.2, also
    # in relaxed mode (ROCm/rocm-systems#3176).
    polls_events = False

    def create_event(self) -> int:
        flags = constant("hipEventDisableTiming")
        return int(answer("hipEventCreateWithFlags", "hipEvent_t", flags))

    def destroy_event(self, event: Any) -> None:
        call("hipEventDestroy", event)

    def record_event(self, event: Any, stream: int) -> None:
        code = status("hipEventRecord", event, stream)
        if code in (400, 709):  # the stream is there: HIP before 5.6 did not tell its device
            raise WrongDeviceError(table.text("hipEventRecord", code))
        check("hipEventRecord", code)

    def wait_event(self, stream: int, event: Any) -> None:
        call("hipStreamWaitEvent", stream, event, 0)

    # Memory

    def room(self) -> tuple[int, int]:
        room = ffi.new("size_t[2]")
        call("hipMemGetInfo", room, room + 1)
        return room[0], room[1]

    def allocate(self, nbytes: int, cell: c_uint64) -> None:
        check("hipMalloc", give("hipMalloc", cell, nbytes))

    def free(self, pointer: int, codes: list[int]) -> None:
        take_back("hipFree", codes, pointer)

    # Pools of ROCm 7 say that there is no room where hipMalloc finds some
    # (ROCm/legacy-rocm-build#6178), and keep what they could not give (ROCm/rocm-systems#11642).
    pools_find_all_room = False

    def pool(self, device_id: int) -> int | None:
        return None if device_id in without_pool else default_pool(device_id)

    def allocate_async(self, pool: Any, nbytes: int, stream: int, cell: c_uint64) -> None:
        # Not hipMallocAsync: it takes the pool of the stream's device.
        code = give("hipMallocFromPoolAsync", cell, nbytes, pool, stream)
        if code == NOT_SUPPORTED:
            without_pool.add(int(answer("hipGetDevice", "int")))
            raise NoPoolError(table.text("hipMallocFromPoolAsync", code))
        check("hipMallocFromPoolAsync", code)

    def free_async(self, pointer: int, stream: int, codes: list[int]) -> None:
        if self.keeper(stream, 0) is None:
            raise StreamGoneError(f"stream {stream:#x} was destroyed")
        take_back("hipFreeAsync", codes, pointer, stream)

    def trim_pool(self, pool: Any) -> None:
        call("hipMemPoolTrimTo", pool, 0)

    def allocate_pinned(self, nbytes: int, cell: c_uint64) -> None:
        flags = constant("hipHostMallocPortable") | constant("hipHostMallocMapped")
        check("hipHostMalloc", give("hipHostMalloc", cell, nbytes, flags))

    def free_pinned(self, pointer: int, codes: list[int]) -> None:
        take_back("hipHostFree", codes, pointer)

    cannot_lock = frozenset({1, 2, 304, 712, 801})
    """Statuses of hipHostRegister for memory that cannot be locked: hipErrorInvalidValue,
    OutOfMemory, OperatingSystem, HostMemoryAlreadyRegistered, NotSupported."""

    def lock_pages(
        self, device_id: int, address: int, nbytes: int, readonly: bool, codes: list[int]
    ) -> None:
        flags = constant("hipHostRegisterPortable") | constant("hipHostRegisterMapped")
        take_back("hipHostRegister", codes, address, nbytes, flags)
        seen = int(answer("hipHostGetDevicePointer", "hipDeviceptr_t", address, 0))
        if seen != address:
            raise ExchangeError(
                f"the GPU sees the memory at {address:#x} at another address ({seen:#x}), and "
                "a tensor has one address only; copy it instead"
            )

    def unlock_pages(self, address: int, codes: list[int]) -> None:
        take_back("hipHostUnregister", codes, address)

    def locate(self, address: int, device_id: int) -> Location:
        """Plain host memory is hipErrorInvalidValue, or hipMemoryTypeUnregistered.

        Runtimes differ, whatever their version.
        """
        found = ffi.new("hipPointerAttribute_t *")
        code = status("hipPointerGetAttributes", found, address)
        if code == INVALID_VALUE:
            return Location("pageable", -1)
        check("hipPointerGetAttributes", code)
        kinds = _KINDS_5 if version() < (6, 0) else _KINDS_6
        kind = "managed" if found.isManaged else kinds.get(found.type, f"type {found.type}")
        return Location(kind, int(found.device))

    # Copies

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        call("hipMemcpyAsync", target, source, nbytes, constant("hipMemcpyDefault"), stream)

    def copy_peer(
        self, device_id: int, target: int, source_id: int, source: int, nbytes: int, stream: int
    ) -> None:
        _let_see(device_id, source_id)
        call("hipMemcpyPeerAsync", target, device_id, source, source_id, nbytes, stream)

    def fill(self, target: int, value: int, nbytes: int, stream: int) -> None:
        call("hipMemsetAsync", target, value, nbytes, stream)

    def max_pitch(self, device_id: int) -> int:
        return attribute(device_id, "MaxPitch")

    def copy_rectangle(
        self, target: Side, source: Side, height: int, width: int, stream: int
    ) -> None:
        call(
            "hipMemcpy2DAsync", target.address, target.strides[0], source.address,
            source.strides[0], width, height, constant("hipMemcpyDefault"), stream,
        )  # fmt: skip


gpu = GPU()
events = EventPool(gpu)
"""The events of both backends."""


@cache
def default_pool(device_id: int) -> int | None:
    """The device's default pool, told to keep what is freed; None if it is not to be used.

    HIP 5 calls its pools beta, and its first ones refuse the default stream. It keeps up to the
    user's limit (`pool_limit`), or everything. A release threshold of 0, the default, gives
    everything back to the system at each synchronisation; one that somebody else has set is left
    alone, for the pool belongs to the whole process.
    """
    limit = min(pool_limit(2**64 - 1), 2**64 - 1)
    if version() < (6, 0) or not attribute(device_id, "MemoryPoolsSupported"):
        return None
    pool = ffi.new("hipMemPool_t *")
    code = status("hipDeviceGetDefaultMemPool", pool, device_id)
    if code == NOT_SUPPORTED:
        return None
    check("hipDeviceGetDefaultMemPool", code)
    which = constant("hipMemPoolAttrReleaseThreshold")
    threshold = ffi.new("uint64_t *")

    def keep() -> None:
        call("hipMemPoolGetAttribute", pool[0], which, threshold)
        if threshold[0] == 0:
            threshold[0] = limit
            call("hipMemPoolSetAttribute", pool[0], which, threshold)

    run(device_id, keep)
    return int(pool[0])


@cache
def _let_see(device_id: int, source_id: int) -> None:
    """Let *device_id* read memory of *source_id*, pool memory too; no harm if it cannot."""
    if not answer("hipDeviceCanAccessPeer", "int", device_id, source_id):
        return
    run(device_id, _enable_peer, device_id, source_id)


def _enable_peer(device_id: int, source_id: int) -> None:
    # Any refusal is fine: enabled already, or the copy goes through the host.
    status("hipDeviceEnablePeerAccess", source_id, 0)
    pool = default_pool(source_id)
    if pool:
        access = ffi.new("hipMemAccessDesc *")
        access.location.type = constant("hipMemLocationTypeDevice")
        access.location.id = device_id
        access.flags = constant("hipMemAccessFlagsProtReadWrite")
        status("hipMemPoolSetAccess", pool, access, 1)  # likewise


def _device_of(stream: int, device_id: int) -> int | None:
    """The device that *stream* belongs to; None if it was destroyed.

    The default stream is that of *device_id*. HIP before 5.6 cannot tell: there every stream is.
    """
    if stream == 0:
        return device_id
    found = ffi.new("hipDevice_t *")
    code = status("hipStreamGetDevice", stream, found)
    if code == NOT_SUPPORTED:  # then hipStreamIsCapturing looks at the handle
        code = status("hipStreamIsCapturing", stream, found)
        found[0] = device_id
    if code in _DESTROYED:
        return None
    check("hipStreamGetDevice", code)
    return int(found[0])


def _is_ready(function: str, handle: Any) -> bool:
    """Ask about an event or a stream without disturbing a capture."""
    code = status(function, handle)
    if code != NOT_READY:
        check(function, code)
    return code == 0
