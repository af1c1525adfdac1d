"""What is said when there is no driver, no device, no such device, or no longer one."""

from __future__ import annotations

import functools
import re
import subprocess

import pyopencl as cl
import pytest
from dlbridge_opencl.driver import translated

from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError
from dlbridge.protocol import Span
from tests.support.scripts import run_script

TRY = """
import os
os.environ["DLBRIDGE_BACKENDS"] = "opencl"  # where the tests leave a failing driver out, too
from dlbridge.errors import BackendUnavailable
from dlbridge import backend
try:
    backend("opencl")
except BackendUnavailable as exc:
    print(exc)
"""


def test_no_driver(tmp_path):
    # pyopencl names the folder of its own drivers at import; the loader reads it later.
    hide = "import os, pyopencl; os.environ['PYOPENCL_HOME'] = '/nowhere'\n"
    said = run_script(hide + TRY, env={"OCL_ICD_VENDORS": str(tmp_path)})
    assert "no driver was found" in said
    assert str(tmp_path) in said
    assert "apt install pocl-opencl-icd" in said
    assert "PoCL: pip install 'pyopencl[pocl]'" in said


def test_no_folder_of_drivers(tmp_path):
    said = run_script(TRY, env={"OCL_ICD_VENDORS": str(tmp_path / "nowhere")})
    assert "nowhere, which does not exist" in said


def test_a_driver_without_devices():
    """By replacing one call: no driver here can be made to have none."""
    double = (
        "import pyopencl as cl\n"
        "class Platform:\n"
        "    name = 'Empty'\n"
        "    def get_devices(self): return []\n"
        "cl.get_platforms = lambda: [Platform()]\n"
    )
    said = run_script(double + TRY)
    assert "no driver has a device (Empty)" in said
    assert "install" in said


def test_the_name_of_a_platform_finds_its_only_device(opencl):
    """Two drivers of one platform (PoCL's of the system and of its wheel) have two of that name."""
    platforms = [str(opencl.device_info(i)["platform"]) for i in range(opencl.device_count())]
    word = platforms[0].split()[0].lower()
    named = [str(i) for i, platform in enumerate(platforms) if word in platform.lower().split()]
    if len(named) == 1:
        assert opencl.find_device(word) == 0
    else:
        with pytest.raises(LookupError, match=f"{len(named)} opencl devices are called") as caught:
            opencl.find_device(word)
        assert re.findall(r"(\d+): ", str(caught.value).partition("number: ")[2]) == named
    assert opencl.find_device(str(opencl.device_info(0)["name"])) == 0


def test_simulators_come_last_and_advise(opencl):
    platforms = [opencl.device_info(i)["platform"] for i in range(opencl.device_count())]
    assert platforms == sorted(platforms, key=lambda name: name == "Oclgrind")
    for i, platform in enumerate(platforms):
        assert ("advice" in opencl.device_info(i)) == (platform == "Oclgrind")


def test_an_error_names_what_was_done_and_the_status(context):
    def make():
        for size in (1 << 50, 0):  # NVIDIA's driver makes the first, as it allocates later
            cl.Buffer(context, cl.mem_flags.READ_WRITE, size=size)

    with pytest.raises(cl.Error) as caught:
        make()
    error = translated(caught.value, "allocating")
    assert isinstance(error, DeviceMemoryError)
    said = str(error)
    assert "allocating: create_buffer: " in said
    # The second is Oclgrind's, for the same mistake.
    assert "INVALID_BUFFER_SIZE (-61)" in said or "MEM_OBJECT_ALLOCATION_FAILURE (-4)" in said


def test_an_error_of_a_lost_context_says_what_to_do(context, simulated):
    """A queue and a buffer of two contexts: the status that a lost context has, too."""
    if simulated:
        pytest.skip("Oclgrind does not look at contexts")
    elsewhere = cl.CommandQueue(cl.Context(context.devices))
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, size=16)
    with pytest.raises(cl.Error) as caught:
        cl.enqueue_copy(elsewhere, buffer, b"x" * 16)
    error = translated(caught.value, "copying")
    assert isinstance(error, DeviceError)
    assert "INVALID_CONTEXT" in str(error)
    assert "use_context" in str(error)


class Status:
    """What `translated` reads of an error, for statuses that no driver here gives."""

    routine = "clEnqueueNDRangeKernel"

    def __init__(self, code):
        self.code = code


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        ("MEM_OBJECT_ALLOCATION_FAILURE", DeviceMemoryError, "no room"),
        ("INVALID_BUFFER_SIZE", DeviceMemoryError, "move a large tensor in slices"),
        ("OUT_OF_RESOURCES", DeviceError, "use_context"),
        ("DEVICE_NOT_AVAILABLE", DeviceError, "use_context"),
        ("INVALID_COMMAND_QUEUE", DeviceError, "use_context"),
        ("INVALID_OPERATION", ExchangeError, "flags"),
        ("PROFILING_INFO_NOT_AVAILABLE", DeviceError, "(-7)"),
    ],
)
def test_every_kind_of_status(status, kind, says):
    error = translated(Status(getattr(cl.status_code, status)), "running")
    assert isinstance(error, kind)
    assert status in str(error)
    assert says in str(error)


def test_overlapping_copies_are_refused(opencl, make):
    memory = make(256)
    with pytest.raises(ExchangeError, match="overlap"):
        opencl.copy(Span(0, memory.data, 10, 100), Span(0, memory.data, 0, 100), 0)


EXIT = """
import numpy as np, pyopencl as cl
from dlbridge import backend
from dlbridge.protocol import Span
from backends.opencl.tests.spin import SPIN

opencl = backend("opencl")
turns = 20_000 if opencl.device_info(0)["platform"] == "Oclgrind" else 50_000_000
queue = cl.CommandQueue.from_int_ptr(opencl.current_stream(0), True)
memory = opencl.allocate(0, 4096, 64, 0)
data = memory.data
out = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, size=4)
kernel = cl.Program(queue.context, SPIN).build()
"""


def test_the_work_ends_before_the_process(simulated):
    """What runs later than our wait at exit finds the kernel done: see `queues`."""
    if simulated:
        pytest.skip("Oclgrind works in the callers' threads alone")
    look = "import atexit; atexit.register(lambda: print(event.command_execution_status))\n"
    patient = "import dlbridge.kit.gate as ending; ending.PATIENCE = 1000\n"
    launch = "event = kernel.spin(queue, (1,), None, out, np.uint32(turns)); queue.flush()"
    assert run_script(look + EXIT + patient + launch) == f"{cl.command_execution_status.COMPLETE}\n"


def test_the_process_ends_though_the_work_does_not(simulated):
    if simulated:
        pytest.skip("Oclgrind works in the callers' threads alone")
    impatient = "import dlbridge.kit.gate as ending; ending.PATIENCE = 0.1\n"
    never = "gate = cl.UserEvent(queue.context); cl.enqueue_barrier(queue, wait_for=[gate])"
    ends_though_the_work_does_not(lambda: run_script(EXIT + impatient + never, timeout=100))


def ends_though_the_work_does_not(run):
    """Skips where only the driver keeps the process: nothing can be done about that here."""
    try:
        run()
    except subprocess.TimeoutExpired:
        if waits_for_ever_by_itself():
            pytest.skip("this driver waits for such work when a process ends, dlbridge or not")
        raise


ALONE = """
import ctypes, pyopencl as cl
devices = [d for p in cl.get_platforms() for d in p.get_devices()]
context = cl.Context([next(d for d in devices if d.name == {name!r})])
queue, gate = cl.CommandQueue(context), cl.UserEvent(context)
cl.enqueue_barrier(queue, wait_for=[gate])
queue.flush()
for kept in context, queue, gate:  # nothing is released
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
print("the last line", flush=True)
"""


@functools.cache
def waits_for_ever_by_itself():
    """Whether a program of pyopencl alone, which releases nothing, does not end either."""
    from dlbridge import backend

    name = backend("opencl").device_info(0)["name"]
    try:
        run_script(ALONE.format(name=name), timeout=60)
    except subprocess.TimeoutExpired as exc:
        return "the last line" in str(exc.stdout)
    return False


def test_a_driver_whose_queues_wait_for_their_work(script):
    """Nothing of ours is released then at the end of the process, which would never come."""
    impatient = "import dlbridge.kit.gate as ending; ending.PATIENCE = 0.1\n"
    never = (
        "gate = cl.UserEvent(queue.context)\n"
        "cl.enqueue_barrier(queue, wait_for=[gate])\n"
        "opencl.fill(Span(0, data, 0, 4096), 1, 0)"
    )
    ends_though_the_work_does_not(lambda: script(EXIT + impatient + never, timeout=100, waits=1))
