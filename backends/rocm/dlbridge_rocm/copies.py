"""Copies: linear, between devices, and rectangles.

Pageable memory is left to the runtime, which stages it itself.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from .devices import attribute, current
from .driver import answer, call, status
from .library import constant, ffi
from .memory import default_pool

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Side", "copy", "copy_between_devices", "copy_region"]


class Side(NamedTuple):
    """One side of a rectangular copy."""

    address: int
    strides: tuple[int, ...]
    """Bytes between runs, outermost first."""


def copy(target: int, source: int, nbytes: int, stream: int) -> None:
    """Queue a copy of *nbytes* on *stream*; the runtime finds out where both sides live."""
    call("hipMemcpyAsync", target, source, nbytes, constant("hipMemcpyDefault"), stream)


def copy_between_devices(
    device_id: int, target: int, source_id: int, source: int, nbytes: int, stream: int
) -> None:
    """Queue a copy from another device on *stream* of *device_id*.

    Directly where the hardware lets the two see each other; else the runtime
    goes through host memory.
    """
    _let_see(device_id, source_id)
    call("hipMemcpyPeerAsync", target, device_id, source, source_id, nbytes, stream)


@cache
def _let_see(device_id: int, source_id: int) -> None:
    """Let *device_id* read memory of *source_id*, pool memory too; no harm if it cannot."""
    if not answer("hipDeviceCanAccessPeer", "int", device_id, source_id):
        return
    with current(device_id):
        # Any refusal is fine: enabled already, or the copy goes through the host.
        status("hipDeviceEnablePeerAccess", source_id, 0)
    pool = default_pool(source_id)
    if pool:
        access = ffi.new("hipMemAccessDesc *")
        access.location.type = constant("hipMemLocationTypeDevice")
        access.location.id = device_id
        access.flags = constant("hipMemAccessFlagsProtReadWrite")
        status("hipMemPoolSetAccess", pool, access, 1)  # likewise


def copy_region(
    device_id: int, target: Side, source: Side, shape: Sequence[int], run_nbytes: int, stream: int
) -> None:
    """Queue a copy of *shape* runs of *run_nbytes* bytes (one or two strided dimensions).

    One call for each slice of the outer dimension, and for each run where a
    stride is no pitch: where runs overlap, or lie too far apart.
    """
    if not shape:
        copy(target.address, source.address, run_nbytes, stream)
    elif len(shape) == 1 and _pitched(device_id, target, source, run_nbytes):
        call(
            "hipMemcpy2DAsync", target.address, target.strides[0], source.address,
            source.strides[0], run_nbytes, shape[0], constant("hipMemcpyDefault"), stream,
        )  # fmt: skip
    else:
        for index in range(shape[0]):
            inner = _slice(target, index), _slice(source, index)
            copy_region(device_id, *inner, shape[1:], run_nbytes, stream)


def _pitched(device_id: int, target: Side, source: Side, run_nbytes: int) -> bool:
    """Whether both strides are pitches, as ``hipMemcpy2DAsync`` wants them."""
    longest = attribute(device_id, "MaxPitch")
    return all(run_nbytes <= side.strides[0] <= longest for side in (target, source))


def _slice(side: Side, index: int) -> Side:
    return Side(side.address + index * side.strides[0], side.strides[1:])
