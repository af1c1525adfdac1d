"""The devices by number and by name, opened at first use, and the buffers on them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError
from dlbridge.kit.gate import wait_at_exit
from dlbridge.kit.resources import Owner, Resources
from dlbridge.protocol import Span

from .device import Device, Table
from .instance import PhysicalDevice, create_instance, physical_devices, version_text
from .library import Objects
from .memory import Buffer
from .opening import adopt, open_device


class Entry:
    """One numbered device: what is known of it, and the open device."""

    def __init__(self, physical: PhysicalDevice) -> None:
        self.physical = physical
        self.device: Device | None = None
        self.owner: object = None
        """Of what `device` has."""


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
        self._lock = threading.RLock()  # a finalizer may come in while its thread is inside
        self._objects: Resources[Objects] = Resources(Objects.destroy)
        wait_at_exit(self.pending)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> Device:
        """The device *index*, opened now if it is not yet."""
        try:
            device = self._entries[index].device if index >= 0 else None
        except IndexError:
            device = None
        if device is None:
            device = self._open(index)
        if not device.queue.alive:
            raise DeviceError(f"vulkan:{index} has been closed")
        return device

    def _open(self, index: int) -> Device:
        entry = self._entry(index)
        with self._lock:
            owner = Owner(self._objects, Objects())
            try:
                device = entry.device or open_device(
                    owner.resource,
                    self.table,
                    self._lock,
                    self.instance,
                    entry.physical,
                    self.staged,
                    self.exportable,
                )
                device.index = index
                if entry.device is None:  # a finalizer may have opened it in this thread meanwhile
                    entry.device, entry.owner = device, owner
            finally:
                del owner  # now, also if an exception keeps this frame
        return entry.device

    def _entry(self, index: int) -> Entry:
        if not 0 <= index < len(self._entries):
            raise ExchangeError(f"there is no vulkan:{index}; {self._listed()}")
        return self._entries[index]

    def opened(self, index: int) -> Device | None:
        """The device *index*, or None if it was not used yet."""
        return None if self._entry(index).device is None else self[index]

    def adopt(self, lock: Any = None, **handles: Any) -> Device:
        """Take a VkDevice of the caller's in as one more device; see `opening.adopt`."""
        given = {**handles, "staged": self.staged, "lock": self._lock if lock is None else lock}
        owner = Owner(self._objects, Objects())
        try:
            device = adopt(owner.resource, self.table, **given)
            entry = Entry(device.physical)
            entry.device, entry.owner = device, owner
            self._entries.append(entry)  # one step, which gives it its number
            device.index = self._entries.index(entry)
        finally:
            del owner  # now, also if an exception keeps this frame
        return device

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
        physical = self._entry(index).physical
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

    def pending(self) -> Iterator[Callable[[], bool]]:
        """Of each open device: whether the work that is on its queue now is done.

        It is waited for at exit: a driver that is still busy while the process unloads it would
        crash.
        """
        for entry in self._entries:
            device = entry.device
            if device is not None and device.queue.alive:
                try:
                    value = device.queue.mark()
                except (DeviceError, DeviceMemoryError):  # a lost device has no work left
                    continue
                yield partial(device.queue.done, value)

    # --- Buffers ---

    def find(self, data: int) -> Buffer | None:
        """The buffer behind *data*, or None if this package did not make it, or no longer has."""
        return self.table.get(data)

    def buffer(self, data: int) -> Buffer:
        """The buffer behind *data*; DeviceError if there is none, or no longer."""
        try:
            return self.table[data]
        except KeyError:
            raise DeviceError(
                f"{data:#x} is not a live Vulkan buffer of this process: it was freed, or its "
                "device was closed"
            ) from None

    def at(self, span: Span) -> Buffer:
        """The buffer, in which the whole span must lie."""
        device_id, data, offset, nbytes = span
        try:
            buffer = self.table[data]
        except KeyError:
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
