"""The devices by number and by name: opened at first use, adopted, closed at exit."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError
from dlbridge.kit.resources import Owner, Resources

from .device import Device, adopt_device, open_device
from .errors import AFTER_FORK
from .handles import Handles
from .instance import PhysicalDevice, create_instance, physical_devices, version_text
from .locks import package_lock

__all__ = ["Devices"]

EXIT_SECONDS = 10.0
"""How long the end of the process waits for the work of a device."""

_tables: weakref.WeakSet[Devices] = weakref.WeakSet()


@dataclass(eq=False)
class Entry:
    """One numbered device: what is known of it, and the open device."""

    physical: PhysicalDevice
    device: Device | None = None

    def enter(self, opened: Device, index: int) -> Device:
        """Keep *opened*, unless a finalizer has opened the device meanwhile in this thread."""
        opened.index = index
        if self.device is None:
            self.device = opened
        else:
            opened.close()
        return self.device


class Devices:
    """All devices of one VkInstance in TVM's order, then the adopted ones.

    BackendUnavailable if this machine has none.
    """

    def __init__(self, *, staged: bool, exportable: bool = False) -> None:
        self.staged = staged
        self.exportable = exportable
        self.instance, version = create_instance()
        self._entries = [Entry(one) for one in physical_devices(self.instance, version)]
        self._lock = package_lock()
        self._handles: Resources[Handles] = Resources(self._settle)
        self.forked = False
        _tables.add(self)
        atexit.register(self.finish)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> Device:
        """The device *index*, opened now if it is not yet."""
        entry = self._entries[index] if 0 <= index < len(self._entries) else None
        if entry is not None:
            opened = entry.device
            if opened is not None and opened.queue.alive:
                return opened
        self._refuse_after_fork()
        if entry is None:
            raise ExchangeError(f"there is no vulkan:{index}; {self._listed()}")
        with self._lock:
            device = entry.device
            if device is None:
                device = self._make(
                    lambda handles: entry.enter(
                        open_device(
                            handles, self.instance, entry.physical, self.staged, self.exportable
                        ),
                        index,
                    )
                )
        if not device.alive:
            raise DeviceError(f"vulkan:{index} has been closed")
        return device

    def opened(self, index: int) -> Device | None:
        """The device *index*, or None if it was not used yet."""
        entry = self._entries[index] if 0 <= index < len(self._entries) else None
        return None if entry is not None and entry.device is None else self[index]

    def adopt(self, **handles: Any) -> Device:
        """Take a VkDevice of the caller's in as one more device; see `adopt_device`."""
        self._refuse_after_fork()
        with self._lock:
            return self._make(
                lambda made: self._append(adopt_device(made, staged=self.staged, **handles))
            )

    def _append(self, device: Device) -> Device:
        entry = Entry(device.physical, device)
        self._entries.append(entry)  # one step, which gives it its number
        device.index = self._entries.index(entry)
        return device

    def _make(self, make: Callable[[Handles], Device]) -> Device:
        """Run *make*, whose device keeps the handles; the lock is held.

        What an exception leaves of a device is destroyed.
        """
        owner = Owner(self._handles, Handles())
        try:
            return make(owner.resource)
        finally:
            del owner  # now, also if the exception keeps this frame

    def _settle(self, handles: Handles) -> bool:
        """Destroy *handles*, unless they belong to a device that has been entered."""
        devices = [entry.device for entry in self._entries]
        if not any(device is not None and device.handles is handles for device in devices):
            handles.destroy()
        return True

    def find(self, name: str) -> int:
        """The device whose UUID is *name*, or the first whose name contains it."""
        wanted = name.casefold()
        for match in (
            lambda physical: wanted.replace("-", "") == physical.uuid.replace("-", ""),
            lambda physical: wanted in physical.name.casefold(),
        ):
            for index, entry in enumerate(self._entries):
                if wanted and match(entry.physical):
                    return index
        raise LookupError(f"no Vulkan device is called {name!r}; {self._listed()}")

    def info(self, index: int) -> Mapping[str, Any]:
        """The device described; opens nothing."""
        if not 0 <= index < len(self._entries):
            raise ExchangeError(f"there is no vulkan:{index}; {self._listed()}")
        physical = self._entries[index].physical
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
        """Wait for the work on every open device, up to `EXIT_SECONDS` for each.

        Runs at exit: a driver that is still busy while the process unloads it
        would crash. The devices stay open, for tensors that are freed later.
        """
        for entry in self._entries:
            device = entry.device
            if device is not None and device.alive:
                try:
                    device.queue.finish(EXIT_SECONDS)
                except (DeviceError, DeviceMemoryError):
                    continue  # a lost device has no work left

    def forget(self) -> None:
        """In a forked child: the devices are the parent's only."""
        self.forked = True
        for entry in self._entries:
            if entry.device is not None:
                entry.device.queue.forked = True
                entry.device.queue.alive = False

    def _refuse_after_fork(self) -> None:
        if self.forked:
            raise DeviceError(AFTER_FORK)

    def _listed(self) -> str:
        found = [entry.physical for entry in self._entries]
        names = (f"vulkan:{i} {p.name} ({p.uuid})" for i, p in enumerate(found))
        return f"devices: {', '.join(names)}"


def _shares_memory(physical: PhysicalDevice) -> bool:
    """Whether all its memory is the host's.

    The flag DEVICE_LOCAL says nothing of it: AMD's drivers show an APU's memory
    as one part with it and one without.
    """
    return physical.kind in ("integrated", "cpu")


def _after_fork() -> None:
    for table in _tables:
        table.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
