"""The devices by number and by name: opened at first use, adopted, closed at exit."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError

from .device import Device, adopt_device, open_device
from .instance import PhysicalDevice, create_instance, physical_devices, version_text
from .memory_types import LOCAL

__all__ = ["Devices"]

_tables: weakref.WeakSet[Devices] = weakref.WeakSet()


class Devices:
    """All devices of one VkInstance in TVM's order, then the adopted ones.

    BackendUnavailable if this machine has none.
    """

    def __init__(self, *, staged: bool) -> None:
        self.staged = staged
        self.instance, version = create_instance()
        self._physical = physical_devices(self.instance, version)
        self._open: list[Device | None] = [None] * len(self._physical)
        self._lock = threading.Lock()
        self.forked = False
        _tables.add(self)
        atexit.register(self.finish)

    def __len__(self) -> int:
        return len(self._open)

    def __getitem__(self, index: int) -> Device:
        """The device *index*, opened now if it is not yet."""
        device = self._open[index] if 0 <= index < len(self._open) else None
        if device is not None and device.alive:
            return device
        self._refuse_after_fork()
        if not 0 <= index < len(self._open):
            raise ExchangeError(f"there is no vulkan:{index}; {self._listed()}")
        if device is not None:
            raise DeviceError(f"vulkan:{index} has been closed")
        with self._lock:
            again = self._open[index]
            if again is None:
                again = open_device(index, self.instance, self._physical[index], self.staged)
                self._open[index] = again
            return again

    def adopt(self, **handles: Any) -> Device:
        """Take a VkDevice of the caller's in as one more device; see `adopt_device`."""
        self._refuse_after_fork()
        with self._lock:
            device = adopt_device(len(self._open), staged=self.staged, **handles)
            self._physical.append(device.physical)
            self._open.append(device)
        return device

    def find(self, name: str) -> int:
        """The device whose UUID is *name*, or the first whose name contains it."""
        wanted = name.casefold()
        for match in (
            lambda physical: wanted.replace("-", "") == physical.uuid.replace("-", ""),
            lambda physical: wanted in physical.name.casefold(),
        ):
            for index, physical in enumerate(self._physical):
                if wanted and match(physical):
                    return index
        raise LookupError(f"no Vulkan device is called {name!r}; {self._listed()}")

    def info(self, index: int) -> Mapping[str, Any]:
        """The device described; opens nothing."""
        if not 0 <= index < len(self._physical):
            raise ExchangeError(f"there is no vulkan:{index}; {self._listed()}")
        physical = self._physical[index]
        return {
            "name": physical.name,
            "kind": physical.kind,
            "memory": physical.memory,
            "uuid": physical.uuid,
            "driver": physical.driver,
            "vulkan": version_text(physical.version),
            "host_memory_shared": _shares_memory(physical),
            "host_import": bool(physical.limits["min_imported_host_pointer_alignment"]),
            **physical.limits,
            **({"pci": physical.pci} if physical.pci else {}),
        }

    def finish(self) -> None:
        """Wait for the work on every open device.

        Runs at exit: a driver that is still busy while the process unloads it
        would crash. The devices stay open, for tensors that are freed later.
        """
        for device in self._open:
            if device is not None and device.alive:
                try:
                    device.queue.finish()
                except (DeviceError, DeviceMemoryError):
                    continue  # a lost device has no work left

    def forget(self) -> None:
        """In a forked child: no device is ours any more."""
        self.forked = True
        for device in self._open:
            if device is not None:
                device.alive = False

    def _refuse_after_fork(self) -> None:
        if self.forked:
            raise DeviceError(
                "Vulkan does not survive os.fork(): open the device in the child only, or start "
                "processes with multiprocessing's 'spawn'"
            )

    def _listed(self) -> str:
        names = (f"vulkan:{i} {p.name} ({p.uuid})" for i, p in enumerate(self._physical))
        return f"devices: {', '.join(names)}"


def _shares_memory(physical: PhysicalDevice) -> bool:
    """Whether all its memory is the host's: every heap with a type is device-local."""
    return physical.kind in ("integrated", "cpu") and all(
        flags & LOCAL for flags, _, _ in physical.memory_types
    )


def _after_fork() -> None:
    for table in _tables:
        table.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
