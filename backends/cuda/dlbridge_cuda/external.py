"""Memory that CUDA shares with another driver of the same GPU, or with another process."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from ctypes import c_uint64
from typing import Any, NamedTuple

from dlbridge.errors import DeviceMemoryError, Error, ExchangeError
from dlbridge.kit.capture import refuse_capture
from dlbridge.kit.claims import Freed, Given, uninterrupted
from dlbridge.kit.places import puts_place_back
from dlbridge.kit.pool import PoolMemory
from dlbridge.protocol import ExportedMemory

from .driver import call, cu

__all__ = ["DeviceMemory"]


class DeviceMemory(PoolMemory):
    """Device memory of the pool, memory of others, and memory for other drivers and processes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._external: dict[int, _Made] = {}
        """Address of an import of another driver's memory -> its CUexternalMemory."""
        self._exportable: dict[int, _Made] = {}
        """Address of memory that can be exported -> its handle (cuMemCreate), its size."""
        self.exports = False
        """Whether new memory is made so that it can be exported."""

    def import_memory(self, device_id: int, memory: ExportedMemory) -> tuple[int, int]:
        """The address of the allocation that *memory* is in, and where it is there.

        All of the allocation is mapped: drivers need not map a part that begins anywhere.
        """
        begin = self._open if memory.driver == CUDA else self._import
        cell = c_uint64()
        self.settle()
        try:
            self._alone(device_id, begin, device_id, memory, cell)
            self.consumers.begin(cell.value)
            return cell.value, memory.offset
        except BaseException:
            if cell:
                self._alone(device_id, self._end, cell.value, self._made(cell.value))
            raise

    def _alone(self, device_id: int, work: Callable[..., None], *arguments: Any) -> None:
        """Do *work* in the device's place, where no signal handler runs.

        It takes no lock of ours: what runs it may be a finalizer of a thread that has one.
        """
        driver = self.driver

        def in_place() -> None:
            with driver.at(driver.place(device_id)), driver.relaxed():
                work(*arguments)

        uninterrupted(in_place)

    def _open(self, device_id: int, memory: ExportedMemory, cell: c_uint64) -> None:
        """Put the address of CUDA's own memory, of another process, into *cell*."""
        pointer, made = _opened(device_id, memory)
        self._exportable[pointer] = made
        cell.value = pointer

    def _import(self, _device_id: int, memory: ExportedMemory, cell: c_uint64) -> None:
        """Put the address of another driver's memory into *cell*."""
        with ExitStack() as undo:
            handle = _imported(memory)
            undo.callback(call, "cuDestroyExternalMemory", handle)
            pointer = int(call("cuExternalMemoryGetMappedBuffer", handle, _all(memory.nbytes)))
            made = _Made(handle, memory.nbytes)
            if self._external.setdefault(pointer, made) is not made:
                raise ExchangeError(
                    f"CUDA maps two imports of one memory at {pointer:#x}; drop the first "
                    "import, or copy"
                )
            undo.pop_all()
        cell.value = pointer

    def obtain(self, device_id: int, nbytes: int, stream: int, cell: c_uint64) -> None:
        """Memory of the pool; with `exports` memory of its own, whole units of 2 MiB."""
        if not self.exports:
            super().obtain(device_id, nbytes, stream, cell)
            return
        self._alone(device_id, self._create, device_id, nbytes, cell)

    def _create(self, device_id: int, nbytes: int, cell: c_uint64) -> None:
        """Put the address of new memory that can be exported into *cell*."""
        pointer, made = _created(device_id, nbytes)
        self._exportable[pointer] = made
        cell.value = pointer

    @puts_place_back
    def allocate_exportable_into(self, given: Given, nbytes: int) -> None:
        """As `allocate_into`, memory that can be exported whatever `exports` says."""
        driver, device_id, stream = self.driver, given.device_id, given.stream
        with driver.at(driver.place(device_id)), driver.relaxed():
            driver.require_stream(stream, device_id)
            refuse_capture(driver, stream, "allocated")
            self.settle()
            create = self._create, device_id, nbytes, given.cell
            try:
                self._alone(device_id, *create)
            except DeviceMemoryError:
                self.settle(wait=True)
                self.trim(device_id, stream)
                self._alone(device_id, *create)
            self.consumers.begin(given.cell.value, stream, driver.stream_id(stream, device_id))

    def export_refusal(self, device_id: int, pointer: int) -> str:
        """Why *pointer* cannot be given to another driver; empty if it can."""
        if pointer in self._exportable:
            return ""
        return (
            "CUDA's memory was not allocated for other drivers; set DLBRIDGE_CUDA_EXPORT=1 "
            "before the first use of CUDA"
        )

    def export_memory(self, device_id: int, pointer: int) -> ExportedMemory:
        """A new file descriptor for the memory at *pointer*, which the caller closes."""
        refusal = self.export_refusal(device_id, pointer)
        if refusal:
            raise ExchangeError(f"the memory at {pointer:#x} cannot be exported: {refusal}")
        made = self._exportable[pointer]
        opened: list[int] = []

        def export() -> None:
            opened.append(int(call("cuMemExportToShareableHandle", made.handle, _FILE, 0)))

        try:
            self._alone(device_id, export)
            return ExportedMemory(opened[0], made.nbytes, 0, CUDA)
        except BaseException:
            for fd in opened:
                os.close(fd)
            raise

    def give_up(self, freed: Freed) -> None:
        """Free behind the work on the memory; an import has ended when this returns."""
        pointer = freed.pointer
        imported = pointer in self._external
        super().give_up(freed)
        if imported and pointer in self._external and not self.driver.guard.in_child:
            self.settle(wait=True)  # the other driver may use the memory anew after this

    def release(self, device_id: int, pointer: int, stream: int, codes: list[Any]) -> None:
        """Free behind the work on *stream*; the end of an import waits for that work."""
        begun = [code for code in codes if isinstance(code, _Made)]
        made = begun[0] if begun else self._made(pointer)
        if made is None:
            super().release(device_id, pointer, stream, codes)
            return
        if not begun:
            self.wait_before_free(stream)
            codes.append(made)  # after an exception this free goes on, whoever has the address
        self._alone(device_id, self._end, pointer, made)
        codes.append(0)

    def _made(self, pointer: int) -> _Made | None:
        return self._exportable.get(pointer) or self._external.get(pointer)

    def _end(self, pointer: int, made: _Made | None) -> None:
        """Take back what `_create`, `_open` or `_import` has made, once."""
        if made is self._exportable.get(pointer, self):
            call("cuMemUnmap", pointer, made.nbytes)
            del self._exportable[pointer]  # before another thread can be given the address
            call("cuMemAddressFree", pointer, made.nbytes)
            call("cuMemRelease", made.handle)
        elif made is self._external.get(pointer, self):
            call("cuMemFree", pointer)
            del self._external[pointer]
            call("cuDestroyExternalMemory", made.handle)


class _Made(NamedTuple):
    """The driver's handle of memory, and its bytes."""

    handle: Any
    nbytes: int


CUDA = "cuda"
"""What `ExportedMemory.driver` says of CUDA's own descriptors."""

_FILE = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def _created(device_id: int, nbytes: int) -> tuple[int, _Made]:
    """New memory of the device that can be exported, and its address."""
    wanted = cu.CUmemAllocationProp()
    wanted.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = device_id
    wanted.requestedHandleTypes = _FILE
    flag = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    unit = int(call("cuMemGetAllocationGranularity", wanted, flag))
    size = -(-nbytes // unit) * unit
    with ExitStack() as undo:
        handle = call("cuMemCreate", size, wanted, 0)
        undo.callback(call, "cuMemRelease", handle)
        pointer = _map(device_id, handle, size)
        undo.pop_all()
    return pointer, _Made(handle, size)


def _opened(device_id: int, memory: ExportedMemory) -> tuple[int, _Made]:
    """Memory that CUDA has exported, and its address. The descriptor stays the caller's."""
    with ExitStack() as undo:
        handle = call("cuMemImportFromShareableHandle", memory.fd, _FILE)
        undo.callback(call, "cuMemRelease", handle)
        pointer = _map(device_id, handle, memory.nbytes)
        undo.pop_all()
    return pointer, _Made(handle, memory.nbytes)


def _map(device_id: int, handle: Any, size: int) -> int:
    """An address at which the device reads and writes all of the memory."""
    access = cu.CUmemAccessDesc()
    access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = device_id
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    with ExitStack() as undo:
        pointer = int(call("cuMemAddressReserve", size, 0, 0, 0))
        undo.callback(call, "cuMemAddressFree", pointer, size)
        call("cuMemMap", pointer, size, 0, handle, 0)
        undo.callback(call, "cuMemUnmap", pointer, size)
        call("cuMemSetAccess", pointer, size, [access], 1)
        undo.pop_all()
    return pointer


def _imported(memory: ExportedMemory) -> Any:
    """Memory of another driver as a CUexternalMemory. The descriptor stays the caller's."""
    wanted = cu.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
    wanted.type = cu.CUexternalMemoryHandleType.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
    wanted.size = memory.nbytes
    own = wanted.handle.fd = os.dup(memory.fd)  # the driver takes it over, if it succeeds
    try:
        return call("cuImportExternalMemory", wanted)
    except Error:
        os.close(own)
        raise


def _all(nbytes: int) -> Any:
    wanted = cu.CUDA_EXTERNAL_MEMORY_BUFFER_DESC()
    wanted.offset, wanted.size = 0, nbytes
    return wanted
