"""How the conformance kit gets queues and slow work of OpenCL; classes with parts of it.

`test_simulated_drivers.py` runs them by their names, over drivers that the layer plays.
"""

from __future__ import annotations

import numpy as np
from spin import SPIN

from dlbridge.testing.backend_copy import CopyTests
from dlbridge.testing.backend_host import HostTests
from dlbridge.testing.backend_leaks import LeakTests
from dlbridge.testing.backend_memory import MemoryTests
from dlbridge.testing.backend_moves import MoveTests
from dlbridge.testing.backend_order import OrderTests
from dlbridge.testing.backend_refusals import RefusalTests


class OpenCLKit:
    """The hooks."""

    name = "opencl"

    def make_stream(self, backend, device_id):
        import pyopencl as cl

        queue = cl.CommandQueue.from_int_ptr(backend.current_stream(device_id), True)
        return cl.CommandQueue(queue.context, queue.device)

    def slow_work(self, backend, device_id, stream):
        import pyopencl as cl

        queue = cl.CommandQueue.from_int_ptr(stream, True)
        simulated = backend.device_info(device_id)["platform"] == "Oclgrind"
        kernel = cl.Program(queue.context, SPIN).build().spin
        out = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, size=4)
        event = kernel(queue, (1,), None, out, np.uint32(20_000 if simulated else 40_000_000))
        queue.flush()
        return kernel, out, event

    def is_done(self, backend, device_id, stream, work):
        import pyopencl as cl

        *_, event = work
        return event.command_execution_status == cl.command_execution_status.COMPLETE


class TestHostMemory(OpenCLKit, HostTests, MemoryTests, MoveTests, RefusalTests, LeakTests):
    """New memory and host memory in place: what drivers do with them depends on their kind."""


class TestMemoryOfItsOwn(TestHostMemory, CopyTests, OrderTests):
    """The same, and which commands copies are, and after what."""
