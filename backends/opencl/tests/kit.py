"""How the conformance kit gets queues and slow work of OpenCL; classes with parts of it.

`test_simulated_drivers.py` runs them by their names, over drivers that the layer plays.
"""

from __future__ import annotations

import numpy as np

import dlbridge
from backends.opencl.tests.spin import SPIN
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
    without_package = "pyopencl"

    @property
    def thread_nbytes(self):
        """pyopencl alone, one blocking write of 16 KiB in each of 500 new threads: 2,690 bytes each.

        (Intel's CPU runtime 2026.22; none with PoCL.)
        """
        platform = dlbridge.backend("opencl").device_info(self.device_id)["platform"]
        return 2700 if platform == "Intel(R) OpenCL" else 0

    def make_stream(self, backend, device_id):
        import pyopencl as cl

        queue = cl.CommandQueue.from_int_ptr(backend.current_stream(device_id), True)
        return cl.CommandQueue(queue.context, queue.device)

    def make_native(self, backend, device_id, content):
        """An array over memory of the host's."""
        import pyopencl as cl

        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        host = dlbridge.empty(len(content), "uint8", alignment=4096).numpy()
        host[:] = np.frombuffer(content, "u1")
        return self.array(backend, device_id, flags, hostbuf=host)

    def more_natives(self, backend, device_id, content):
        """Over memory of the driver's, which the host reaches or not, and over a part of it."""
        import pyopencl as cl

        flags = cl.mem_flags.READ_WRITE, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        whole = [self.array(backend, device_id, each, size=len(content)) for each in flags]
        larger = self.array(backend, device_id, flags[1], size=8192)
        part = larger.base_data.get_sub_region(4096, len(content))
        return [*whole, part]

    def array(self, backend, device_id, *flags, **memory):
        import pyopencl as cl
        import pyopencl.array

        queue = cl.CommandQueue.from_int_ptr(backend.current_stream(device_id), True)
        buffer = cl.Buffer(queue.context, *flags, **memory)
        return cl.array.Array(queue, (buffer.size,), np.uint8, data=buffer)

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
