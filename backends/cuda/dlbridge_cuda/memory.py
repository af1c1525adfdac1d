"""Allocation: stream-ordered pools for device memory, pinned and managed memory."""

from __future__ import annotations

import logging
import mmap
import threading
from collections import deque
from functools import cache
from typing import Any, ClassVar

from dlbridge.errors import DeviceMemoryError, Error, ExchangeError

from .capture import State, refuse_capture, relaxed, state
from .contexts import attribute, current, primary
from .driver import CaptureError, call, check, cu, status
from .pointers import locate
from .streams import LEGACY, PER_THREAD, handle

__all__ = ["DeviceMemory", "ManagedMemory", "Memory", "PinnedMemory"]

_log = logging.getLogger(__name__)

FREES_KEPT = 256
"""Of so many frees the streams are remembered, to be waited for when there is no room."""

_INVALID_HANDLE = 400  # CUDA_ERROR_INVALID_HANDLE: a stream that was destroyed meanwhile


class Memory:
    """One kind of memory: what its driver calls have in common."""

    device_name: ClassVar[str]

    def __init__(self) -> None:
        self._base: dict[int, int] = {}  # over-aligned pointer -> what the driver gave
        self._deferred: deque[tuple[int, int, int]] = deque()
        self._freed_on: dict[int, deque[int]] = {}  # device -> the streams of the last frees

    def allocate(self, device_id: int, nbytes: int, alignment: int, stream: int) -> int:
        """*nbytes* bytes at a multiple of *alignment*, for work on *stream*.

        DeviceMemoryError if there is no room, also after the pool has given
        back what it kept; ExchangeError while *stream* is capturing.
        """
        stream = handle(stream)
        with current(primary(device_id)):
            refuse_capture(stream, "allocated")
            self._free_deferred()
            pointer = self._obtain_or_trim(device_id, nbytes, stream)
            if pointer % alignment == 0:  # 256 is what drivers give without being asked
                return pointer
            self.free(device_id, pointer, stream)
            base = self._obtain_or_trim(device_id, nbytes + alignment, stream)
            pointer = -(-base // alignment) * alignment
            self._base[pointer] = base
            return pointer

    def free(self, device_id: int, pointer: int, stream: int) -> None:
        """Give *pointer* back once the work now on *stream* has passed. Never raises.

        While the stream is capturing, the memory is kept until later: a free
        would become part of the graph, or break it.
        """
        stream = handle(stream)
        if stream == PER_THREAD:
            stream = LEGACY  # waits for every thread's; this may run in another thread
        self._deferred.append((device_id, self._base.pop(pointer, pointer), stream))
        self._free_deferred()

    def _free_deferred(self) -> None:
        """Free what can be freed now; failures are logged, for a finalizer has no caller."""
        for _ in range(len(self._deferred)):
            try:
                device_id, pointer, stream = self._deferred.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                with current(primary(device_id)):
                    if state(stream) is State.RUNS:
                        self._release(pointer, stream)
                    else:
                        self._deferred.append((device_id, pointer, stream))
            except CaptureError:  # it began after we asked
                self._deferred.append((device_id, pointer, stream))
            except Error as exc:
                # Its text: a record that is kept must not keep the frames of the callers.
                why = str(exc)
                _log.error("%s memory at %#x is not freed: %s", self.device_name, pointer, why)

    def _obtain_or_trim(self, device_id: int, nbytes: int, stream: int) -> int:
        try:
            return self._obtain(device_id, nbytes, stream)
        except DeviceMemoryError:
            self._trim(device_id, stream)
        try:
            return self._obtain(device_id, nbytes, stream)
        except DeviceMemoryError as exc:
            free, total = call("cuMemGetInfo")
            raise DeviceMemoryError(
                f"no room for {nbytes} bytes of {self.device_name} memory (device {device_id} "
                f"has {int(free)} of {int(total)} bytes free); {exc}"
            ) from exc

    def _obtain(self, device_id: int, nbytes: int, stream: int) -> int:
        raise NotImplementedError

    def _release(self, pointer: int, stream: int) -> None:
        raise NotImplementedError

    def _trim(self, device_id: int, stream: int) -> None:
        """Give kept memory back to the driver, so that a second try has a chance.

        Only the caller's *stream* is waited for, and those with frees on the way:
        cuCtxSynchronize would end every graph capture of the context (CUDA programming
        guide, stream capture, "Prohibited and Unhandled Operations").
        """
        for other in {stream, *self._freed_on.get(device_id, ())}:
            if state(other) is State.RUNS:
                _finish(other)


class DeviceMemory(Memory):
    """Memory of the device's default pool, allocated and freed in stream order."""

    device_name = "cuda"

    def _obtain(self, device_id: int, nbytes: int, stream: int) -> int:
        if default_pool(device_id) is None:
            with relaxed():
                return int(call("cuMemAlloc", nbytes))
        return int(call("cuMemAllocAsync", nbytes, stream))

    def _release(self, pointer: int, stream: int) -> None:
        device_id = int(call("cuCtxGetDevice"))
        if default_pool(device_id) is not None:
            code, _ = status("cuMemFreeAsync", pointer, stream)
            if code != _INVALID_HANDLE:
                check("cuMemFreeAsync", code)
                self._freed_on.setdefault(device_id, deque(maxlen=FREES_KEPT)).append(stream)
                return
        _wait_before_free(stream)
        with relaxed():
            call("cuMemFree", pointer)

    def _trim(self, device_id: int, stream: int) -> None:
        super()._trim(device_id, stream)
        pool = default_pool(device_id)
        if pool is not None:
            call("cuMemPoolTrimTo", pool, 0)


class PinnedMemory(Memory):
    """Page-locked host memory that every device can use at its host address.

    Not kept for re-use: another library's copies may still run on streams that
    are unknown here, and only the driver's own free waits for those.
    """

    device_name = "cuda_host"

    def __init__(self) -> None:
        super().__init__()
        self._imports: dict[int, int] = {}  # where an import begins -> users of it
        self._ends: dict[int, int] = {}  # of those imports that we page-locked
        self._lock = threading.RLock()  # re-entered by a finalizer that frees

    def borrow_refusal(self, address: int, nbytes: int) -> str:
        """Why the memory cannot be page-locked in place; empty if it can, or is already."""
        first, last = locate(address).kind, locate(address + nbytes - 1).kind
        ours = list(self._ends.items())
        if any(start <= address and address + nbytes <= end for start, end in ours):
            return ""
        if any(start < address + nbytes and address < end for start, end in ours):
            return "a part of it is page-locked already, by another import"
        if {first, last} == {"host", "pageable"}:
            return "a part of it is page-locked already, and the rest is not"
        if first == last == "host":
            return ""
        if {first, last} != {"pageable"}:
            kind = first if first != "pageable" else last
            return f"it is {kind} memory, which cannot be page-locked"
        if address % mmap.PAGESIZE:
            return f"it does not begin at a page of {mmap.PAGESIZE} bytes, which are locked whole"
        return ""

    def borrow(self, device_id: int, address: int, nbytes: int, readonly: bool) -> tuple[int, int]:
        """Use somebody's memory in place until `free`, page-locked if it is not yet.

        What to free, and how far behind it *address* is: memory inside an
        import shares its lock. ExchangeError as `borrow_refusal` says.
        """
        with self._lock:
            refusal = self.borrow_refusal(address, nbytes)
            if refusal:
                raise ExchangeError(
                    f"the memory at {address:#x} cannot be used in place: {refusal}"
                )
            for start, end in list(self._ends.items()):
                # no call from here to the count, so that no finalizer comes between
                if start in self._ends and start <= address and address + nbytes <= end:
                    self._imports[start] += 1
                    return start, address - start
            if locate(address).kind != "host":
                self._register(device_id, address, nbytes, readonly)
                self._ends[address] = address + nbytes
            self._imports[address] = self._imports.get(address, 0) + 1
            return address, 0

    def _register(self, device_id: int, address: int, nbytes: int, readonly: bool) -> None:
        flags = cu.CU_MEMHOSTREGISTER_PORTABLE | cu.CU_MEMHOSTREGISTER_DEVICEMAP
        if readonly and attribute(device_id, "READ_ONLY_HOST_REGISTER_SUPPORTED"):
            flags |= cu.CU_MEMHOSTREGISTER_READ_ONLY
        with current(primary(device_id)), relaxed():
            call("cuMemHostRegister", address, nbytes, flags)

    def _obtain(self, device_id: int, nbytes: int, stream: int) -> int:
        flags = cu.CU_MEMHOSTALLOC_PORTABLE | cu.CU_MEMHOSTALLOC_DEVICEMAP
        with relaxed():
            return int(call("cuMemHostAlloc", nbytes, flags))

    def _release(self, pointer: int, stream: int) -> None:
        imported = pointer in self._imports
        if not imported or pointer in self._ends:
            _wait_before_free(stream)  # also if others remain, who know nothing of it
        if not imported:
            with relaxed():
                call("cuMemFreeHost", pointer)
            return
        with self._lock:
            if self._imports[pointer] > 1:
                self._imports[pointer] -= 1
                return
            if pointer in self._ends:  # else somebody else page-locked it, and will undo it
                with relaxed():
                    call("cuMemHostUnregister", pointer)
                del self._ends[pointer]
            del self._imports[pointer]


class ManagedMemory(Memory):
    """Memory that the driver moves between the host and every device."""

    device_name = "cuda_managed"

    def _obtain(self, device_id: int, nbytes: int, stream: int) -> int:
        flags = cu.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL
        with relaxed():
            return int(call("cuMemAllocManaged", nbytes, flags))

    def _release(self, pointer: int, stream: int) -> None:
        _wait_before_free(stream)
        with relaxed():
            call("cuMemFree", pointer)


def _wait_before_free(stream: int) -> None:
    """Let the work on *stream* finish, or all work if its owner has destroyed it.

    The latter ends graph captures (`Memory._trim`), and CUDA has nothing that would
    wait otherwise: a stream has to outlive the tensors last used on it where
    somebody captures.
    """
    destroyed = _finish(stream)
    if destroyed:
        with relaxed():
            call("cuCtxSynchronize")


def _finish(stream: int) -> bool:
    """Block until the work on *stream* is done. True if its owner has destroyed it instead."""
    with relaxed():
        code, _ = status("cuStreamSynchronize", stream)
    if code == _INVALID_HANDLE:
        return True
    check("cuStreamSynchronize", code)
    return False


@cache
def default_pool(device_id: int) -> Any:
    """The device's default pool, told to keep what is freed; None if it has none.

    A release threshold of 0, the default, gives everything back to the system
    at each synchronisation. One that somebody else has set is left alone: the
    pool belongs to the whole process.
    """
    if not attribute(device_id, "MEMORY_POOLS_SUPPORTED"):
        return None
    pool = call("cuDeviceGetDefaultMemPool", call("cuDeviceGet", device_id))
    threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    if int(call("cuMemPoolGetAttribute", pool, threshold)) == 0:
        call("cuMemPoolSetAttribute", pool, threshold, cu.cuuint64_t(2**64 - 1))
    return pool
