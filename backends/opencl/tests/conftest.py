"""The device under test, the layer in front of its driver, and kernels that take their time."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from backends.opencl.tests.spin import kernels_in
from dlbridge.protocol import Span
from tests.support import peers
from tests.support.expected_parts import backend_or_skip, lacking
from tests.support.frozen_objects import older_objects_are_frozen  # noqa: F401 - for pytest to find
from tests.support.not_run import pytest_terminal_summary  # noqa: F401 - for pytest to find
from tests.support.scripts import run_script
from tests.support.temporary_folders import new_folder, pytest_sessionfinish  # noqa: F401 - for pytest to find
from tests.support.working_drivers import leave_out

HERE = Path(__file__).resolve().parent
LAYERS = "OPENCL_LAYERS"
"""Environment variable of the loader: the libraries between it and the drivers."""


def pytest_configure(config):
    """Compile the layer and name it to the loader, which reads the variable at its first call."""
    leave_out("opencl")
    if LAYERS in os.environ or shutil.which("gcc") is None:
        return
    library = Path(new_folder("opencl-layer")) / "layer.so"
    source = HERE / "layer" / "layer.c"
    flags = ["-std=gnu17", "-O1", "-g", "-shared", "-fPIC", "-pthread", "-Wall", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", library, source], check=True)
    os.environ[LAYERS] = str(library)


class Layer:
    """The controls of the layer (layer/layer.c) in this process."""

    def __init__(self, library):
        self.library = library
        library.layer_get.restype = ctypes.c_long
        library.layer_set.argtypes = [ctypes.c_char_p, ctypes.c_long]
        self.changed = []

    def __getitem__(self, name):
        return self.library.layer_get(name.encode())

    def set(self, name, value):
        """Set a switch or a count; it has its old value again at the end of the test."""
        self.changed.append((name, self[name]))
        self.library.layer_set(name.encode(), value)

    def restore(self):
        for name, value in reversed(self.changed):
            self.library.layer_set(name.encode(), value)
        self.changed = []


@pytest.fixture
def layer(opencl):
    """The layer in front of the driver of this process, with all switches off."""
    if LAYERS not in os.environ:
        lacking("opencl", "the layer in front of the driver needs gcc")
    layer = Layer(ctypes.CDLL(os.environ[LAYERS]))
    yield layer
    layer.restore()


@pytest.fixture
def script(layer, simulated):
    """``script(code, **switches)``: the output of a program, over a driver that behaves so."""
    if simulated:
        pytest.skip("these switches are for a driver that works in threads of its own")

    def run(code, timeout=600, **switches):
        environment = {f"LAYER_{name}": str(value) for name, value in switches.items()}
        return run_script(code, timeout=timeout, env=environment)

    return run


@pytest.fixture
def opencl():
    """The backend, or a skip with the reason (a failure under DLBRIDGE_EXPECT)."""
    return backend_or_skip("opencl")


@pytest.fixture
def peer():
    """``peer(name)`` is that library, or a skip (a failure under ``DLBRIDGE_EXPECT=peers``)."""
    return peers.peer


@pytest.fixture
def simulated(opencl):
    """Whether device 0 is a simulator: no threads, one turn of a loop takes a microsecond."""
    return opencl.device_info(0)["platform"] == "Oclgrind"


@pytest.fixture
def shared(opencl):
    """Skips unless device 0 shares the host's memory."""
    if not opencl.device_info(0)["host_memory_shared"]:
        pytest.skip(f"{opencl.device_info(0)['name']} has memory of its own")


class Memory:
    """A buffer on device 0, freed at the end of the test."""

    def __init__(self, opencl, nbytes, stream=0):
        self.opencl, self.nbytes = opencl, nbytes
        self.stream = stream or opencl.current_stream(0)
        self.owner = opencl.allocate(0, nbytes, 64, self.stream)
        self.data = self.owner.data

    @property
    def buffer(self):
        import pyopencl as cl

        return cl.Buffer.from_int_ptr(self.data, True)

    def write(self, array, stream=None):
        source = memoryview(np.ascontiguousarray(array)).cast("B")
        self.opencl.copy_from_host(
            Span(0, self.data, 0, len(source)), source, stream or self.stream
        )
        return self

    def read(self, dtype="u1", stream=None):
        into = bytearray(self.nbytes)
        self.opencl.copy_to_host(
            Span(0, self.data, 0, len(into)), memoryview(into), stream or self.stream
        )
        self.opencl.synchronize(0, stream or self.stream)
        return np.frombuffer(into, dtype)

    def free(self):
        self.owner = None


@pytest.fixture
def make(opencl):
    """Makes buffers on device 0."""
    made = []

    def make(nbytes, stream=0):
        made.append(Memory(opencl, nbytes, stream))
        return made[-1]

    yield make
    for memory in made:
        memory.free()


@pytest.fixture
def context(opencl):
    """The context that the backend uses on device 0."""
    import pyopencl as cl

    return cl.CommandQueue.from_int_ptr(opencl.current_stream(0), True).context


@pytest.fixture
def own(opencl):
    """This thread's queue."""
    import pyopencl as cl

    return cl.CommandQueue.from_int_ptr(opencl.current_stream(0), True)


@pytest.fixture
def queue(context):
    """A queue of the user's, of which dlbridge knows nothing."""
    import pyopencl as cl

    return cl.CommandQueue(context, context.devices[0])


@pytest.fixture
def elsewhere(context):
    """A queue in a context of the user's own, which the user keeps, on the same device."""
    import pyopencl as cl

    theirs = cl.Context(context.devices)
    yield cl.CommandQueue(theirs)
    del theirs


@pytest.fixture
def kernels(context):
    """``kernels(name, queue, *args)`` enqueues one of `SPIN`; integers become uint."""
    return kernels_in(context)


class Gate:
    """An event that kernels wait for, in a list, until it is opened."""

    def __init__(self, context):
        import pyopencl as cl

        self.event = cl.UserEvent(context)
        self.closed = [self.event]

    def open(self):
        import pyopencl as cl

        if self.closed:
            self.event.set_status(cl.command_execution_status.COMPLETE)
        self.closed = []

    def holds(self, call):
        """What *call* gives; it must not come back before the gate opens."""
        given = []
        thread = threading.Thread(target=lambda: given.append(call()))
        thread.start()
        thread.join(0.2)  # no verdict: a call that does not wait may come later, unseen
        waits = thread.is_alive()
        self.open()
        thread.join()
        assert waits, "it came back before the gate was open"
        return given[0]


@pytest.fixture
def gate(context, simulated):
    """A gate, open at the end of the test whatever happens."""
    if simulated:
        pytest.skip("Oclgrind runs every command in the call that needs it: nothing waits")
    gate = Gate(context)
    yield gate
    gate.open()


@pytest.fixture
def turns(simulated):
    """How many turns of a kernel's loop take some 200 microseconds."""
    return 30 if simulated else 100_000
