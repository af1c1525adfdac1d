"""Copies between host and device memory: by the driver, or staged where that was measured faster.

The thread is in the stream's place, and the stream is not capturing.
"""

from __future__ import annotations

from .driver import StreamDriver
from .staging import NoRing, Stager

__all__ = ["DIRECT", "HostCopies", "StagedCopies"]

DIRECT = 16 << 20
"""Bytes up to which the driver copies pageable memory to the device. On an H100 its call took 0.6
of the ring's time at 16 MiB and 2.4 times as long at 64 MiB; nothing between was measured."""


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


class StagedCopies(HostCopies):
    """Copies of large pageable memory to the device through a ring of pinned chunks.

    Such memory has been read when `from_host` returns. To the host the driver copies: a ring was
    as fast (0.9 to 1.1 times its speed on an H100).

    Parameters
    ----------
    driver : StreamDriver
        The driver.
    """

    def __init__(self, driver: StreamDriver) -> None:
        super().__init__(driver)
        self._stagers: dict[int, Stager] = {}

    def from_host(self, device_id: int, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy of host bytes at *source*."""
        if nbytes > DIRECT and self.is_staged(device_id, source, nbytes):
            home = self.driver.stream_device(stream, device_id)
            if home is not None:
                try:
                    self.stager(home).to_device(target, source, nbytes, stream)
                    return
                except NoRing:  # the driver has a buffer of its own
                    pass
        self.driver.copy_from_host(target, source, nbytes, stream)

    def is_staged(self, device_id: int, address: int, nbytes: int) -> bool:
        """Whether the ring is faster: for large memory that the device reads slowly."""
        driver = self.driver
        return (
            nbytes > DIRECT
            and not driver.reads_pageable(device_id)
            and driver.locate(address, device_id).kind == "pageable"
        )

    def stager(self, device_id: int) -> Stager:
        """The stager for streams of a device."""
        found = self._stagers.get(device_id)
        return found or self._stagers.setdefault(device_id, Stager(self.driver, device_id))
