"""The user's own context, with one device or several."""

from __future__ import annotations

import pyopencl as cl
import pytest
from dlbridge_opencl import use_context

from dlbridge.protocol import Span
from tests.support.scripts import run_script

# In a process of its own: a context is chosen for good.
OWN = """
import numpy as np, pyopencl as cl, dlbridge_opencl
from dlbridge import backend
from dlbridge.protocol import Span

opencl = backend("opencl")
before = opencl.allocate(0, 64, 64, 0)
opencl.copy_from_host(Span(0, before.data, 0, 64), memoryview(b"b" * 64), 0)
old = cl.CommandQueue.from_int_ptr(opencl.current_stream(0), True)
devices = old.device.platform.get_devices()  # a second platform may have the same name
context, count = cl.Context(devices), len(devices)
dlbridge_opencl.use_context(context)
stream = opencl.current_stream(0)
assert cl.CommandQueue.from_int_ptr(stream, True).context == context
for device_id in range(count):
    made = opencl.allocate(device_id, 64, 64, 0)
    assert cl.Buffer.from_int_ptr(made.data, True).context == context
    for source_id, source in ((0, before.data), (device_id, made.data)):
        into = opencl.allocate(0, 64, 64, stream)
        opencl.copy_from_host(Span(source_id, source, 0, 64), memoryview(b"c" * 64), 0)
        opencl.synchronize(source_id, 0)
        opencl.copy(Span(0, into.data, 0, 64), Span(source_id, source, 0, 64), stream)
        out = bytearray(64)
        opencl.copy_to_host(Span(0, into.data, 0, 64), memoryview(out), stream)
        opencl.synchronize(0, stream)
        assert out == b"c" * 64
print("devices:", count)
"""


def test_the_users_context_is_used(opencl):
    assert "devices: " in run_script(OWN)


@pytest.mark.parametrize("wrong", ["x", None, 5])
def test_what_is_no_context(wrong):
    message = "takes a pyopencl.Context, not .*; pyopencl.Context\\(devices\\) makes one"
    with pytest.raises(TypeError, match=message):
        use_context(wrong)


@pytest.mark.parametrize("kept", [True, False])
def test_memory_is_made_in_the_context_of_the_stream(opencl, context, kept):
    theirs = cl.Context(context.devices)
    queue = cl.CommandQueue(theirs)
    if not kept:
        del theirs
        try:
            assert queue.context
        except cl.LogicError:
            pytest.skip("this driver keeps no context for its queues: test_intel.py")
    stream = opencl.normalize_stream(0, queue)
    memory = opencl.allocate(0, 64, 64, stream)
    assert cl.Buffer.from_int_ptr(memory.data, True).context == queue.context
    opencl.copy_from_host(Span(0, memory.data, 0, 64), memoryview(b"x" * 64), stream)
    into = bytearray(64)
    opencl.copy_to_host(
        Span(0, memory.data, 0, len(into)), memoryview(into), 0
    )  # on a queue of another context
    assert into == b"x" * 64
