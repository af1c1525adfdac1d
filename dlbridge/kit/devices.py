"""What many backends do alike: devices by number and name, host views, copies through the host."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from dlbridge.errors import DeviceMemoryError, ExchangeError
from dlbridge.protocol import Allocation, Facts, PlainAllocation, Span

__all__ = ["Devices", "HostViews", "ThroughHost"]

_WORDS = "name", "platform", "uuid", "pci"


class Devices(ABC):
    """``SupportsDeviceInfo``, and the check of a number.

    A subclass has the two abstract members. What `device_info` gives for ``kind``, ``name``,
    ``platform``, ``uuid`` and ``pci``, as far as it is known, is what a device is found by.
    """

    name: ClassVar[str]
    """The name of the backend in device strings."""

    @abstractmethod
    def device_count(self) -> int:
        """Number of devices."""

    @abstractmethod
    def device_info(self, device_id: int) -> Mapping[str, object]:
        """The properties of the device, by name (`dlbridge.protocol.SupportsDeviceInfo`)."""

    def __repr__(self) -> str:
        return f"dlbridge.backend({self.name!r})"

    def check_device(self, device_id: int) -> None:
        """ExchangeError if *device_id* does not exist."""
        count = self.device_count()
        if not 0 <= device_id < count:
            raise ExchangeError(
                f"there is no {self.name}:{device_id}: {count} device"
                f"{'s' if count != 1 else ''} here, counted from 0"
            )

    def find_device(self, name: str) -> int:
        """The device with the whole words *name* in its name, its platform's, its UUID or PCI.

        A kind (``"gpu"``) names the first device of that kind. A device whose whole name is *name*
        comes before others that have it in theirs. Letter case does not count, and a UUID may be
        written without its dashes.

        Raises
        ------
        LookupError
            If there is none, or more than one; it lists the devices.
        """
        wanted = name.strip().casefold()
        words = re.compile(rf"(?<!\w){re.escape(wanted)}(?!\w)")
        known, parts, whole = [], [], []
        for device_id in range(self.device_count()):
            info = self.device_info(device_id)
            if wanted and str(info.get("kind")).casefold() == wanted:
                return device_id
            text = " ".join(str(info[key]) for key in _WORDS if key in info)
            known.append(f"{device_id}: {text}")
            if wanted and words.search(f"{text} {text.replace('-', '')}".casefold()):
                parts.append(device_id)
            if str(info["name"]).strip().casefold() == wanted:
                whole.append(device_id)
        for matches in (whole, parts):
            if len(matches) == 1:
                return matches[0]
        if parts:
            listed = "; ".join(known[each] for each in parts)
            raise LookupError(
                f"{len(parts)} {self.name} devices are called {name!r}; write the number: {listed}"
            )
        raise LookupError(
            f"no {self.name} device is called {name!r}; there are {'; '.join(known)} "
            "(write whole words of one)"
        )


class HostViews(ABC):
    """``SupportsHostView`` where ``data`` is an address, of the host as of the device."""

    @abstractmethod
    def synchronize(self, device_id: int, stream: int) -> None:
        """Block until the work on *stream* is done."""

    @abstractmethod
    def host_view_refusal(self, device_id: int, data: int) -> str:
        """Why the host cannot address *data*; empty if it can."""

    def host_view(self, span: Span, writable: bool, stream: int) -> Allocation:
        """The address itself, once the work on *stream* is done."""
        refusal = self.host_view_refusal(span.device_id, span.data)
        if refusal:
            raise ExchangeError(refusal)
        self.synchronize(span.device_id, stream)
        return PlainAllocation(span.data + span.offset, span.nbytes, stream)


PIECE = 16 << 20
"""Bytes of host memory that a copy between two devices uses at a time."""


class ThroughHost(ABC, Facts):
    """``SupportsCopy``: inside a device by `copy_inside`, between two through host memory."""

    @abstractmethod
    def copy_inside(self, target: Span, source: Span, stream: int) -> None:
        """Copy *source* to *target*, which is on the same device and does not overlap it."""

    @abstractmethod
    def copy_from_host(self, target: Span, source: memoryview, stream: int) -> None:
        """Copy from the host (`dlbridge.protocol.Backend`)."""

    @abstractmethod
    def copy_to_host(self, source: Span, into: memoryview, stream: int) -> None:
        """Copy to the host (`dlbridge.protocol.Backend`)."""

    @abstractmethod
    def synchronize(self, device_id: int, stream: int) -> None:
        """Block until the work on *stream* is done; not called with ``host_copies_block``."""

    def copy(self, target: Span, source: Span, stream: int) -> None:
        """Copy on *stream* of the target's device.

        Raises
        ------
        dlbridge.errors.DeviceMemoryError
            If the host has no room for a piece.
        """
        if target.device_id == source.device_id:
            self.copy_inside(target, source, stream)
            return
        size = min(target.nbytes, PIECE)
        try:
            host = memoryview(bytearray(size))
        except MemoryError as exc:
            raise DeviceMemoryError(
                f"no room in host memory for the {size} bytes that are on their way at a time: "
                "copies between two devices go through it in pieces; free some"
            ) from exc
        for start in range(0, target.nbytes, PIECE):
            part = host[: target.nbytes - start]
            here = source._replace(offset=source.offset + start, nbytes=len(part))
            there = target._replace(offset=target.offset + start, nbytes=len(part))
            self.copy_to_host(here, part, 0)  # dlbridge has waited for all work on that device
            if not self.host_copies_block:
                self.synchronize(source.device_id, 0)
            self.copy_from_host(there, part, stream)
            if not self.host_copies_block:  # *part* is read until then
                self.synchronize(target.device_id, stream)
