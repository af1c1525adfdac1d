"""A device of torch in Python, "late": bytes on the host, streams that run late, and counts.

`torch.utils.backend_registration._setup_privateuseone_for_python_backend` lets the kernels of a
device be functions of Python. Its tensors are real ones, on memory with addresses: torch makes them
of capsules. Its device guard is torch's own and does nothing, so that the streams are this module's.
Work on a stream is done by a thread, `DELAY` seconds late; memory that is freed is given to the next
request on its stream at once, as torch's allocators for devices do.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

DELAY = float(os.environ.get("LATE_DELAY_US", "0")) * 1e-6
DEVICES = 2
MEMORY = 1 << 30
HANDLES = 0x7A7E0000
"""The native handle of a device's default stream, which is not 0; others come after it."""

# Streams ------------------------------------------------------------------------------


class Queue:
    """The work of one stream, in order, by a thread of its own."""

    def __init__(self):
        self.lock = threading.RLock()  # a destructor puts work, too
        self.work = queue.SimpleQueue()
        self.thread = None
        self.failure = None
        self.queued = self.done = 0

    def put(self, function):
        self.raise_failure()
        self.enqueue(function)

    def enqueue(self, function):
        with self.lock:
            if self.thread is None:
                self.thread = threading.Thread(target=self.run, daemon=True)
                self.thread.start()
            self.queued += 1
            self.work.put(function)

    def run(self):
        while True:
            function = self.work.get()
            if DELAY:
                time.sleep(DELAY)
            try:
                function()
            except Exception as exc:
                self.failure = exc
            self.done += 1
            del function

    def mark(self):
        """An event that is set when the work that is queued now is done."""
        event = threading.Event()
        self.enqueue(event.set)
        return event

    def synchronize(self):
        if self.queued != self.done:
            self.mark().wait()
        self.raise_failure()

    def raise_failure(self):
        failure, self.failure = self.failure, None
        if failure is not None:
            raise RuntimeError(f"earlier work on this stream has failed: {failure}") from failure


_queues: dict[tuple[int, int], Queue] = {}
_numbers = iter(range(1, 1 << 30))
_thread = threading.local()


class Stream(torch.Stream):
    """torch's class, whose functions know nothing of a device in Python."""

    def __new__(cls, device=None, *, stream_id=None, device_index=None):
        if device_index is None:
            device_index = 0 if device is None else torch.device("late", device).index
        number = next(_numbers) if stream_id is None else stream_id
        made = super().__new__(cls, stream_id=number, device_index=device_index, device_type=20)
        _queues.setdefault((device_index, number), Queue())
        return made

    @property
    def queue(self):
        return _queues[self.device_index, self.stream_id]

    @property
    def native_handle(self):
        return HANDLES + 16 * self.stream_id

    def synchronize(self):
        self.queue.synchronize()

    def query(self):
        return self.queue.queued == self.queue.done

    def wait_stream(self, other):
        COUNTS.waits += 1
        self.queue.put(other.queue.mark().wait)


def current_stream(device=None):
    index = _index(device)
    return getattr(_thread, "streams", {}).get(index) or default_stream(index)


def default_stream(device=None):
    return Stream(stream_id=0, device_index=_index(device))


@contextmanager
def stream(chosen):
    before = getattr(_thread, "streams", {})
    _thread.streams = {**before, chosen.device_index: chosen}
    try:
        yield chosen
    finally:
        _thread.streams = before


def _index(device):
    index = device.index if isinstance(device, torch.device) else device
    index = index or 0
    if not 0 <= index < DEVICES:
        raise RuntimeError(f"late: invalid device ordinal {index}")
    return index


# Memory -------------------------------------------------------------------------------


class Block:
    """Memory of one tensor, until torch drops it."""

    def __init__(self, key, memory):
        self.key, self.memory, self.users = key, memory, set()
        address = memory.ctypes.data + -memory.ctypes.data % 256
        self.address = address
        interface = {"version": 3, "typestr": "|u1", "shape": (key[2],), "data": (address, False)}
        self.__array_interface__ = interface

    def __del__(self):
        key, memory = self.key, self.memory
        waits = [_queues[each].mark() for each in self.users]

        def free():
            for each in waits:
                each.wait()
            _free.setdefault(key, []).append(memory)

        if waits:
            _reclaimer.put(free)
        else:
            free()


_free: dict[tuple[int, int, int], list[np.ndarray]] = {}
_blocks: WeakValueDictionary[int, Block] = WeakValueDictionary()
_reclaimer = Queue()
COUNTS = SimpleNamespace(allocations=0, reserved=0, waits=0, records=0, copies=0, fills=0)


def allocate(nbytes, index):
    """Memory for the current stream, as an array that keeps its `Block`."""
    size = 1 << max(8, (max(nbytes, 1) - 1).bit_length())
    key = index, current_stream(index).stream_id, size
    COUNTS.allocations += 1
    try:
        memory = _free[key].pop()
    except (KeyError, IndexError):
        if COUNTS.reserved + size > MEMORY:
            empty_cache()
        if COUNTS.reserved + size > MEMORY:
            raise torch.OutOfMemoryError(
                f"late out of memory: no room for {nbytes} bytes"
            ) from None
        memory = np.empty(size + 256, "u1")
        COUNTS.reserved += size
    block = Block(key, memory)
    _blocks[block.address] = block
    return np.asarray(block)[: max(nbytes, 1)]


def empty_cache():
    for key in list(_free):
        freed = _free.pop(key)
        COUNTS.reserved -= key[2] * len(freed)


def memory_allocated(index=None):
    """The bytes of tensors, on one device or on all of them."""
    # `values()` fails where another thread makes a block meanwhile.
    blocks = [each() for each in _blocks.valuerefs()]
    return sum(each.key[2] for each in blocks if each and index in (None, each.key[0]))


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def on_device(array, index):
    """torch's tensor of the device on the memory of *array*, which it keeps."""
    capsule = array.__dlpack__()
    struct = _capsule_pointer(capsule, b"dltensor")  # the device is behind the address
    ctypes.c_int32.from_address(struct + 8).value = 12
    ctypes.c_int32.from_address(struct + 12).value = index
    return torch._C._from_dlpack(capsule)


def bytes_of(tensor):
    """The elements of a tensor as a numpy array of integers of their size, without a copy."""
    size = tensor.element_size()
    strides = [step * size for step in tensor.stride()]
    if not tensor.numel():
        return np.empty(tuple(tensor.shape), f"V{size}")
    extent = sum((n - 1) * step for n, step in zip(tensor.shape, strides, strict=True)) + size
    memory = (ctypes.c_char * extent).from_address(tensor.data_ptr())
    kind = "c16" if size == 16 else f"u{size}"
    return np.ndarray(tuple(tensor.shape), kind, memory, 0, strides)


# Kernels ------------------------------------------------------------------------------

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
aten = torch.ops.aten


def _kernel(name):
    def register(function):
        torch.library.impl(f"aten::{name}", "privateuseone")(function)
        return function

    return register


def _of_cpu(operator):
    """Let torch's own function for the CPU change shapes and strides; it reads no memory."""
    return lambda *arguments, **named: operator.redispatch(_CPU, *arguments, **named)


_kernel("as_strided")(_of_cpu(aten.as_strided.default))
_kernel("view")(_of_cpu(aten.view.default))
_kernel("_reshape_alias")(_of_cpu(aten._reshape_alias.default))
_kernel("set_.source_Storage")(_of_cpu(aten.set_.source_Storage))
_kernel("set_.source_Storage_storage_offset")(_of_cpu(aten.set_.source_Storage_storage_offset))


@_kernel("empty.memory_format")
def empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    strides = [1] * len(size)
    for axis in range(len(size) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(size[axis + 1], 1)
    return empty_strided(size, strides, dtype=dtype, device=device)


@_kernel("empty_strided")
def empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
    dtype = dtype or torch.get_default_dtype()
    extent = 0 if 0 in size else 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    memory = on_device(allocate(extent * dtype.itemsize, _index(device)), _index(device))
    if not extent:
        memory = memory[:0]
    return aten.view.dtype(memory, dtype).as_strided(size, stride, 0)


@_kernel("_copy_from")
def copy_from(source, target, non_blocking=False):
    device = target.device if target.device.type == "late" else source.device
    on = current_stream(device).queue
    COUNTS.copies += 1
    if source.dtype != target.dtype:
        raise RuntimeError("late: no conversions in copies")
    there, here = bytes_of(target), bytes_of(source.expand_as(target))
    if source.device.type == "cpu":
        on.raise_failure()
        here = here.copy()

    def copy():
        there[...] = here

    on.put(copy)
    if target.device.type == "cpu" and not non_blocking:
        on.synchronize()
    return target


@_kernel("fill_.Scalar")
def fill(target, value):
    COUNTS.fills += 1
    value = torch.full((), value, dtype=target.dtype)
    wanted, there = bytes_of(value)[()], bytes_of(target)
    current_stream(target.device).queue.put(lambda: there.fill(wanted))
    return target


@_kernel("record_stream")
def record_stream(tensor, stream):
    COUNTS.records += 1
    block = _blocks.get(tensor.untyped_storage().data_ptr())
    if block is not None:
        block.users.add((stream.device_index, stream.stream_id))


# The module torch.late -------------------------------------------------------------------


def synchronize(device=None):
    index = _index(device)
    for (of, _), each in list(_queues.items()):
        if of == index:
            each.synchronize()


_process = os.getpid()

MODULE = SimpleNamespace(
    Stream=Stream,
    current_device=lambda: 0,
    current_stream=current_stream,
    default_stream=default_stream,
    device_count=lambda: DEVICES,
    empty_cache=empty_cache,
    get_device_name=lambda device=None: f"Late {_index(device)}",
    get_device_properties=lambda device=None: SimpleNamespace(total_memory=MEMORY),
    is_available=lambda: True,
    is_initialized=lambda: True,
    _is_in_bad_fork=lambda: os.getpid() != _process and COUNTS.allocations > 0,
    manual_seed_all=lambda seed: None,
    memory_allocated=memory_allocated,
    stream=stream,
    synchronize=synchronize,
)

_setup_privateuseone_for_python_backend("late", backend_module=MODULE)


# Signals ---------------------------------------------------------------------------------


def defer_signals():
    """Let Python's handlers of signals wait for the end of this device's functions.

    The functions of a real device are C, in which no handler runs. Where a handler raises at the
    first instruction of a kernel in Python, the frames under it stay (torch 2.13, CPython 3.11), and
    with them the memory. Python shows the handler the frame of the caller then, which is one of
    the backend's calls of torch: these are left alone, too.
    """
    set_handler = signal.signal

    def deferred(number, handler):
        def handle(signum, frame):
            inside = frame
            while inside is not None:
                if inside.f_code.co_filename == __file__ or inside.f_code.co_name == "_plainly":
                    signal.setitimer(signal.ITIMER_REAL, 2e-5)
                    return None
                inside = inside.f_back
            return handler(signum, frame)

        return set_handler(number, handle if callable(handler) else handler)

    signal.signal = deferred
