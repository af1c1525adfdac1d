"""Copies between host and device memory: directly, or staged, as it is faster."""

from __future__ import annotations

from functools import cache

from .capture import refuse_capture
from .contexts import current, primary
from .driver import call
from .pointers import pageable
from .staging import DIRECT, NoRing, Plan, Stager
from .streams import device_of
from .tuning import plan_for

__all__ = ["SMALL", "from_host", "to_host"]

SMALL = 64 << 10
"""Bytes. Up to here the driver copies pageable memory into its command buffer
and returns (CUDA driver API, "API synchronization behavior")."""


def from_host(device_id: int, target: int, source: int, nbytes: int, stream: int) -> None:
    """Queue a copy of host bytes at *source* to *target*, in the order of *stream*.

    Pinned memory may be read until the stream is done; pageable memory above
    `SMALL` has been read on return.
    """
    with current(primary(device_id)):
        refuse_capture(stream, "copied from the host")  # a replay would read it again
        plan = _plan(device_id, source, nbytes, "cuMemcpyHtoDAsync")
        home = device_of(stream, device_id) if plan != DIRECT else None
        if home is not None:
            try:
                _stager(home).to_device(target, source, nbytes, stream, plan)
                return
            except NoRing:  # the driver has a buffer of its own
                pass
        call("cuMemcpyHtoDAsync", target, source, nbytes, stream)


def to_host(device_id: int, target: int, source: int, nbytes: int, stream: int) -> None:
    """Copy device bytes at *source* to host *target*; there once *stream* is done."""
    with current(primary(device_id)):
        refuse_capture(stream, "copied to the host")  # a replay would write it again
        plan = _plan(device_id, target, nbytes, "cuMemcpyDtoHAsync")
        home = device_of(stream, device_id) if plan != DIRECT else None
        if home is not None:
            try:
                _stager(home).to_host(target, source, nbytes, stream, plan)
                return
            except NoRing:  # the driver has a buffer of its own
                pass
        call("cuMemcpyDtoHAsync", target, source, nbytes, stream)


def _plan(device_id: int, address: int, nbytes: int, direct: str) -> Plan:
    if nbytes <= SMALL or not pageable(address, device_id):
        return DIRECT
    return plan_for(device_id, nbytes, direct)


@cache
def _stager(device_id: int) -> Stager:
    return Stager(device_id)
