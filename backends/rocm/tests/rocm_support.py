"""What the ROCm tests share: streams, slow work, memory with content, other Pythons."""

import ctypes
import os
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
USLEEP = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value


def hip(name, *arguments):
    """Call a HIP function that the backend does not use; integers are passed as pointers."""
    from dlbridge_rocm.library import loaded_already

    library = ctypes.CDLL(loaded_already()[0])
    code = getattr(library, name)(
        *(ctypes.c_void_p(value) if isinstance(value, int) else value for value in arguments)
    )
    assert code == 0, (name, code)


def create_stream(device_id=0, flags=1):
    """The handle of a new stream (flags 1: not ordered with the default one)."""
    from dlbridge_rocm.devices import current

    handle = ctypes.c_void_p()
    with current(device_id):
        hip("hipStreamCreateWithFlags", ctypes.byref(handle), flags)
    return handle.value


@contextmanager
def stream(device_id=0, flags=1):
    handle = create_stream(device_id, flags)
    try:
        yield handle
    finally:
        hip("hipStreamSynchronize", handle)
        hip("hipStreamDestroy", handle)


def slow(on, seconds, device_id=0):
    """Queue work of *seconds* on the stream *on*: a host function that sleeps, in C."""
    launch(on, USLEEP, int(seconds * 1e6), device_id)


def launch(on, function, argument, device_id=0):
    """Queue a call of a C function on the stream *on*."""
    from dlbridge_rocm.devices import current

    with current(device_id):
        hip("hipLaunchHostFunc", on, function, argument)


class Gate:
    """Work that stands in a stream until it is opened: `sem_wait`, in C."""

    def __init__(self, on, device_id):
        self._libc = ctypes.CDLL(None)
        self._semaphore = ctypes.create_string_buffer(64)
        self._libc.sem_init(self._semaphore, 0, 0)
        self.is_open = False
        wait = ctypes.cast(self._libc.sem_wait, ctypes.c_void_p).value
        launch(on, wait, ctypes.addressof(self._semaphore), device_id)

    def open(self):
        if not self.is_open:
            self.is_open = True
            self._libc.sem_post(self._semaphore)

    def open_soon(self):
        """In 50 ms, by another thread; who waits for it then finds `is_open`."""
        threading.Timer(0.05, self.open).start()


@contextmanager
def gate(on, device_id=0):
    """A closed `Gate` in the stream *on*; open at the end in any case."""
    closed = Gate(on, device_id)
    try:
        yield closed
    finally:
        closed.open()
        from dlbridge_rocm.devices import current

        with current(device_id):  # the semaphore must outlive the wait
            hip("hipStreamSynchronize", on)


def write(backend, data, content, on=0, device_id=0):
    """Bytes to the device, there on return."""
    backend.copy_from_host(device_id, data, 0, memoryview(content), on)
    backend.synchronize(device_id, on)


def read(backend, data, nbytes, on=0, device_id=0):
    """Bytes from the device, after the work on *on*."""
    into = bytearray(nbytes)
    backend.copy_to_host(device_id, data, 0, memoryview(into), on)
    backend.synchronize(device_id, on)
    return bytes(into)


@contextmanager
def memory(backend, content, on=0, device_id=0):
    """Device memory that holds *content* (bytes, or how many)."""
    nbytes = content if isinstance(content, int) else len(content)
    data = backend.allocate(device_id, nbytes, 256, on)
    if not isinstance(content, int):
        write(backend, data, content, on, device_id)
    try:
        yield data
    finally:
        backend.free(device_id, data, on)
        backend.synchronize(device_id, on)


PRELUDE = f"""
import importlib.util, os, sys
def drivers():
    path = {str(HERE.parents[2] / "tests" / "drivers" / "build.py")!r}
    spec = importlib.util.spec_from_file_location("dlbridge_test_drivers", path)
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    return build
def load_shim():
    return drivers().load("cuda"), drivers().load("hip")
"""


def python(code, shim=True, **environment):
    """Run *code* in a Python of its own; the finished process. With the shim loaded, or nothing."""
    source = PRELUDE + ("load_shim()\n" if shim else "") + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )
