"""Intel's CPU runtime as the only driver, in processes of their own: where it differs from PoCL."""

from __future__ import annotations

import pytest

from tests.support.expected_parts import lacking
from tests.support.intel import RUNTIME
from tests.support.scripts import run_script

BEGIN = """
import gc, re
import numpy as np, pyopencl as cl, pyopencl.array
import dlbridge as bridge
from dlbridge.protocol import Span
from dlbridge_opencl import queues

opencl = bridge.backend("opencl")
assert opencl.device_info(0)["platform"].startswith("Intel")
own = cl.CommandQueue.from_int_ptr(opencl.current_stream(0), True)
host = np.arange(1024, dtype="u1")
flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
def refused(call, *given):
    try:
        call(*given)
    except bridge.ExchangeError as exc:
        assert re.search("context of .* has been released.*keep the pyopencl.Context", str(exc)), exc
        assert isinstance(exc.__cause__, cl.LogicError), exc.__cause__
    else:
        raise AssertionError("it was not refused")
def on_host(x):
    return bridge.to_device(x, "cpu", copy=True).numpy()
"""


@pytest.fixture
def run(tmp_path):
    """``run(code)``: a program with this driver alone."""
    if not RUNTIME.exists():
        lacking("oneapi", "Intel's runtime is not installed")
    vendors = tmp_path / "intel.icd"
    vendors.write_text(str(RUNTIME))
    # OpenCL may be left out here because of the machine's own driver.
    env = {"OCL_ICD_VENDORS": str(vendors), "DLBRIDGE_BACKENDS": "cpu,opencl"}
    return lambda code: run_script(BEGIN + code, env=env)


KEPT = """
def buffer(context):
    return cl.Buffer(context, flags, hostbuf=host)
def part(context):
    return cl.Buffer(context, flags, hostbuf=np.tile(host, 2)).get_sub_region(1024, 1024)
def array(context):
    return cl.array.to_device(cl.CommandQueue(context), host)
def on_a_queue(context):
    with bridge.use_stream("opencl:0", cl.CommandQueue(context)):
        return bridge.to_device(host, "opencl:0", copy=True)
for make in buffer, part, array, on_a_queue:
    context = cl.Context([own.device])
    tensor = bridge.asarray(make(context))
    del context
    gc.collect()
    assert (on_host(tensor) == host).all(), make
    bridge.copy_(tensor, bridge.ones(1024, "u1", "opencl:0"))
    with tensor.host_view() as view:
        assert (view.numpy() == 1).all(), make
    again = tensor.to_native()
    del tensor
    queues._users.clear()  # it keeps queues, whose handles the users may still use
    again += 1
    assert (on_host(bridge.asarray(again)) == 2).all(), make
"""


def test_contexts_are_kept_from_the_first_use_on(run):
    """Of queues, buffers, arrays and parts of buffers, of which the user keeps nothing."""
    run(KEPT)


PARTS = """
def parts():
    whole = cl.Buffer(own.context, flags, hostbuf=host)
    return [bridge.asarray(whole.get_sub_region(start, 512)) for start in (0, 256)]
for step in 1, 2:
    first, second = parts()
    gc.collect()
    want = host.copy()
    assert (on_host(second) == want[256:768]).all()
    want[256:768:step] = host[:512:step]
    bridge.copy_(second[::step], first[::step])  # over the bytes that they share
    assert (on_host(second) == want[256:768]).all(), step
    assert (on_host(first) == want[:512]).all(), step
    with first.host_view() as view:
        assert (view.numpy() == want[:512]).all()
        bridge.copy_(second, view)
    want[256:768] = want[:512].copy()
    assert (on_host(second) == want[256:768]).all(), step
"""


def test_parts_of_a_buffer_whose_whole_has_gone(run):
    """They keep its memory, and not its handle, by which they would be known as its parts."""
    run(PARTS)


GONE = """
context = cl.Context([own.device])
queue, buffer = cl.CommandQueue(context), cl.Buffer(context, flags, hostbuf=host)
owner = bridge.empty(1024, "u1")
del context
gc.collect()
refused(opencl.normalize_stream, 0, queue)
refused(opencl.normalize_stream, 0, queue.int_ptr)
refused(bridge.use_stream("opencl:0", queue).__enter__)
refused(bridge.asarray, buffer)
refused(opencl.import_data, 0, buffer.int_ptr, "somebody")
refused(opencl.copy_to_host, Span(0, buffer.int_ptr, 0, 16), memoryview(bytearray(16)), 0)
out = np.empty(1024, "u1")
cl.enqueue_copy(queue, out, buffer)
assert (out == host).all()
"""


def test_contexts_that_are_gone_are_an_error(run):
    run(GONE)
