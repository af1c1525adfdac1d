"""Copies inside the CUDA address space: linear, between devices, and rectangles."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from .contexts import attribute, current, primary
from .driver import call, cu, status

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Side", "copy", "copy_between_devices", "copy_region"]

_PEER_ACCESS_ALREADY_ENABLED = 704


class Side(NamedTuple):
    """One side of a rectangular copy."""

    address: int
    strides: tuple[int, ...]
    """Bytes between runs, outermost first."""
    on_host: bool


def copy(target: int, source: int, nbytes: int, stream: int) -> None:
    """Queue a copy of *nbytes* on *stream*; the driver finds out where both sides live."""
    call("cuMemcpyAsync", target, source, nbytes, stream)


def copy_between_devices(
    device_id: int, target: int, source_id: int, source: int, nbytes: int, stream: int
) -> None:
    """Queue a copy from another device on *stream* of *device_id*.

    Directly where the hardware lets the two see each other; else the driver
    goes through host memory.
    """
    _let_see(device_id, source_id)
    call(
        "cuMemcpyPeerAsync", target, primary(device_id), source, primary(source_id), nbytes, stream
    )


@cache
def _let_see(device_id: int, source_id: int) -> None:
    """Let *device_id* read memory of *source_id*, pool memory too; no harm if it cannot."""
    if not int(call("cuDeviceCanAccessPeer", device_id, source_id)):
        return
    with current(primary(device_id)):
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


def copy_region(
    target: Side, source: Side, shape: Sequence[int], run_nbytes: int, stream: int, max_pitch: int
) -> None:
    """Queue a copy of *shape* runs of *run_nbytes* bytes (one or two strided dimensions).

    One call where the strides form a pitched rectangle or box, as
    ``CUDA_MEMCPY2D`` and ``CUDA_MEMCPY3D`` want them (cuda.h); else one call for
    each slice of the outer dimension.
    """
    kept = [axis for axis, extent in enumerate(shape) if extent != 1]
    shape = [shape[axis] for axis in kept]
    target = target._replace(strides=tuple(target.strides[axis] for axis in kept))
    source = source._replace(strides=tuple(source.strides[axis] for axis in kept))
    if not shape:
        copy(target.address, source.address, run_nbytes, stream)
    elif len(shape) == 1 and _pitched(target, source, run_nbytes, max_pitch):
        call("cuMemcpy2DAsync", _rectangle(target, source, shape[0], run_nbytes), stream)
    elif len(shape) == 2 and _boxed(target, source, shape, run_nbytes, max_pitch):
        call("cuMemcpy3DAsync", _box(target, source, shape, run_nbytes), stream)
    else:
        for index in range(shape[0]):
            copy_region(
                _slice(target, index), _slice(source, index), shape[1:], run_nbytes, stream,
                max_pitch,
            )  # fmt: skip


def _pitched(target: Side, source: Side, run_nbytes: int, max_pitch: int) -> bool:
    """Whether the innermost strides are pitches: runs that do not overlap, and not too far."""
    return all(run_nbytes <= side.strides[-1] <= max_pitch for side in (target, source))


def _boxed(
    target: Side, source: Side, shape: Sequence[int], run_nbytes: int, max_pitch: int
) -> bool:
    """Whether the outer strides are whole rows, at least as many as the box is high."""
    return _pitched(target, source, run_nbytes, max_pitch) and all(
        outer % inner == 0 and outer // inner >= shape[1]
        for outer, inner in (target.strides, source.strides)
    )


def _slice(side: Side, index: int) -> Side:
    return side._replace(address=side.address + index * side.strides[0], strides=side.strides[1:])


def _rectangle(target: Side, source: Side, height: int, run_nbytes: int) -> Any:
    region = cu.CUDA_MEMCPY2D()
    region.WidthInBytes = run_nbytes
    region.Height = height
    _describe(region, target, source)
    return region


def _box(target: Side, source: Side, shape: Sequence[int], run_nbytes: int) -> Any:
    region = cu.CUDA_MEMCPY3D()
    region.WidthInBytes = run_nbytes
    region.Depth, region.Height = shape
    region.srcHeight = source.strides[0] // source.strides[1]
    region.dstHeight = target.strides[0] // target.strides[1]
    _describe(region, target, source)
    return region


def _describe(region: Any, target: Side, source: Side) -> None:
    region.srcPitch = source.strides[-1]
    region.dstPitch = target.strides[-1]
    host, device = cu.CUmemorytype.CU_MEMORYTYPE_HOST, cu.CUmemorytype.CU_MEMORYTYPE_UNIFIED
    if source.on_host:
        region.srcMemoryType, region.srcHost = host, source.address
    else:
        region.srcMemoryType, region.srcDevice = device, source.address
    if target.on_host:
        region.dstMemoryType, region.dstHost = host, target.address
    else:
        region.dstMemoryType, region.dstDevice = device, target.address
