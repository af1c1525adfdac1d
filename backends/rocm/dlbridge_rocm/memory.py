"""Allocation: stream-ordered pools for device memory, and pinned memory."""

from __future__ import annotations

import logging
import mmap
import threading
from collections import deque
from functools import cache
from typing import ClassVar

from dlbridge.errors import DeviceMemoryError, Error, ExchangeError

from .capture import State, refuse_capture, relaxed, state
from .devices import attribute, current
from .driver import NOT_SUPPORTED, CaptureError, answer, call, check, status, version
from .library import constant, ffi
from .pointers import locate
from .streams import device_of, existing, wait_on_host

__all__ = ["DeviceMemory", "Memory", "PinnedMemory", "default_pool"]

_log = logging.getLogger(__name__)

FREES_KEPT = 256
"""Of so many frees the streams are remembered, to be waited for when there is no room."""


class Memory:
    """One kind of memory: what the calls for it have in common."""

    device_name: ClassVar[str]

    def __init__(self) -> None:
        self._base: dict[int, int] = {}  # over-aligned pointer -> what the runtime gave
        self._deferred: deque[tuple[int, int, int]] = deque()
        self._freed_on: dict[int, deque[int]] = {}  # device -> the streams of the last frees

    def allocate(self, device_id: int, nbytes: int, alignment: int, stream: int) -> int:
        """*nbytes* bytes at a multiple of *alignment*, for work on *stream*.

        DeviceMemoryError if there is no room, also after the pool has given
        back what it kept; ExchangeError while *stream* is capturing.
        """
        with current(device_id):
            existing(stream, device_id)
            refuse_capture(stream, "allocated")
            self._free_deferred()
            pointer = self._obtain_or_trim(device_id, nbytes, stream)
            if pointer % alignment == 0:
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
        self._deferred.append((device_id, self._base.pop(pointer, pointer), stream))
        self._free_deferred()

    def _free_deferred(self) -> None:
        for _ in range(len(self._deferred)):
            try:
                device_id, pointer, stream = self._deferred.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                if not self._released(device_id, pointer, stream):
                    self._deferred.append((device_id, pointer, stream))
            except CaptureError:  # refused while somebody captures: another time
                self._deferred.append((device_id, pointer, stream))
            except Error as exc:  # in a finalizer nobody could catch it
                # Its text: a record that is kept must not keep the frames of the callers.
                why = str(exc)
                _log.error("%s memory at %#x is not freed: %s", self.device_name, pointer, why)

    def _released(self, device_id: int, pointer: int, stream: int) -> bool:
        """Whether *pointer* could be given back: not while *stream* is capturing."""
        with current(device_id):
            if device_of(stream, device_id) is not None and state(stream) is not State.RUNS:
                return False
            self._release(device_id, pointer, stream)
            return True

    def _obtain_or_trim(self, device_id: int, nbytes: int, stream: int) -> int:
        try:
            return self._obtain(device_id, nbytes, stream)
        except DeviceMemoryError:
            self._trim(device_id, stream)
        try:
            return self._obtain(device_id, nbytes, stream)
        except DeviceMemoryError as exc:
            room = ffi.new("size_t[2]")
            call("hipMemGetInfo", room, room + 1)
            raise DeviceMemoryError(
                f"no room for {nbytes} bytes of {self.device_name} memory (device {device_id} "
                f"has {room[0]} of {room[1]} bytes free); {exc}"
            ) from exc

    def _obtain(self, device_id: int, nbytes: int, stream: int) -> int:
        raise NotImplementedError

    def _release(self, device_id: int, pointer: int, stream: int) -> None:
        raise NotImplementedError

    def _trim(self, device_id: int, stream: int) -> None:
        """Give kept memory back to the system, so that a second try has a chance.

        Only the caller's *stream* is waited for, and those with frees on the way:
        hipDeviceSynchronize ends every graph capture in the process
        (CHECK_SUPPORTED_DURING_CAPTURE in AMD's code).
        """
        for other in {stream, *self._freed_on.get(device_id, ())}:
            if device_of(other, device_id) is not None and state(other) is State.RUNS:
                wait_on_host(other)


class DeviceMemory(Memory):
    """Memory of the device's default pool, in stream order; or plain, where it has none."""

    device_name = "rocm"

    def __init__(self) -> None:
        super().__init__()
        self._without_pool: set[int] = set()  # devices that have hipMallocAsync, but refuse it

    def _obtain(self, device_id: int, nbytes: int, stream: int) -> int:
        if self._pool(device_id):
            pointer = ffi.new("hipDeviceptr_t *")
            code = status("hipMallocAsync", pointer, nbytes, stream)
            if code != NOT_SUPPORTED:
                check("hipMallocAsync", code)
                return int(pointer[0])
            self._without_pool.add(device_id)
        with relaxed():
            return int(answer("hipMalloc", "hipDeviceptr_t", nbytes))

    def _release(self, device_id: int, pointer: int, stream: int) -> None:
        if self._pool(device_id) and device_of(stream, device_id) is not None:
            call("hipFreeAsync", pointer, stream)
            self._freed_on.setdefault(device_id, deque(maxlen=FREES_KEPT)).append(stream)
            return
        _wait_before_free(device_id, stream)
        with relaxed():
            call("hipFree", pointer)

    def _trim(self, device_id: int, stream: int) -> None:
        super()._trim(device_id, stream)
        pool = self._pool(device_id)
        if pool:
            call("hipMemPoolTrimTo", pool, 0)

    def _pool(self, device_id: int) -> int:
        return 0 if device_id in self._without_pool else default_pool(device_id)


class PinnedMemory(Memory):
    """Page-locked host memory that every device can use."""

    device_name = "rocm_host"

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

    def borrow(self, device_id: int, address: int, nbytes: int) -> tuple[int, int]:
        """Use somebody's memory in place until `free`, page-locked if it is not yet.

        What to free, and how far behind it *address* is: memory inside an
        import shares its lock. ExchangeError as `borrow_refusal` says.
        """
        flags = constant("hipHostRegisterPortable") | constant("hipHostRegisterMapped")
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
                with current(device_id), relaxed():
                    call("hipHostRegister", address, nbytes, flags)
                self._ends[address] = address + nbytes
            self._imports[address] = self._imports.get(address, 0) + 1
            return address, 0

    def _obtain(self, device_id: int, nbytes: int, stream: int) -> int:
        flags = constant("hipHostMallocPortable") | constant("hipHostMallocMapped")
        with relaxed():
            return int(answer("hipHostMalloc", "hipDeviceptr_t", nbytes, flags))

    def _release(self, device_id: int, pointer: int, stream: int) -> None:
        imported = pointer in self._imports
        if not imported or pointer in self._ends:
            _wait_before_free(device_id, stream)  # also if others remain, who know nothing of it
        if not imported:
            with relaxed():
                call("hipHostFree", pointer)
            return
        with self._lock:
            if self._imports[pointer] > 1:
                self._imports[pointer] -= 1
                return
            if pointer in self._ends:  # else somebody else page-locked it, and will undo it
                with relaxed():
                    call("hipHostUnregister", pointer)
                del self._ends[pointer]
            del self._imports[pointer]


def _wait_before_free(device_id: int, stream: int) -> None:
    """Let the work on *stream* finish, or all work if its owner has destroyed it.

    The latter ends graph captures in other threads (`Memory._trim` says why), and
    HIP has nothing that would tell or wait otherwise: a stream has to outlive
    the tensors last used on it where somebody captures.
    """
    if device_of(stream, device_id) is None:
        call("hipDeviceSynchronize")
    else:
        wait_on_host(stream)


@cache
def default_pool(device_id: int) -> int:
    """The device's default pool, told to keep what is freed; 0 if it is not to be used.

    HIP 5 calls its pools beta, and its first ones refuse the default stream. A
    release threshold of 0, the default, gives everything back to the system at
    each synchronisation; one that somebody else has set is left alone, for the
    pool belongs to the whole process.
    """
    if version() < (6, 0) or not attribute(device_id, "MemoryPoolsSupported"):
        return 0
    pool = ffi.new("hipMemPool_t *")
    code = status("hipDeviceGetDefaultMemPool", pool, device_id)
    if code == NOT_SUPPORTED:
        return 0
    check("hipDeviceGetDefaultMemPool", code)
    which = constant("hipMemPoolAttrReleaseThreshold")
    threshold = ffi.new("uint64_t *")
    call("hipMemPoolGetAttribute", pool[0], which, threshold)
    if threshold[0] == 0:
        threshold[0] = 2**64 - 1
        call("hipMemPoolSetAttribute", pool[0], which, threshold)
    return int(pool[0])
