"""A forked child: OpenCL says that it cannot be used there, and the child ends at once.

What it drops, and its parent afterwards: `test_fork` of the kit.
"""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")

PROGRAM = """
import gc, os, sys, threading, time
import numpy as np, pyopencl as cl
import dlbridge as bridge
from dlbridge.errors import DeviceError

opencl = bridge.backend("opencl")
import dlbridge.kit.gate as ending; ending.PATIENCE = 1000  # a child that waits hangs
{before}
start = time.monotonic()
child = os.fork()
if not child:
    {inside}
    sys.exit(7)
while not os.waitpid(child, os.WNOHANG)[0]:
    if time.monotonic() > start + 100:
        os.kill(child, 9)
        os.waitpid(child, 0)
        sys.exit("the child did not end")
    time.sleep(0.01)
{after}
"""

BEFORE = {
    "listed": "",
    "used": """
t = bridge.to_device(np.arange(1000.0), "opencl:0", copy=True)
view = None if opencl.host_view_refusal(0, t.operand().data) else t.host_view()
array = t.to_native()
queue = array.queue
""",
    "another thread at work": """
t = bridge.to_device(np.arange(1000.0), "opencl:0", copy=True)
def copies():
    while True:
        bridge.copy_(bridge.empty(1000, "float64", "opencl:0"), np.arange(1000.0))
threading.Thread(target=copies, daemon=True).start()
time.sleep(0.1)
""",
    "work that does not end": """
t = bridge.to_device(np.arange(1000.0), "opencl:0", copy=True)
queue = t.to_native().queue
gate = cl.UserEvent(queue.context)
cl.enqueue_barrier(queue, wait_for=[gate])
queue.flush()
""",
}


@pytest.mark.parametrize("before", BEFORE)
def test_a_child_that_only_exits(script, before):
    after = "gate.set_status(cl.command_execution_status.COMPLETE)" if "not end" in before else ""
    script(PROGRAM.format(before=BEFORE[before], inside="pass", after=after))


USES = (  # one by each way to the driver; that no member is left out, the core's test shows
    "opencl.allocate(0, 64, 64, 0)",
    "bridge.to_device(t, 'cpu', copy=True)",
    "t.to_native()",
    "bridge.asarray(array)",
    "dlbridge_opencl.use_context(queue.context)",
)

CHILD = """told = []
    for use in {uses}:
        try:
            eval(use)
        except DeviceError as exc:
            assert "fork" in str(exc) and "spawn" in str(exc), (use, exc)
            told.append(use)
    os.write(1, str(len(told)).encode())
    os._exit(0)"""


def test_a_child_is_told(script):
    """Whatever it uses."""
    before = BEFORE["used"] + "import dlbridge_opencl\n"
    inside = CHILD.format(uses=[*USES])
    assert script(PROGRAM.format(before=before, inside=inside, after="")) == str(len(USES))
