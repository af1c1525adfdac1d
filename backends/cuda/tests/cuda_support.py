"""What the CUDA tests share: streams, slow work, and Python processes of their own."""

import ctypes
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
USLEEP = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value


@contextmanager
def stream(device_id=0, flags=1, context=None):
    """A new stream (flags 1: not ordered with the default one); its handle."""
    from dlbridge_cuda.contexts import current, primary
    from dlbridge_cuda.driver import call

    context = context or primary(device_id)
    with current(context):
        handle = int(call("cuStreamCreate", flags))
    try:
        yield handle
    finally:
        with current(context):
            call("cuStreamSynchronize", handle)
            call("cuStreamDestroy", handle)


def launch_host_function(on, function, argument, device_id=0):
    """Queue a C function on the stream *on*, by the driver itself.

    cuda.bindings would call it through a function of its own, which takes the GIL.
    """
    from dlbridge_cuda.contexts import current, primary

    driver = ctypes.CDLL("libcuda.so.1")  # the one that is loaded, the double or the real one
    driver.cuLaunchHostFunc.argtypes = [ctypes.c_void_p] * 3
    with current(primary(device_id)):
        assert driver.cuLaunchHostFunc(on, function, argument) == 0


def slow(on, seconds=0.08, device_id=0):
    """Queue work of *seconds* on the stream *on*: a host function that sleeps, in C."""
    launch_host_function(on, USLEEP, int(seconds * 1e6), device_id)


class Gate:
    """Work that stands in a stream until it is opened: `sem_wait`, in C."""

    def __init__(self):
        self._libc = ctypes.CDLL(None)
        self._semaphore = ctypes.create_string_buffer(64)
        self._libc.sem_init(self._semaphore, 0, 0)
        self.is_open = False

    def stand(self, on, device_id=0):
        wait = ctypes.cast(self._libc.sem_wait, ctypes.c_void_p).value
        launch_host_function(on, wait, ctypes.addressof(self._semaphore), device_id)

    def open(self):
        self.is_open = True
        self._libc.sem_post(self._semaphore)

    def open_soon(self):
        """In 50 ms, by another thread; who waits for it then finds `is_open`."""
        threading.Timer(0.05, self.open).start()


@contextmanager
def gate(on, device_id=0):
    """A closed `Gate` in the stream *on*; open at the end in any case."""
    closed = Gate()
    closed.stand(on, device_id)
    # Who waits for it by mistake fails, and does not hang.
    watchdog = threading.Timer(20, closed.open)
    watchdog.start()
    try:
        yield closed
    finally:
        watchdog.cancel()
        if not closed.is_open:
            closed.open()
        from dlbridge_cuda.contexts import current, primary
        from dlbridge_cuda.driver import call

        with current(primary(device_id)):  # the semaphore must outlive the wait
            call("cuStreamSynchronize", on)


def own_context(device_id=0):
    """A context that is not the primary one; it is current, as the driver has it."""
    from dlbridge_cuda.driver import call

    try:
        return call("cuCtxCreate", None, 0, device_id)
    except TypeError:  # cuda-bindings 12
        return call("cuCtxCreate", 0, device_id)


def write(backend, data, content, on=1, device_id=0):
    """Bytes to the device, there on return."""
    backend.copy_from_host(device_id, data, 0, memoryview(content), on)
    backend.synchronize(device_id, on)


def read(backend, data, nbytes, on=1, device_id=0):
    """Bytes from the device, after the work on *on*."""
    into = bytearray(nbytes)
    backend.copy_to_host(device_id, data, 0, memoryview(into), on)
    backend.synchronize(device_id, on)
    return bytes(into)


@contextmanager
def memory(backend, content, on=1, device_id=0):
    """Device memory that holds *content* (bytes, or how many)."""
    nbytes = content if isinstance(content, int) else len(content)
    data = backend.allocate(device_id, nbytes, 256, on)
    if not isinstance(content, int):
        write(backend, data, content, on, device_id)
    try:
        yield data
    finally:
        from dlbridge_cuda.contexts import current, primary
        from dlbridge_cuda.driver import call

        for gpu in range(2 if backend.device_count() > 1 else 1):  # a test uses many streams
            with current(primary(gpu)):
                call("cuCtxSynchronize")
        backend.free(device_id, data, on)
        backend.synchronize(device_id, on)


PRELUDE = f"""
import importlib.util, os, sys
sys.path.insert(0, {str(HERE)!r})
def load_double():
    path = {str(HERE.parents[2] / "tests" / "drivers" / "build.py")!r}
    spec = importlib.util.spec_from_file_location("dlbridge_test_drivers", path)
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    return build.load("cuda")
"""


def python(code, double=True, **environment):
    """Run *code* in a Python of its own; the finished process. With the double loaded, or none."""
    import os

    source = PRELUDE + ("load_double()\n" if double else "") + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )
