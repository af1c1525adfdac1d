"""The conformance kit on this machine's first SYCL device."""

from __future__ import annotations

import dpctl
import dpctl.memory

from backends.oneapi.tests.late import late_copy
from dlbridge.testing import BackendTests


class TestOneAPI(BackendTests):
    name = "oneapi"
    # dpctl alone, one copy_from_host in each of 1,000 threads: 3,286 to 3,439 bytes for each
    # (dpctl 0.22, Intel's CPU runtime).
    thread_nbytes = 3500
    # dpctl alone, one memcpy_async on each of 600 queues: 12,051 to 12,058 bytes for each.
    stream_nbytes = 12_500
    most_streams = 64  # docs/reference/oneapi.md
    without_package = "dpctl"

    def make_stream(self, backend, device_id):
        return dpctl.SyclQueue(backend.devices[device_id], property="in_order")

    def slow_work(self, backend, device_id, stream):
        return late_copy(backend.queue(device_id, stream))

    def is_done(self, backend, device_id, stream, work):
        return work.event.execution_status == dpctl.event_status_type.complete

    def make_native(self, backend, device_id, content):
        memory = dpctl.memory.MemoryUSMDevice(len(content), queue=backend.queue(device_id))
        memory.copy_from_host(content)
        return memory


class TestOutOfOrderQueues(TestOneAPI):
    """The same with streams that are free to change the order of commands, as dpctl's own are."""

    nightly = ("contract", "memory", "refusals", "host", "native")
    child_setup = None  # it would show nothing more
    # dpctl alone: `wait` of a queue without work took 6 to 14 s while another thread waited for
    # five kernels of another queue; with queues in order 0.2 ms (Intel's CPU runtime 2026.22).
    waits_alone = False

    def make_stream(self, backend, device_id):
        return dpctl.SyclQueue(backend.devices[device_id])
