"""Devices by number and by name: what every backend with a list of devices does alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from dlbridge.errors import ExchangeError

__all__ = ["Devices"]


_WORDS = "name", "platform", "uuid", "pci"


class Devices(ABC):
    """``SupportsDeviceInfo``, and the check of a number.

    A subclass has the two abstract members. What `device_info` gives for ``name``, ``platform``,
    ``uuid`` and ``pci``, as far as it is known, is what a device is found by.
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
        """The first device with *name* in its name, its platform's, its UUID or its PCI address.

        Raises
        ------
        LookupError
            If there is none; it lists the devices.
        """
        known = []
        for device_id in range(self.device_count()):
            found = self.device_info(device_id)
            words = " ".join(str(found[key]) for key in _WORDS if key in found)
            if name.casefold() in words.casefold():
                return device_id
            known.append(f"{device_id}: {words}")
        raise LookupError(f"no {self.name} device is called {name!r}; there are {'; '.join(known)}")
