"""The simulated driver of a backend as the common tests use it, and helpers on top of it."""

import ctypes
import json
import textwrap
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

import dlbridge
from dlbridge.kit.streams import LIBRARIES
from dlbridge.protocol import Span
from tests.support.scripts import finished

DRIVERS = Path(__file__).resolve().parents[1]
USLEEP = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value
GLOBAL, RELAXED = 0, 2  # modes of capture
NON_BLOCKING, BLOCKING = 1, 0  # flags of streams


def of_library(module, name="Stream", **members):
    """An object as *module* would have made it, without the library."""
    return type(name, (), {"__module__": module, **members})()


class Owner:
    """Stands for the stream object of a library: whoever holds it keeps the stream, until it dies."""

    def __init__(self, stream, destroy):
        self.stream, self.destroy = stream, destroy

    def __del__(self):
        self.destroy(self.stream)


class Rig:
    """One backend under test; a subclass calls the driver, beside the backend."""

    device: str  # the name of its device memory
    host: str  # the name of its pinned memory
    kinds: list  # the names of all its memory
    default: int  # its default stream
    package: str
    libraries: list  # to load in a subprocess
    names: dict  # what a function does -> its name
    checks_addresses_of_copies = False  # else a copy of what is no device memory ends the process
    looks_up_gone_streams = False  # whether the handle of a destroyed stream gives a status
    owners: ClassVar = {}  # handle -> what keeps the stream; who drops it destroys it
    last_resort = None  # the function that allocates device memory when the pool has no room
    rows: ClassVar = {}  # an argument of a test -> its values on this driver

    def create_stream(self, device_id, flags):
        """A stream, which `owners` keeps, as cupy's objects keep theirs."""
        raise NotImplementedError

    def destroy_stream(self, stream, device_id):
        """Drop what keeps the stream, as its library does: it ends if nobody else has that."""
        del self.owners[stream]

    def wait(self, stream, device_id):
        raise NotImplementedError

    def wait_for_device(self, device_id):
        raise NotImplementedError

    def is_idle(self, stream, device_id):
        """Whether all work on the stream is done, without a wait."""
        raise NotImplementedError

    def launch(self, stream, function, argument, device_id):
        raise NotImplementedError

    def begin_capture(self, stream, mode):
        raise NotImplementedError

    def end_capture(self, stream):
        raise NotImplementedError

    def launch_graph(self, graph, stream):
        raise NotImplementedError

    def fork_capture(self, stream, side):
        """Let *side* join the capture of *stream*, as a caller does."""
        raise NotImplementedError

    def gpu(self):
        """The backend's `StreamDriver`."""
        raise NotImplementedError

    def without_pools(self, _fake, _way):
        """The backend on a driver that has no pools, in one of the ways of ``rows["no_pools"]``."""
        raise NotImplementedError

    def calls_of_a_copy(self, counts):
        """*counts* of `copy_calls`, as the backend has made them."""
        return counts

    def events(self):
        """The backend's `EventPool`."""
        raise NotImplementedError

    def where(self):
        """The thread's current context or device."""
        raise NotImplementedError


_rig = Rig()


def use(rig):
    global _rig
    _rig = rig
    # As the current streams of libraries are asked for.
    LIBRARIES[__name__] = lambda _module, stream, _device_id: rig.owners.get(stream)


def rig():
    return _rig


def backend(name=None):
    return dlbridge.backend(name or _rig.device)


def default():
    return _rig.default


@contextmanager
def stream(device_id=0, flags=NON_BLOCKING):
    """A new stream; its handle."""
    handle = _rig.create_stream(device_id, flags)
    try:
        yield handle
    finally:
        _rig.wait(handle, device_id)
        _rig.destroy_stream(handle, device_id)


def need_gone_streams():
    """Skip where a call with the handle of a destroyed stream ends the process."""
    if not _rig.looks_up_gone_streams:
        pytest.skip("this driver reads the handles of destroyed streams unchecked")


def destroyed_stream():
    need_gone_streams()
    with stream() as gone:
        pass
    return gone


def slow(on, seconds=0.08, device_id=0):
    """Queue work of *seconds* on the stream *on*: a host function that sleeps, in C."""
    _rig.launch(on, USLEEP, int(seconds * 1e6), device_id)


class Gate:
    """Work that stands in a stream until it is opened: `sem_wait`, in C."""

    waiting = None  # how many threads wait in the simulated driver

    def __init__(self, on, device_id=0):
        self._libc = ctypes.CDLL(None)
        self._semaphore = ctypes.create_string_buffer(64)
        self._libc.sem_init(self._semaphore, 0, 0)
        self.is_open = False
        wait = ctypes.cast(self._libc.sem_wait, ctypes.c_void_p).value
        _rig.launch(on, wait, ctypes.addressof(self._semaphore), device_id)

    def open(self):
        if not self.is_open:
            self.is_open = True
            self._libc.sem_post(self._semaphore)

    def open_soon(self):
        """When a thread waits in the simulated driver; who waits for it then finds `is_open`.

        A real driver does not tell. There it is in 50 ms; a busy machine may miss a fault then.
        """
        if self.waiting is None:
            threading.Timer(0.05, self.open).start()  # no verdict: see above
        else:
            threading.Thread(target=self._open_when_waited_for, daemon=True).start()

    def _open_when_waited_for(self):
        while not self.waiting() and not self.is_open:
            time.sleep(0.001)
        self.open()


@contextmanager
def gate(on, device_id=0):
    """A closed `Gate` in the stream *on*; open at the end in any case."""
    closed, late = Gate(on, device_id), []

    def open_late():
        late.append("somebody has waited whom nobody had told to open the gate")
        closed.open()

    watchdog = threading.Timer(100, open_late)  # who waits by mistake fails, and does not hang
    watchdog.start()
    try:
        yield closed
    finally:
        watchdog.cancel()
        closed.open()
        _rig.wait_for_device(device_id)  # the semaphore must outlive the wait
    assert late == []


@contextmanager
def capture(on, mode=GLOBAL):
    """Capture *on* in the block. It must come out whole: nothing in the block may end it."""
    graph = Graph()
    _rig.begin_capture(on, mode)
    try:
        yield graph
    finally:
        graph.executable = _rig.end_capture(on)


class Graph:
    """The result of a capture."""

    executable = None

    def launch(self, on):
        _rig.launch_graph(self.executable, on)


_held = {}  # data -> the allocations there, the last made last


def hold(allocation):
    """Keep *allocation* until `drop`; its ``data``."""
    _held.setdefault(allocation.data, []).append(allocation)
    return allocation.data


def drop(data, on):
    """End the last allocation at *data*, whose last work is on the stream *on*."""
    _held[data][-1].stream = on
    allocations = _held[data] if len(_held[data]) > 1 else _held.pop(data)
    allocations.pop()


def allocation_at(data):
    """The one that is held at *data*."""
    return _held[data][-1]


def write(memory_of, data, content, on=None, device_id=0):
    """Bytes to the device, there on return."""
    on = _rig.default if on is None else on
    memory_of.copy_from_host(Span(device_id, data, 0, len(content)), memoryview(content), on)
    memory_of.synchronize(device_id, on)


def read(memory_of, data, nbytes, on=None, device_id=0):
    """Bytes from the device, after the work on *on*."""
    on, into = _rig.default if on is None else on, bytearray(nbytes)
    memory_of.copy_to_host(Span(device_id, data, 0, len(into)), memoryview(into), on)
    memory_of.synchronize(device_id, on)
    return bytes(into)


@contextmanager
def memory(memory_of, content, on=None, device_id=0):
    """Device memory that holds *content* (bytes, or how many)."""
    on = _rig.default if on is None else on
    nbytes = content if isinstance(content, int) else len(content)
    data = hold(memory_of.allocate(device_id, nbytes, 256, on))
    if not isinstance(content, int):
        write(memory_of, data, content, on, device_id)
    try:
        yield data
    finally:
        for gpu in range(2 if memory_of.device_count() > 1 else 1):  # a test uses many streams
            _rig.wait_for_device(gpu)
        drop(data, on)
        memory_of.synchronize(device_id, on)


def settle():
    """Let everything queued be done, and free what waits for its turn."""
    for device_id in range(dlbridge.backend(_rig.device).device_count()):
        _rig.wait_for_device(device_id)  # of one, before memory of another is freed behind it
    for name in _rig.kinds:
        each = dlbridge.backend(name)
        for device_id in range(each.device_count()):
            drop(hold(each.allocate(device_id, 64, 256, _rig.default)), _rig.default)
            each.synchronize(device_id, _rig.default)


def prelude():
    """Python code of `python`: functions that find and load the simulated drivers."""
    return f"""
import ctypes, os, sys
from tests.drivers import build
def drivers():
    return [build.load(name) for name in {_rig.libraries!r}]
"""


def python(code, simulated=True, **environment):
    """Run *code* in a Python of its own; the finished process."""
    return finished(
        prelude() + ("drivers()\n" if simulated else "") + textwrap.dedent(code), env=environment
    )


REFUSED = """
import json, numpy, dlbridge
def refused(name):
    try:
        dlbridge.backend(name)
    except dlbridge.BackendUnavailable as exc:
        return str(exc)
    raise AssertionError(name)
print(json.dumps([refused(name) for name in {names!r}]))
assert dlbridge.from_dlpack(numpy.ones(3)).tolist() == [1, 1, 1]
"""


def refusals(before="", simulated=True, **environment):
    """What each of the backend's names says where it cannot be used; the CPU goes on."""
    code = before + REFUSED.format(names=_rig.kinds)
    done = python(code, simulated, **environment)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert len(said) == len(_rig.kinds)
    return said


class Fake:
    """The controls of the simulated CUDA driver (control.c), which is below the HIP shim too."""

    prefix = "fake_cuda"

    def __init__(self, cuda, top):
        self.cuda = cuda
        Gate.waiting = staticmethod(cuda.fake_cuda_waiting)
        self.top = top  # the library that the backend calls

    def _call(self, what, *arguments):
        return getattr(self.top, f"{self.prefix}_{what}")(*arguments)

    def fail(self, function, error, skip=0):
        """Let *function* return *error* after *skip* calls that succeed."""
        self._call("fail", _rig.names.get(function, function).encode(), int(error), skip)

    def fail_once(self, function, error, skip=0):
        """As `fail`, for one call."""
        self._call("fail_once", _rig.names.get(function, function).encode(), int(error), skip)

    def calls(self, function):
        return self._call("calls", _rig.names.get(function, function).encode())

    def live(self):
        """Allocations that are not freed."""
        return self.cuda.fake_cuda_live()

    def home(self, pointer):
        """The device that the memory is on."""
        return self.cuda.fake_cuda_home(ctypes.c_void_p(pointer))

    def memory(self, nbytes):
        """Leave device 0 this much room."""
        self.cuda.fake_cuda_memory(ctypes.c_size_t(nbytes))

    def attribute(self, number, value):
        """From now on every device's attribute (a CUdevice_attribute) is *value*."""
        self.cuda.fake_cuda_attribute(int(number), value)
        self.forget()

    def delay(self, microseconds):
        self.cuda.fake_cuda_delay(microseconds)

    def strict(self, on):
        self.cuda.fake_cuda_strict(on)

    def destroyed(self, error):
        """Let a destroyed stream give *error* from now on."""
        self.cuda.fake_cuda_destroyed(error)

    def reset(self):
        self.cuda.fake_cuda_reset()
        _rig.gpu().table.lost = ""
        self.forget()

    def forget(self):
        """Drop what the backend remembers of attributes that tests change."""
        _rig.gpu().known.clear()
        _rig.gpu().pools.clear()
