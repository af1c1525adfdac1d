"""Device memory: buffers that are allocated, kept for reuse, and released.

``data`` is a ``cl_mem`` as an integer.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyopencl as cl

from dlbridge.errors import Error, ExchangeError

from . import devices, forking, handles, queues, sharing
from .driver import Call
from .errors import no_room, translated
from .forking import inherited

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "OWNED",
    "Owned",
    "adopt",
    "allocate",
    "allocate_from_host",
    "allocate_from_host_limit",
    "buffer_of",
    "free",
    "is_kept",
    "is_ours",
    "live_allocations",
    "release_freed",
    "trim",
]

FROM_HOST = 64 << 10
"""Bytes up to which memory is made together with its content. PoCL 3.1 then copies in the
caller's thread: 0.4 us for 64 bytes, where a command takes 12 to 25 us to wake a thread. Fresh
memory costs more with its size; 64 buffers of 64 KiB take 7 us each, 256 KiB 25, against 28 and 49
by the pool and a command on a busy machine, and less than half of that on a quiet one. From
128 KiB on malloc may fetch pages from the system."""

_flags = cl.mem_flags
_WITH_CONTENT = _flags.READ_WRITE | _flags.ALLOC_HOST_PTR | _flags.COPY_HOST_PTR


class Owned(NamedTuple):
    """A buffer that was made here, and what is asked of it often."""

    buffer: cl.Buffer
    nbytes: int
    context: cl.Context | None
    """Its context, if that is one of our queues' (`queues.OURS`)."""
    over_host: bool
    """Whether its memory belongs to the host."""
    reusable: bool
    """Whether it is kept for another tensor when it is freed."""
    exports: int
    """The number of exports before it was made (`sharing.exports`)."""


_owned = partial(tuple.__new__, Owned)
"""An `Owned` of a tuple: the class itself takes twice as long."""

OWNED: dict[int, Owned] = inherited({})
"""data -> its buffer"""

_released: list[cl.Buffer] = inherited([])  # by finalizers, of drivers for one thread at a time


class _Pool:
    """Unused buffers of a device, by the queue that used them last and their size.

    A buffer is used again on the same in-order queue only: work of the old owner
    that is still running there is over before work of the new owner begins.

    A Ctrl-C between two lines makes the count of bytes too high and never too low, and
    leaves no handle in *handles* whose buffer is gone.
    """

    def __init__(self) -> None:
        self._idle: dict[tuple[int, int], list[cl.Buffer]] = {}
        self._nbytes = 0
        self.handles: set[int] = set()

    def take(self, queue: int, nbytes: int) -> cl.Buffer | None:
        with sharing.lock:
            buffers = self._idle.get((queue, nbytes))
            if not buffers:
                return None
            self.handles.discard(buffers[-1].int_ptr)
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
            self.handles.add(buffer.int_ptr)

    def clear(self) -> None:
        with sharing.lock:
            self.handles = set()
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
    buffer = _pool(device_id).take(stream or queue.int_ptr, nbytes)
    if buffer is None:
        buffer = _new_buffer(device_id, queue, nbytes)
    data: int = buffer.int_ptr
    ours = queues.OURS.get(stream)
    context = None if ours is None else ours.context
    owned = _owned((buffer, nbytes, context, False, True, sharing.exports))
    OWNED[data] = owned
    return data


def allocate_from_host_limit(device_id: int) -> int:
    """`FROM_HOST` on CPUs; 0 on other devices, where nothing is known of it."""
    return FROM_HOST if devices.device(device_id).copies_at_once else 0


def allocate_from_host(device_id: int, source: memoryview, alignment: int, stream: int) -> int:
    """A buffer with the bytes of *source*, made without a command; 0 if that fails.

    The last step is that of `allocate`. It is not kept for another tensor: a new one is
    as cheap.
    """
    chosen, ours = devices.device(device_id), queues.OURS.get(stream)
    if ours is None or ours.device is not chosen or not chosen.copies_at_once:
        return 0
    try:
        with Call():
            buffer = cl.Buffer(ours.context, _WITH_CONTENT, 0, source)
    except cl.Error:  # no room, mostly: `allocate` makes some, or says why not
        return 0
    data: int = buffer.int_ptr
    owned = _owned((buffer, len(source), ours.context, False, False, sharing.exports))
    OWNED[data] = owned
    return data


def adopt(buffer: cl.Buffer, nbytes: int, context: cl.Context) -> int:
    """Record *buffer*, which was made over host memory in *context*; its ``data``."""
    data: int = buffer.int_ptr
    owned = Owned(buffer, nbytes, context, True, False, sharing.exports)
    OWNED[data] = owned
    return data


def free(device_id: int, data: int, stream: int) -> None:
    """Release *data*; never raises an Error, as it may run in a finalizer.

    OpenCL itself keeps a released buffer until the commands on it are done
    (clReleaseMemObject). So only memory that nobody else can have is kept for the
    next tensor. Host memory is different: its owner may use it for something else
    after this, so the work of all known queues is waited for.
    """
    taken: list[Any] = []
    try:
        _free(taken, device_id, data, stream)
    except BaseException:
        # Of a signal handler, in a destructor: nobody calls this again.
        _free(taken, device_id, data, stream)
        raise


def _free(taken: list[Any], device_id: int, data: int, stream: int) -> None:
    """See `free`. *taken* records what is done: a second call does the rest."""
    if forking.forked:
        return  # the buffer belongs to the parent process
    if not taken:
        taken.extend(map(OWNED.pop, (data,), (None,)))  # one step, as other threads may free too
    owned: Owned | None = taken[0]
    if owned is None:
        return
    if len(taken) == 1:
        taken.extend(map(sharing.QUEUES.pop, (data,), ((),)))  # one step again
    shared: Sequence[cl.CommandQueue] = taken[1]
    try:
        chosen = devices.device(device_id)
        if owned.over_host:
            _finish_all([*shared, *queues.all_in(owned.buffer.context)], device_id)
        if len(taken) > 2:
            return
        taken.append("given on")  # before it is: only a buffer that is kept once may be reused
        if not chosen.thread_safe:
            _released.append(owned.buffer)
        elif not owned.reusable or shared or owned.exports != sharing.exports:
            return  # others may still use it, or a new one is as cheap
        elif queues.is_ours(stream, owned.context or owned.buffer.context):
            _pool(device_id).put(stream, owned.nbytes, owned.buffer, chosen.pool_limit)
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
    return buffer.int_ptr in OWNED


def is_kept(data: int) -> bool:
    """Whether *data* was freed here, and its buffer is kept: the next tensor may be in it."""
    if data in OWNED:
        return False
    if any(buffer.int_ptr == data for buffer in _released.copy()):
        return True
    return any(data in pool.handles for pool in _pools.copy().values())


def live_allocations() -> int:
    """The number of results of `allocate` and `import_host` that have not been freed."""
    return len(OWNED)


def buffer_of(data: int, offset: int = 0, nbytes: int = 0) -> cl.MemoryObject:
    """The buffer *data*, made here or by another library, which contains the bytes asked for.

    ExchangeError if it is not memory of the drivers in use, or if the region
    reaches outside it.
    """
    if forking.forked:  # read here: a call at each step would cost more than the step
        forking.refuse()
    owned = OWNED.get(data)
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


def release_freed(chosen: devices.Device) -> None:
    """Release what `free` has left to a caller that holds the driver's lock, as this one does."""
    if not chosen.thread_safe:
        _released.clear()


def trim(device_id: int) -> None:
    """Release the unused buffers of the device.

    The driver gives up their memory when the commands on them are done.
    """
    chosen = devices.device(device_id)
    try:
        with chosen.lock, Call():
            release_freed(chosen)
            pool = _pools.get(device_id)
            if pool is not None:
                pool.clear()
    except cl.Error as exc:
        raise translated(exc, f"giving back what opencl:{device_id} keeps") from exc


def _new_buffer(device_id: int, queue: cl.CommandQueue, nbytes: int) -> cl.Buffer:
    chosen = devices.device(device_id)
    service = queues.service(device_id, queue.context)
    try:
        with chosen.lock, Call():
            release_freed(chosen)
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
