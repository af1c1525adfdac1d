"""Device memory: buffers that are allocated, kept for reuse, and released.

``data`` is a ``cl_mem`` as an integer.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyopencl as cl

from dlbridge.errors import Error, ExchangeError

from . import devices, forking, handles, queues, sharing
from .driver import Call
from .errors import no_room, translated
from .forking import in_child, inherited

__all__ = ["adopt", "allocate", "buffer_of", "free", "is_ours", "live_allocations"]

IDLE_PART = 4
"""Unused buffers may occupy one part in so many of the device's memory."""

_flags = cl.mem_flags


@dataclass(frozen=True)
class _Owned:
    """A buffer that was made here, and whether its memory belongs to the host."""

    buffer: cl.Buffer
    nbytes: int
    over_host: bool
    exports: int
    """The number of exports before it was made (`sharing.exports`)."""


_owned: dict[int, _Owned] = inherited({})  # data -> its buffer
_released: list[cl.Buffer] = inherited([])  # by finalizers, of drivers for one thread at a time


class _Pool:
    """Unused buffers of a device, by the queue that used them last and their size.

    A buffer is used again on the same in-order queue only: work of the old owner
    that is still running there is over before work of the new owner begins.

    A Ctrl-C between two lines makes the count of bytes too high and never too low.
    """

    def __init__(self) -> None:
        self._idle: dict[tuple[int, int], list[cl.Buffer]] = {}
        self._nbytes = 0

    def take(self, queue: int, nbytes: int) -> cl.Buffer | None:
        with sharing.lock:
            buffers = self._idle.get((queue, nbytes))
            if not buffers:
                return None
            buffer = buffers.pop()
            self._nbytes -= nbytes
            return buffer

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


_pools: dict[int, _Pool] = inherited({})  # one per device, as each device has its own memory


def _pool(device_id: int) -> _Pool:
    return _pools.get(device_id) or _pools.setdefault(device_id, _Pool())


def allocate(device_id: int, nbytes: int, alignment: int, stream: int) -> int:
    """A buffer of *nbytes* bytes in the context of the queue *stream*.

    It may contain the bytes of an earlier buffer. Drivers align every buffer for
    their widest type; *alignment* changes nothing.

    The buffer is recorded as the last step. So a caller that stores the result
    in an owner which exists already loses no memory when a Ctrl-C comes.
    """
    queue = queues.resolve(device_id, stream)
    buffer = _pool(device_id).take(queue.int_ptr, nbytes)
    if buffer is None:
        buffer = _new_buffer(device_id, queue, nbytes)
    data: int = buffer.int_ptr
    owned = _Owned(buffer, nbytes, over_host=False, exports=sharing.exports())
    _owned[data] = owned
    return data


def adopt(buffer: cl.Buffer, nbytes: int) -> int:
    """Record *buffer*, which was made over host memory; its ``data``."""
    data: int = buffer.int_ptr
    owned = _Owned(buffer, nbytes, over_host=True, exports=sharing.exports())
    _owned[data] = owned
    return data


def free(device_id: int, data: int, stream: int) -> None:
    """Release *data*; never raises an Error, as it may run in a finalizer.

    OpenCL itself keeps a released buffer until the commands on it are done
    (clReleaseMemObject). So only memory that nobody else can have is kept for the
    next tensor. Host memory is different: its owner may use it for something else
    after this, so the work of all known queues is waited for.
    """
    if in_child():
        return  # the buffer belongs to the parent process
    owned = _owned.pop(data, None)
    if owned is None:
        return
    shared = sharing.forget(data)
    try:
        chosen = devices.device(device_id)
        if owned.over_host:
            _finish_all([*shared, *queues.all_in(owned.buffer.context)], device_id)
        if not chosen.thread_safe:
            _released.append(owned.buffer)
        elif owned.over_host or shared or owned.exports != sharing.exports():
            return  # others may still use it
        elif queues.is_ours(stream, owned.buffer.context):
            limit = chosen.memory // IDLE_PART
            _pool(device_id).put(stream, owned.nbytes, owned.buffer, limit)
    except (Error, cl.Error):  # the context is lost, and the memory with it
        return


def _finish_all(waiting: list[cl.CommandQueue], device_id: int) -> None:
    """Wait for every queue, also after a Ctrl-C: kernels may still write to the host's memory."""
    interruption: BaseException | None = None
    while waiting:
        try:
            queues.finish(device_id, waiting[-1])
            waiting.pop()
        except Error:  # a lost context has no work left
            waiting.pop()
        except BaseException as exc:
            interruption = exc
    if interruption is not None:
        raise interruption


def is_ours(buffer: cl.MemoryObject) -> bool:
    """Whether *buffer* was made here, and has not been freed."""
    return buffer.int_ptr in _owned


def live_allocations() -> int:
    """The number of results of `allocate` and `import_host` that have not been freed."""
    return len(_owned)


def buffer_of(data: int, offset: int = 0, nbytes: int = 0) -> cl.MemoryObject:
    """The buffer *data*, made here or by another library, which contains the bytes asked for.

    ExchangeError if it is not memory of the drivers in use, or if the region
    reaches outside it.
    """
    if forking.forked:  # read here: a call at each step would cost more than the step
        forking.refuse()
    owned = _owned.get(data)
    if owned is not None:
        buffer = owned.buffer
    elif handles.is_object(data):
        buffer = cl.MemoryObject.from_int_ptr(data, True)
    else:
        raise ExchangeError(f"opencl: {data:#x} is not a cl_mem of the drivers in use")
    if offset < 0 or offset + nbytes > buffer.size:
        raise ExchangeError(
            f"opencl: {nbytes} bytes at offset {offset} reach outside the {buffer.size} "
            f"bytes of {data:#x}"
        )
    return buffer


def _new_buffer(device_id: int, queue: cl.CommandQueue, nbytes: int) -> cl.Buffer:
    chosen = devices.device(device_id)
    service = queues.service(device_id, queue.context)
    try:
        with chosen.lock, Call():
            if not chosen.thread_safe:
                _released.clear()
            try:
                return _committed(chosen, service, nbytes)
            except cl.Error as exc:
                if not no_room(exc):
                    raise
            for pool in list(_pools.values()):  # several devices may share one memory
                pool.clear()
            queue.finish()  # a released buffer is deleted when the commands on it are done
            return _committed(chosen, service, nbytes)
    except cl.Error as exc:
        doing = f"allocating {nbytes} bytes on opencl:{device_id}"
        if nbytes > chosen.max_allocation:
            doing += (
                f" (every driver accepts up to {chosen.max_allocation} bytes in one buffer on "
                f"{chosen.name}, and this one does not accept more)"
            )
        raise translated(exc, doing, allocating=True) from exc


def _committed(chosen: devices.Device, service: cl.CommandQueue, nbytes: int) -> cl.Buffer:
    """A new buffer whose memory exists: a later command does not fail for want of it."""
    flags = _flags.READ_WRITE
    if chosen.shares_memory:
        # Mapping it for the host then copies nothing. PoCL allocates it now; without the
        # flag it would abort the process at the first command if there is no memory.
        flags |= _flags.ALLOC_HOST_PTR
    buffer = cl.Buffer(service.context, flags, size=nbytes)
    if not chosen.shares_memory:
        # Drivers of GPUs allocate at the first command on the buffer, and that fails then.
        cl.enqueue_fill_buffer(service, buffer, b"\0", 0, 1).wait()
    return buffer
