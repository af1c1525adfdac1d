"""The conformance kit on this machine's first SYCL device."""

from __future__ import annotations

import dpctl
import dpctl.memory
from late import late_copy

from dlbridge.testing import BackendTests
from dlbridge.testing.backend_contract import ContractTests
from dlbridge.testing.backend_host import HostTests
from dlbridge.testing.backend_memory import ExportableTests, MemoryTests, TrimTests
from dlbridge.testing.backend_native import NativeTests
from dlbridge.testing.backend_refusals import LostTests, RefusalTests


class TestOneAPI(BackendTests):
    name = "oneapi"

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

    nightly = (ContractTests, MemoryTests, RefusalTests, HostTests, NativeTests, ExportableTests)
    nightly += (TrimTests, LostTests)
    child_setup = None  # it would show nothing more

    def make_stream(self, backend, device_id):
        return dpctl.SyclQueue(backend.devices[device_id])
