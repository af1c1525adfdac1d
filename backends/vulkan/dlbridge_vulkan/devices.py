"""The devices by number and by name, opened at first use, and the buffers on them."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError
from dlbridge.kit.fork import ForkGuard
from dlbridge.kit.resources import Owner, Resources
from dlbridge.protocol import Span

from .device import Device, Table, adopt, open_device
from .instance import PhysicalDevice, create_instance, physical_devices, version_text
from .library import Objects
from .memory import Buffer

__all__ = ["Devices"]

EXIT_SECONDS = 10.0
"""How long the end of the process waits for the work of a device."""


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
        self.table: Table = {}
        self.guard = ForkGuard("Vulkan", self._entries)
        self._lock = threading.RLock()  # a finalizer may come in while its thread is inside
        self._objects: Resources[Objects] = Resources(self._settle)
        atexit.register(self.finish)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> Device:
        """The device *index*, opened now if it is not yet."""
        self.guard.check()
        if not 0 <= index < len(self._entries):
            raise ExchangeError(f"there is no vulkan:{index}; {self._listed()}")
        entry = self._entries[index]
        with self._lock:
            device = entry.device
            if device is None:
                device = self._make(
                    lambda made: entry.enter(
                        open_device(
                            made,
                            self.table,
                            self._lock,
                            self.instance,
                            entry.physical,
                            self.staged,
                            self.exportable,
                        ),
                        index,
                    )
                )
        if not device.queue.alive:
            raise DeviceError(f"vulkan:{index} has been closed")
        return device

    def opened(self, index: int) -> Device | None:
        """The device *index*, or None if it was not used yet."""
        entry = self._entries[index] if 0 <= index < len(self._entries) else None
        return None if entry is not None and entry.device is None else self[index]

    def adopt(self, lock: Any = None, **handles: Any) -> Device:
        """Take a VkDevice of the caller's in as one more device; see `device.adopt`."""
        self.guard.check()
        with self._lock:
            given = {**handles, "lock": self._lock if lock is None else lock}
            return self._make(
                lambda made: self._append(adopt(made, self.table, staged=self.staged, **given))
            )

    def _append(self, device: Device) -> Device:
        entry = Entry(device.physical, device)
        self._entries.append(entry)  # one step, which gives it its number
        device.index = self._entries.index(entry)
        return device

    def _make(self, make: Callable[[Objects], Device]) -> Device:
        """Run *make*, whose device keeps the objects; the lock is held.

        What an exception leaves of a device is destroyed.
        """
        owner = Owner(self._objects, Objects())
        try:
            return make(owner.resource)
        finally:
            del owner  # now, also if the exception keeps this frame

    def _settle(self, objects: Objects) -> bool:
        """Destroy *objects*, unless they belong to a device that has been entered."""
        devices = [entry.device for entry in self._entries]
        if not any(device is not None and device.objects is objects for device in devices):
            objects.destroy()
        return True

    def named(self, name: str) -> int:
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
            "host_memory_shared": physical.shares_memory,
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
            if device is not None and device.queue.alive and not self.guard.in_child:
                try:
                    device.queue.finish(EXIT_SECONDS)
                except (DeviceError, DeviceMemoryError):
                    continue  # a lost device has no work left

    # --- Buffers ---

    def find(self, data: int) -> Buffer | None:
        """The buffer behind *data*, or None if this package did not make it, or no longer has."""
        return self.table.get(data)

    def buffer(self, data: int) -> Buffer:
        """The buffer behind *data*; DeviceError if there is none, or no longer."""
        self.guard.check()
        buffer = self.find(data)
        if buffer is None or not buffer.queue.alive:
            raise DeviceError(
                f"{data:#x} is not a live Vulkan buffer of this process: it was freed, or its "
                "device was closed"
            )
        return buffer

    def at(self, span: Span) -> Buffer:
        """The buffer, in which the whole span must lie."""
        device_id, data, offset, nbytes = span
        buffer = self.table.get(data)
        if buffer is None or not buffer.queue.alive or self.guard.in_child:
            buffer = self.buffer(data)  # which says what is wrong
        if offset < 0 or offset + nbytes > buffer.nbytes:
            raise ExchangeError(
                f"bytes {offset} to {offset + nbytes} are outside a Vulkan buffer of "
                f"{buffer.nbytes} bytes"
            )
        if buffer.device.index != device_id:
            raise ExchangeError(
                f"{data:#x} is memory of vulkan:{buffer.device.index}, and not of "
                f"vulkan:{device_id}; name the device of the memory"
            )
        return buffer

    def buffers(self, device: Device | None = None) -> int:
        """How many buffers somebody has, of all devices or of one."""
        return sum(device in (None, each.device) for each in list(self.table.values()))

    def _listed(self) -> str:
        found = [entry.physical for entry in self._entries]
        names = (f"vulkan:{i} {p.name} ({p.uuid})" for i, p in enumerate(found))
        return f"devices: {', '.join(names)}"
