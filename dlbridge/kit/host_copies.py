"""Copies between host and device memory: by the driver, or staged where that is faster.

The thread is in the stream's place, and the stream is not capturing.
"""

from __future__ import annotations

from .driver import StreamDriver
from .staging import DIRECT, NoRing, Plan, Stager
from .tuning import Tuning

__all__ = ["SMALL", "HostCopies", "StagedCopies"]

SMALL = 64 << 10
"""Bytes. Up to here CUDA's driver copies pageable memory into its command buffer
and returns (CUDA driver API, "API synchronization behavior")."""


class HostCopies:
    """Copies by the driver, which stages pageable memory itself.

    Parameters
    ----------
    driver : StreamDriver
        The driver.
    """

    def __init__(self, driver: StreamDriver) -> None:
        self.driver = driver

    def from_host(self, device_id: int, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy of host bytes at *source*, which may be read until *stream* is done."""
        self.driver.copy_from_host(target, source, nbytes, stream)

    def to_host(self, device_id: int, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy of device bytes to host *target*; there once *stream* is done."""
        self.driver.copy_to_host(target, source, nbytes, stream)


class StagedCopies(HostCopies):
    """Copies of large pageable memory through a ring of pinned chunks.

    Pageable memory above `SMALL` has been read when `from_host` returns.

    Parameters
    ----------
    driver : StreamDriver
        The driver.
    """

    def __init__(self, driver: StreamDriver) -> None:
        super().__init__(driver)
        self.tuning = Tuning(driver)
        self._stagers: dict[int, Stager] = {}

    def from_host(self, device_id: int, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy of host bytes at *source*."""
        plan = self.plan(device_id, source, nbytes, to_host=False)
        home = self.driver.stream_device(stream, device_id) if plan != DIRECT else None
        if home is not None:
            try:
                self.stager(home).to_device(target, source, nbytes, stream, plan)
                return
            except NoRing:  # the driver has a buffer of its own
                pass
        super().from_host(device_id, target, source, nbytes, stream)

    def to_host(self, device_id: int, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy device bytes at *source* to host *target*."""
        plan = self.plan(device_id, target, nbytes, to_host=True)
        home = self.driver.stream_device(stream, device_id) if plan != DIRECT else None
        if home is not None:
            try:
                self.stager(home).to_host(target, source, nbytes, stream, plan)
                return
            except NoRing:  # the driver has a buffer of its own
                pass
        super().to_host(device_id, target, source, nbytes, stream)

    def plan(self, device_id: int, address: int, nbytes: int, to_host: bool) -> Plan:
        """How to copy; `staging.DIRECT` for memory that the device reads at full speed."""
        driver = self.driver
        if (
            nbytes <= SMALL
            or driver.reads_pageable(device_id)
            or driver.locate(address, device_id).kind != "pageable"
        ):
            return DIRECT
        return self.tuning.plan(device_id, nbytes, to_host)

    def stager(self, device_id: int) -> Stager:
        """The stager for streams of a device."""
        found = self._stagers.get(device_id)
        return found or self._stagers.setdefault(
            device_id, Stager(self.driver, device_id, self.tuning.spare(device_id))
        )
