"""Memory that CUDA shares with another driver of the same GPU, or with another process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from ctypes import addressof, byref, c_int, c_uint64
from typing import Any
from weakref import ref

from dlbridge.errors import Error
from dlbridge.kit.driver import StreamDriver
from dlbridge.kit.memory import DriverMemory, PoolMemory
from dlbridge.kit.order import EventPool
from dlbridge.kit.resources import AllocationOwner, Owner, Resources, call as noted, join
from dlbridge.protocol import ExportedMemory

from .driver import Access, ExternalBuffer, ExternalMemory, MemoryProperties
from .gpu import gpu

CUDA = "cuda"
"""What `ExportedMemory.driver` says of CUDA's own descriptors."""

_FILE = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_PINNED, _DEVICE, _READ_WRITE = 1, 1, 3  # of an allocation, a location, an access


class DeviceMemory(PoolMemory):
    """Device memory of the pool, memory of others, and memory for other drivers and processes."""

    def __init__(self, driver: StreamDriver, events: EventPool, name: str) -> None:
        super().__init__(driver, events, name)
        self._exportable: set[ref[DriverMemory]] = set()

    def export_all(self) -> None:
        """Make all memory so that it can be exported, in whole units of 2 MiB, from now on."""
        self.obtain = self._create  # type: ignore[method-assign]

    def import_memory(
        self, device_id: int, memory: ExportedMemory, stream: int
    ) -> AllocationOwner[DriverMemory]:
        """All of the allocation that *memory* is in: drivers need not map a part of it."""
        driver = self.driver
        made = self.own(device_id, stream)
        self.settle()
        parts = _OfCUDA() if memory.driver == CUDA else _OfOthers()
        given = made.resource, parts, parts.open, device_id, memory
        driver.run(driver.contexts[device_id], self._make, *given)
        made.resource.must_wait = memory.driver != CUDA
        made.data, made.nbytes = made.resource.pointer, memory.nbytes - memory.offset
        made.offset = memory.offset
        return made

    def _create(self, memory: DriverMemory, nbytes: int) -> None:
        parts = _OfCUDA()
        self._make(memory, parts, parts.create, memory.device_id, nbytes)

    def allocate_exportable(
        self, device_id: int, nbytes: int, stream: int
    ) -> AllocationOwner[DriverMemory]:
        """As `allocate`, memory that can be exported."""
        return self.allocate(device_id, nbytes, 1, stream, self._create)

    def find(self, data: int) -> DriverMemory | None:
        """The memory with *data* in it that was made so that it can be exported."""
        for known in self._exportable.copy():
            memory = known()
            if memory is None or memory.parts is None:
                continue
            if 0 <= data - memory.pointer < memory.parts.nbytes:
                return memory
        return None

    def export_memory(self, memory: DriverMemory, data: int) -> ExportedMemory:
        """A new file descriptor for memory that can be exported."""
        driver, owner = self.driver, Owner(_descriptors, c_int(-1))
        parts, offset = memory.parts, data - memory.pointer
        codes: list[int] = []
        export = "export", codes, addressof(owner.resource), parts.handle.value, _FILE, 0
        driver.run(driver.contexts[memory.device_id], driver.note, *export)
        return ExportedMemory(owner.resource.value, parts.nbytes, offset, CUDA, owner)

    def _make(
        self, memory: DriverMemory, parts: _Parts, make: Callable[..., None], *arguments: Any
    ) -> None:
        """Let *make* call the driver for *parts*, which become those of *memory*."""
        memory.parts = parts
        try:
            make(*arguments)
        except Error:
            parts.end()
            memory.parts = None  # for another try
            raise
        memory.cell.value = parts.address.value
        join(self._exportable, memory)


_close = os.close


def _close_file(cell: c_int) -> bool:
    number, cell.value = cell.value, -1
    if number >= 0:
        _close(number)
    return True


_descriptors: Resources[c_int] = Resources(_close_file)


class _Parts:
    """What several calls of the driver give for one memory."""

    def __init__(self) -> None:
        self.handle, self.address, self.nbytes = c_uint64(), c_uint64(), 0
        self._steps: list[tuple[list[int], list[int], str, tuple[Any, ...]]] = []

    def step(self, name: str, arguments: tuple[Any, ...], undo: str, *undone: Any) -> None:
        """Call *name*; `end` will call *undo* with what the cells *undone* have then."""
        given: list[int] = []
        self._steps.append((given, [], undo, undone))
        gpu.note(name, given, *arguments)

    def end(self) -> None:
        """Take back what has been given, the last first."""
        for given, taken, undo, undone in reversed(self._steps):
            if given == [0] and taken[-1:] != [0]:
                gpu.note(undo, taken, *(getattr(each, "value", each) for each in undone))


class _OfCUDA(_Parts):
    """A handle of memory that can be exported, and an address where it is mapped."""

    def create(self, device_id: int, nbytes: int) -> None:
        """New memory, in whole units."""
        wanted = MemoryProperties(_PINNED, _FILE, _DEVICE, device_id)
        unit = gpu.answer("get_granularity", c_uint64(), byref(wanted), 0)  # the least
        size = -(-nbytes // unit) * unit
        create = self.handle, size, byref(wanted), 0
        self.step("create", create, "release", self.handle)
        self._map(device_id, size)

    def open(self, device_id: int, memory: ExportedMemory) -> None:
        """Memory that CUDA has exported. The descriptor stays the caller's."""
        self.step("open", (self.handle, memory.fd, _FILE), "release", self.handle)
        self._map(device_id, memory.nbytes)

    def _map(self, device_id: int, size: int) -> None:
        """Find an address at which the device reads and writes all of the memory."""
        self.nbytes, at = size, self.address
        self.step("reserve", (at, size, 0, 0, 0), "unreserve", at, size)
        self.step("map", (at.value, size, 0, self.handle.value, 0), "unmap", at, size)
        access = Access(_DEVICE, device_id, _READ_WRITE)
        gpu.call("set_access", at.value, size, byref(access), 1)


class _OfOthers(_Parts):
    """Another driver's memory as a CUexternalMemory, and the address of its buffer."""

    def open(self, _device_id: int, memory: ExportedMemory) -> None:
        """The memory of a descriptor, which stays the caller's."""
        self.nbytes = memory.nbytes
        self._files: list[int] = []
        wanted = ExternalMemory.make(noted(self._files, os.dup, memory.fd), memory.nbytes)
        opened = self.handle, byref(wanted)
        self.step("open_external", opened, "close_external", self.handle)
        whole = ExternalBuffer(size=memory.nbytes)
        mapping = self.address, self.handle.value, byref(whole)
        self.step("map_external", mapping, "free", self.address)

    def end(self) -> None:
        """Close the descriptor, unless the driver has taken it over, by its success."""
        super().end()
        if not self._steps or self._steps[0][0] != [0]:
            with suppress(IndexError):
                deque(map(os.close, map(self._files.pop, [-1])))  # one step: it is closed once
