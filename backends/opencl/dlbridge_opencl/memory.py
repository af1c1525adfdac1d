"""Buffers: made, pooled, wrapped around host memory, and given back.

``data`` is a ``cl_mem`` as an integer.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import pyopencl as cl

from dlbridge.errors import DeviceMemoryError, Error, ExchangeError

from . import devices, handles, queues, sharing
from .driver import InDriver
from .errors import no_room, translated

__all__ = [
    "allocate",
    "buffer_of",
    "free",
    "host_import_refusal",
    "host_memory",
    "import_host",
    "is_ours",
    "live_allocations",
]

HOST_ALIGNMENT = 64
"""Bytes. A kernel may take its buffer for ``float16 *``, which OpenCL C lets the
compiler read as aligned: PoCL 3.1 then crashes on memory that is not (measured)."""

GPU_ALIGNMENT = 4096
GPU_GRANULARITY = 64
"""Bytes. What GPUs that share memory ask of address and size before they use
it in place (Intel's and Arm's OpenCL guides; not confirmed on hardware)."""

IDLE_PART = 4
"""Idle buffers may hold one part in so many of the device's memory."""

_flags = cl.mem_flags


@dataclass(frozen=True)
class _Owned:
    """A buffer made here, and whether the host owns its memory."""

    buffer: cl.Buffer
    nbytes: int
    over_host: bool
    exports: int
    """How many there had been before it (`sharing.exports`)."""


_owned: dict[int, _Owned] = {}  # data -> what is behind it
_released: list[cl.Buffer] = []  # by finalizers, of drivers that only one thread may enter


class _Pool:
    """Buffers of a device that nobody uses, by the queue that used them last and their size.

    A buffer is used again on the same in-order queue only: work there that is
    still running is over before the new owner's begins.
    """

    def __init__(self) -> None:
        self._idle: dict[tuple[int, int], list[cl.Buffer]] = {}
        self._nbytes = 0

    def take(self, queue: int, nbytes: int) -> cl.Buffer | None:
        with sharing.lock:
            buffers = self._idle.get((queue, nbytes))
            if not buffers:
                return None
            self._nbytes -= nbytes
            return buffers.pop()

    def put(self, queue: int, nbytes: int, buffer: cl.Buffer, limit: int) -> None:
        if nbytes > limit:
            return
        with sharing.lock:
            if self._nbytes + nbytes > limit:
                self.clear()
            self._nbytes += nbytes
            self._idle.setdefault((queue, nbytes), []).append(buffer)

    def clear(self) -> None:
        with sharing.lock:
            self._idle = {}
            self._nbytes = 0


_pools: dict[int, _Pool] = {}  # device_id -> its own, as each device has room of its own


def _pool(device_id: int) -> _Pool:
    return _pools.get(device_id) or _pools.setdefault(device_id, _Pool())


def allocate(device_id: int, nbytes: int, alignment: int, stream: int) -> int:
    """A buffer of *nbytes*, in the context of the queue *stream*.

    It may hold what an earlier one held. Drivers align all buffers for their
    widest type; *alignment* changes nothing.
    """
    chosen = devices.device(device_id)
    if nbytes > chosen.max_allocation:
        raise DeviceMemoryError(
            f"opencl:{device_id}: no room for {nbytes} bytes: {chosen.name} allows "
            f"{chosen.max_allocation} in one allocation, and has {chosen.memory}"
        )
    queue = queues.resolve(device_id, stream)
    buffer = _pool(device_id).take(queue.int_ptr, nbytes)
    if buffer is None:
        with InDriver(device_id):
            if not chosen.thread_safe:
                _released.clear()
            buffer = _new_buffer(device_id, queue, nbytes)
    data: int = buffer.int_ptr
    _owned[data] = _Owned(buffer, nbytes, over_host=False, exports=sharing.exports())
    return data


def free(device_id: int, data: int, stream: int) -> None:
    """Give *data* back; never raises, as it may run in a finalizer.

    OpenCL itself keeps a released buffer until the work that was enqueued on it
    is done (clReleaseMemObject). So only memory that nobody else can have had is
    kept for the next tensor. Host memory is different: its owner may
    take it back after this, so that work is waited for.
    """
    owned = _owned.pop(data, None)
    if owned is None:
        return
    shared = sharing.forget(data)
    try:
        chosen = devices.device(device_id)
        if not chosen.thread_safe:
            _released.append(owned.buffer)
        elif owned.over_host:
            for queue in shared:
                queues.finish(device_id, queue)
            queues.finish_all(device_id, owned.buffer.context)
        elif shared or owned.exports != sharing.exports():
            return  # others may still use it
        elif queues.is_ours(stream, owned.buffer.context):
            limit = chosen.memory // IDLE_PART
            _pool(device_id).put(stream, owned.nbytes, owned.buffer, limit)
    except (Error, cl.Error):  # the context is lost, and the memory with it
        return


def is_ours(buffer: cl.MemoryObject) -> bool:
    """Whether *buffer* was made here, and has not been freed."""
    return buffer.int_ptr in _owned


def live_allocations() -> int:
    """How many of `allocate` and `import_host` have not been freed."""
    return len(_owned)


def buffer_of(data: int, offset: int = 0, nbytes: int = 0) -> cl.MemoryObject:
    """The buffer *data*, ours or another library's, that has the bytes asked for.

    ExchangeError if it is no memory of the drivers in use, or the region is not
    inside it.
    """
    owned = _owned.get(data)
    if owned is not None:
        buffer = owned.buffer
    elif handles.is_object(data):
        buffer = cl.MemoryObject.from_int_ptr(data, True)
    else:
        raise ExchangeError(f"opencl: {data:#x} is no cl_mem of the drivers in use")
    if offset < 0 or offset + nbytes > buffer.size:
        raise ExchangeError(
            f"opencl: {nbytes} bytes at offset {offset} reach outside the {buffer.size} "
            f"bytes of {data:#x}"
        )
    return buffer


def host_import_refusal(device_id: int, address: int, nbytes: int) -> str:
    """Why the device cannot use this host memory in place; empty if it can."""
    chosen = devices.device(device_id)
    if not chosen.shares_memory:
        return f"{chosen.name} has memory of its own (CL_DEVICE_HOST_UNIFIED_MEMORY is false)"
    if nbytes > chosen.max_allocation:
        return f"{chosen.name} allows {chosen.max_allocation} bytes in one buffer"
    alignment = HOST_ALIGNMENT if chosen.is_cpu else GPU_ALIGNMENT
    if address % alignment:
        return (
            f"its address {address:#x} is no multiple of {alignment} bytes, which kernels on "
            f"{chosen.name} may rely on"
        )
    if not chosen.is_cpu and nbytes % GPU_GRANULARITY:
        return f"its size is no multiple of {GPU_GRANULARITY} bytes, as {chosen.name} needs"
    return ""


def import_host(device_id: int, address: int, nbytes: int, readonly: bool) -> tuple[int, int]:
    """A buffer over host memory (CL_MEM_USE_HOST_PTR)."""
    if refusal := host_import_refusal(device_id, address, nbytes):
        raise ExchangeError(f"opencl:{device_id}: cannot use host memory in place: {refusal}")
    flags = _flags.READ_ONLY | _flags.HOST_READ_ONLY if readonly else _flags.READ_WRITE
    try:
        buffer = cl.Buffer(
            devices.context(device_id),
            flags | _flags.USE_HOST_PTR,
            hostbuf=host_memory(address, nbytes, readonly),
        )
    except cl.Error as exc:
        raise translated(exc, f"using {nbytes} bytes of host memory in place") from exc
    data: int = buffer.int_ptr
    _owned[data] = _Owned(buffer, nbytes, over_host=True, exports=sharing.exports())
    return data, 0


_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
_view.restype = ctypes.py_object
_READ, _WRITE = 0x100, 0x200  # PyBUF_READ, PyBUF_WRITE


def host_memory(address: int, nbytes: int, readonly: bool) -> memoryview:
    """The bytes there; whoever uses them keeps their owner."""
    view: memoryview = _view(address, nbytes, _READ if readonly else _WRITE)
    return view


def _new_buffer(device_id: int, queue: cl.CommandQueue, nbytes: int) -> cl.Buffer:
    flags = _flags.READ_WRITE
    if devices.device(device_id).shares_memory:
        # So that mapping it for the host copies nothing; and PoCL allocates now,
        # where it would abort the process if there is no room at the first use.
        flags |= _flags.ALLOC_HOST_PTR
    try:
        try:
            return cl.Buffer(queue.context, flags, size=nbytes)
        except cl.Error as exc:
            if not no_room(exc):
                raise
            for pool in list(_pools.values()):  # several may share one memory
                pool.clear()
            queue.finish()  # released buffers go when their work is done
            return cl.Buffer(queue.context, flags, size=nbytes)
    except cl.Error as exc:
        raise translated(exc, f"opencl:{device_id}: allocating {nbytes} bytes") from exc
