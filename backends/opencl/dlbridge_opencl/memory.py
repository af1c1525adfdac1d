"""Device memory: who owns a buffer, where it is found again, and the host memory in place.

``data`` is a ``cl_mem`` as an integer.
"""

from __future__ import annotations

import ctypes
import functools
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

from dlbridge.errors import DeviceMemoryError, Error, ExchangeError
from dlbridge.kit.backend import address_of
from dlbridge.kit.resources import (
    AllocationOwner,
    Owner,
    Resources,
    do_all,
    recall,
    remember,
    shared_lock,
)

from . import devices, foreign, queues
from .driver import context_of, lasting, write_buffer

if TYPE_CHECKING:
    from weakref import ref

    from dlbridge.protocol import Span

FROM_HOST = 64 << 10
"""Bytes up to which memory is made together with its content. PoCL 3.1 then copies in the
caller's thread: 0.4 us for 64 bytes, where a command takes 12 to 25 us to wake a thread. Fresh
memory costs more with its size; 64 buffers of 64 KiB take 7 us each, 256 KiB 25, against 28 and 49
by a command on a busy machine, and less than half of that on a quiet one. From
128 KiB on malloc may fetch pages from the system."""

_flags = cl.mem_flags

READONLY = _flags.READ_ONLY | _flags.HOST_READ_ONLY
"""Of host memory that was imported read-only. Intel's CPU runtime 2026.22 has no status of its own
where such memory is to be mapped for writing (CL_INVALID_VALUE): `views` does not ask it."""


class Memory:
    """A buffer, and what is asked of it often.

    *stream* is that of the last work on it. *users* has the queues of users of it, if there are
    any, and *is_ours* says whether the buffer was made here.
    """

    __slots__ = (
        "buffer",
        "context",
        "device",
        "host_address",
        "in_place",
        "is_ours",
        "is_readonly",
        "nbytes",
        "stream",
        "users",
    )

    def __init__(
        self, device: devices.Device, context: cl.Context, nbytes: int, stream: int
    ) -> None:
        self.buffer: Any = None
        self.device = device
        self.context = context
        self.nbytes = nbytes
        self.stream = stream
        self.users: queues.Users | None = None
        self.is_ours = True
        self.in_place = False
        """Whether the memory is the host's."""
        self.is_readonly = False
        """Whether it was imported to be read only."""
        self.host_address = 0
        """The host's address of its first byte; 0 where nobody has asked for it."""


live: dict[int, Memory] = lasting({})
"""data -> memory that was made here; an entry goes before its buffer does."""
_left: list[cl.Buffer] = lasting([])
"""What finalizers have left to whoever makes memory next, for drivers of one thread at a time."""


def _release(memory: Memory) -> bool:
    """Let the buffer go. OpenCL itself keeps it until the commands on it are done.

    (clReleaseMemObject.) For host memory in place it waits for these.
    """
    buffer = memory.buffer
    if buffer is not None:
        if memory.in_place:
            noted = [] if memory.users is None else memory.users.queues
            every = [*noted, *queues.all_in(memory.context)]
            # Also after a Ctrl-C: kernels may still write to the host's memory.
            do_all(functools.partial(_finish, memory.device.number), every)
        live.pop(buffer.int_ptr, None)
        if not memory.device.thread_safe:
            _left.append(buffer)
        memory.buffer = None
    return True


_resources: Resources[Memory] = Resources(_release)


def _drop(reference: list[object]) -> bool:
    reference.clear()
    return True


_references: Resources[list[object]] = Resources(_drop)


def reference_to(device_id: int, data: int, context: cl.Context) -> Owner[list[object]]:
    """A reference of our own to a user's buffer, which the user may release at any time.

    And to its *context*, which not every driver keeps (`driver.context_of`).
    """
    owner: Owner[list[object]] = Owner(_references, [])
    if devices.device(device_id).thread_safe:  # other drivers are not called by finalizers
        owner.resource.extend((context, cl.MemoryObject.from_int_ptr(data, True)))
    return owner


def _finish(device_id: int, queue: cl.CommandQueue) -> None:
    """Wait for the queue; a lost context has no work left."""
    with suppress(Error):
        queues.finish(device_id, queue)


def live_allocations() -> int:
    """How many results of `allocate` and `import_host` there are whose memory is not back."""
    return len(_resources)


def import_data(device_id: int, data: int, module: str) -> tuple[int, int]:
    """`foreign.import_data`, which is not asked about what was made here."""
    memory = live.get(data)
    if memory is not None:
        return memory.device.number, data
    device_id, data = foreign.import_data(device_id, data, module)
    if _left and any(buffer.int_ptr == data for buffer in _left.copy()):
        raise ExchangeError(
            f"opencl: data {data:#x} from {module} is memory of dlbridge that was freed: keep the "
            "tensor, or its capsule, as long as its memory is used"
        )
    return device_id, data


def memory_at(device_id: int, data: int) -> Memory:
    """The memory *data*, made here or by another library.

    ExchangeError if it is not memory of the drivers in use.
    """
    try:
        return live[data]
    except KeyError:
        pass
    if not foreign.is_object(data):
        raise ExchangeError(f"opencl: {data:#x} is not a cl_mem of the drivers in use")
    buffer = cl.MemoryObject.from_int_ptr(data, True)
    memory = Memory(devices.device(device_id), context_of(buffer), buffer.size, 0)
    memory.buffer, memory.is_ours = buffer, False
    memory.users = recall(queues.users_of, data)
    memory.host_address = _host_address(buffer)
    return memory


# Where the host has the bytes -----------------------------------------------------


class HostAddress:
    """The host's address of the first byte of a user's buffer; kept by the views of it."""

    __slots__ = ("__weakref__", "host_address")

    def __init__(self, host_address: int) -> None:
        self.host_address = host_address


_host_addresses: dict[int, ref[HostAddress]] = {}
_host_addresses_lock = shared_lock()


def _whole_of(buffer: Any) -> Any:
    """The buffer that *buffer* is a part of, or itself; None if that one has no handle any more.

    A part keeps its whole (OpenCL 3.0, 5.2.3). With Intel's CPU runtime 2026.22 it keeps the memory
    only (measured).
    """
    try:
        parent = buffer.get_info(cl.mem_info.ASSOCIATED_MEMOBJECT)
    except cl.LogicError:
        return None
    return parent if isinstance(parent, cl.Buffer) else buffer


def whole(buffer: Any, offset: int) -> tuple[Any, int]:
    """The buffer that *buffer* is a part of, or itself, and the offset in it."""
    root = _whole_of(buffer)
    if root is None or root is buffer:
        return buffer, offset
    return root, offset + buffer.get_info(cl.mem_info.OFFSET)


def _host_address(buffer: Any) -> int:
    """The host's address of the first byte of a user's *buffer*; 0 if it is not known."""
    if buffer.flags & _flags.USE_HOST_PTR:
        host = buffer.get_host_array((1,), np.uint8)
        return int(host.__array_interface__["data"][0])
    root, offset = whole(buffer, 0)
    known = live.get(root.int_ptr) or recall(_host_addresses, root.int_ptr)
    return known.host_address + offset if known is not None and known.host_address else 0


def note_host_address(memory: Memory, address: int, offset: int) -> object:
    """Note that byte *offset* of a user's *memory* is at *address* while the result exists."""
    root, offset = whole(memory.buffer, offset)
    known: Memory | HostAddress | None
    with _host_addresses_lock:
        known = live.get(root.int_ptr) or recall(_host_addresses, root.int_ptr)
        if known is None:
            remember(_host_addresses, root.int_ptr, known := HostAddress(0))
        known.host_address = address - offset
    return known


def overlaps_host(memory: Memory, host: memoryview) -> bool:
    """Whether *host* and *memory* share bytes; False if the `host_address` is not known."""
    if not memory.host_address:
        return False
    begin, first = address_of(host), memory.host_address
    return begin < first + memory.nbytes and first < begin + host.nbytes


def share_bytes(one: Memory, other: Memory) -> bool:
    """Whether two buffers share bytes: parts of one, or host memory that both use in place."""
    if one.buffer is other.buffer:
        return False  # the core has compared the offsets
    first, second = one.host_address, other.host_address
    if first and second:
        return first < second + other.nbytes and second < first + one.nbytes
    if one.is_ours and other.is_ours:
        return False
    wholes = _whole_of(one.buffer), _whole_of(other.buffer)
    return wholes[0] is None or wholes[1] is None or bool(wholes[0] == wholes[1])


def find(span: Span) -> Memory:
    """The memory, made here or by another library, which contains the bytes of *span*.

    ExchangeError if it is not memory of the drivers in use, or if the bytes reach outside it.
    """
    device_id, data, offset, nbytes = span
    try:
        memory = live[data]
    except KeyError:
        memory = memory_at(device_id, data)
    if offset < 0 or offset + nbytes > memory.nbytes:
        raise ExchangeError(
            f"opencl: {nbytes} bytes at offset {offset} reach outside the {memory.nbytes} "
            f"bytes of {data:#x}"
        )
    return memory


def find_target(span: Span) -> Memory:
    """The same for a command of the device that writes to *span*; not to read-only memory.

    CL_MEM_READ_ONLY is a rule for kernels only: PoCL 3.1 copies into such a buffer (measured).
    Drivers themselves refuse uploads, as the buffer has CL_MEM_HOST_READ_ONLY.
    """
    memory = find(span)
    if memory.is_readonly:
        raise ExchangeError(
            f"opencl:{span.device_id}: {span.data:#x} is read-only memory of the host, to which "
            "nothing may write; copy it: dlbridge.to_device(x, device, copy=True)"
        )
    return memory


def allocate(
    device_id: int, nbytes: int, alignment: int, stream: int, content: memoryview | None = None
) -> AllocationOwner[Memory]:
    """A buffer of *nbytes* bytes in the context of the queue *stream*, with *content*.

    Drivers align every buffer for their widest type; *alignment* changes nothing.
    """
    try:
        at = queues.OURS[stream]
    except KeyError:
        at = queues.resolve(device_id, stream)
    owner = AllocationOwner(_resources, Memory(at.device, at.context, nbytes, stream))
    try:
        return _made(owner, at, content)
    except DeviceMemoryError:
        queues.finish(device_id, at.queue)  # a released buffer waits for the commands on it
        return _made(owner, at, content)


def _made(
    owner: AllocationOwner[Memory], at: queues.Stream, content: memoryview | None
) -> AllocationOwner[Memory]:
    """*owner* with a buffer whose memory exists: a later command does not fail for want of it."""
    memory, chosen = owner.resource, at.device
    nbytes, flags, run = memory.nbytes, _flags.READ_WRITE, chosen.driver.run
    doing = _allocating(chosen.number, nbytes)
    if chosen.shares_memory:
        # Mapping it for the host then copies nothing. PoCL allocates it now; without the
        # flag it would abort the process at the first command if there is no memory.
        flags |= _flags.ALLOC_HOST_PTR
    if not chosen.thread_safe:
        run("releasing memory", _left.clear)
    at_once = content is not None and chosen.copies_at_once
    size = nbytes
    if at_once:
        flags |= _flags.COPY_HOST_PTR
        size = 0
    memory.buffer = run(
        doing, cl.Buffer, at.context, flags, size, content if at_once else None, allocating=True
    )
    if not chosen.shares_memory:
        # Drivers of GPUs allocate at the first command on the buffer, and that fails then.
        service = queues.service(chosen.number, at.context)
        try:
            run(doing, _first_command, service, memory.buffer, allocating=True)
        except Error:
            memory.buffer = None
            raise
    data = memory.buffer.int_ptr
    live[data] = memory
    owner.data, owner.nbytes = data, nbytes
    if content is not None and not at_once:
        doing = "copying from the host"
        run(doing, write_buffer, at.queue, memory.buffer, content, 0, None, True)
    return owner


@functools.lru_cache(maxsize=1024)  # to format it takes a tenth of the time to make 4 KiB
def _allocating(device_id: int, nbytes: int) -> str:
    """What is done, for messages."""
    chosen = devices.device(device_id)
    doing = f"allocating {nbytes} bytes on opencl:{device_id}"
    if nbytes <= chosen.max_allocation:
        return doing
    return (
        f"{doing} (every driver accepts up to {chosen.max_allocation} bytes in one buffer on "
        f"{chosen.name}, and this one does not accept more)"
    )


def _first_command(queue: cl.CommandQueue, buffer: cl.Buffer) -> None:
    cl.enqueue_fill_buffer(queue, buffer, b"\0", 0, 1).wait()


# Host memory in place (CL_MEM_USE_HOST_PTR) ---------------------------------------

PAGE = 4096
"""Bytes."""

CPU_ALIGNMENT = 64
"""Bytes. A kernel may take its buffer for ``float16 *``, which OpenCL C lets the
compiler read as aligned: PoCL 3.1 then crashes on memory that is not (measured)."""

GPU_GRANULARITY = 64
"""Bytes. GPUs that share memory use it in place only if it begins at a page and its
size is a multiple of this (Intel's and Arm's OpenCL guides; not confirmed on hardware)."""


def host_import_refusal(device_id: int, address: int, nbytes: int, demanded: bool) -> str:
    """Why the device does not use this host memory in place; empty if it does."""
    chosen = devices.device(device_id)
    if not (demanded or chosen.shares_memory):
        return f"{chosen.name} has memory of its own (CL_DEVICE_HOST_UNIFIED_MEMORY is false)"
    return _refusal(chosen, address, nbytes, readonly=False)


def _refusal(chosen: devices.Device, address: int, nbytes: int, *, readonly: bool) -> str:
    if nbytes > chosen.max_allocation:
        return f"{chosen.name} allows {chosen.max_allocation} bytes in one buffer"
    alignment = CPU_ALIGNMENT if chosen.is_cpu else PAGE
    if address % alignment:
        return f"its address {hex(address)} {_why_misaligned(chosen.name, alignment)}"
    if not chosen.is_cpu and nbytes % GPU_GRANULARITY:
        return f"its size is not a multiple of {GPU_GRANULARITY} bytes, as {chosen.name} needs"
    if not chosen.is_cpu and readonly:
        return (
            f"it is read-only, and the driver of a GPU as {chosen.name} may pin pages for writing"
        )
    trouble = _why_not_one_memory(chosen.number)
    if not trouble:
        return ""
    own = "" if chosen.shares_memory else " has memory of its own, and"
    return f"{chosen.name}{own}: {trouble}"


@functools.cache  # most arrays are refused so: to format it took a tenth of an upload of 4 KiB
def _why_misaligned(name: str, alignment: int) -> str:
    return (
        f"is not a multiple of {alignment} bytes, which kernels on {name} may rely on; memory of "
        f"dlbridge.empty(shape, dtype, alignment={alignment}).numpy() needs no copy"
    )


def import_host(
    device_id: int, address: int, nbytes: int, readonly: bool, stream: int
) -> AllocationOwner[Memory]:
    """A buffer over host memory; ExchangeError where it is refused."""
    chosen, context = devices.device(device_id), devices.context(device_id)
    if refusal := _refusal(chosen, address, nbytes, readonly=readonly):
        raise ExchangeError(f"opencl:{device_id}: cannot use host memory in place: {refusal}")
    memory = Memory(chosen, context, nbytes, stream)
    memory.in_place, memory.is_readonly = True, readonly
    owner = AllocationOwner(_resources, memory)
    flags = READONLY if readonly else _flags.READ_WRITE
    service = queues.service(device_id, context)

    def make() -> None:
        if not chosen.thread_safe:
            _left.clear()
        host = host_memory(address, nbytes, readonly)
        memory.buffer = cl.Buffer(context, flags | _flags.USE_HOST_PTR, hostbuf=host)
        if not chosen.is_cpu:
            # Drivers of GPUs pin the pages at the first command, and that fails then.
            cl.enqueue_copy(service, bytearray(1), memory.buffer, is_blocking=True)

    chosen.driver.run(f"using {nbytes} bytes of host memory in place", make, allocating=True)
    owner.data, owner.nbytes = memory.buffer.int_ptr, nbytes
    memory.host_address = address
    live[owner.data] = memory
    return owner


_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
_view.restype = ctypes.py_object
_READ, _WRITE = 0x100, 0x200  # PyBUF_READ, PyBUF_WRITE


def host_memory(address: int, nbytes: int, readonly: bool) -> memoryview:
    """The bytes at *address*; the caller keeps their owner alive."""
    view: memoryview = _view(address, nbytes, _READ if readonly else _WRITE)
    return view


@functools.cache
def _why_not_one_memory(device_id: int) -> str:
    """Why host memory in place is not one memory with the device's; empty if it is.

    CL_MEM_USE_HOST_PTR does not promise that: a driver may "cache the buffer contents
    pointed to by host_ptr in device memory", and only mapping makes the two equal
    (OpenCL 3.0, 5.2.1). Some drivers do so always, some where it suits them. A tensor
    over a user's array is never mapped when the user writes to the array. So it is tried on
    two pages, once per device: a millisecond.
    """
    raw = np.zeros(3 * PAGE, "u1")
    start = -raw.ctypes.data % PAGE
    host = raw[start : start + 2 * PAGE]
    context = devices.context(device_id)
    queue = queues.service(device_id, context)

    def look() -> str:
        buffer = cl.Buffer(context, _flags.READ_WRITE | _flags.USE_HOST_PTR, hostbuf=host)
        scratch = cl.Buffer(context, _flags.READ_WRITE, size=host.nbytes)
        try:
            return _compare(queue, host, buffer, scratch)
        finally:
            queue.finish()
            buffer.release()  # before its memory, in every case

    try:
        return str(devices.device(device_id).driver.run("trying host memory in place", look))
    except Error as exc:
        return f"its driver does not use host memory in place ({exc})"


def _compare(
    queue: cl.CommandQueue, host: np.ndarray[Any, Any], buffer: cl.Buffer, scratch: cl.Buffer
) -> str:
    """Why the two differ, with *scratch* to see what the device sees."""
    seen = np.empty_like(host)
    # Two rounds: a driver may fetch the host's bytes once, at the first command.
    for turn in (1, 2):
        host[:] = turn
        cl.enqueue_copy(queue, scratch, buffer)
        cl.enqueue_copy(queue, seen, scratch, is_blocking=True)
        if not (seen == turn).all():
            return "its driver keeps a copy of host memory, and the device reads that copy"
        cl.enqueue_fill_buffer(queue, buffer, bytes([100 + turn]), 0, host.nbytes)
        queue.finish()
        if not (host == 100 + turn).all():
            return "its driver keeps a copy of host memory, and the device writes to that copy"
    return ""
