"""The kit, for the backend that plugin_faulty.py chooses; test_faults.py runs it."""

import os
import threading
import time

import pytest
from dlbridge_fake import Array, Stream
from dlbridge_fake.stream import by_handle
from plugin_faulty import chosen

from dlbridge.protocol import NativeArray, Span
from dlbridge.testing import BackendTests

FAULT, ONLY = chosen(), os.environ.get("DLBRIDGE_TEST_ONLY")


class TestFaulty(BackendTests):
    name = FAULT.name
    max_nbytes = (1 << 24) + 4096  # an offset that does not fit into 24 bits
    huge_nbytes = min(FAULT.capacity, (1 << 32) + 4096)
    if ONLY:  # it takes seconds
        copied_nbytes = huge_nbytes // 2
    may_fill = hasattr(FAULT, "make_room")
    allocations = 400
    patience = FAULT.patience
    child_setup = "import os; os.environ['DLBRIDGE_TEST_CHILD'] = '1'"
    refuses_writes = name == "faulty"
    unknown_stream = 0x7FF0_DEAD_BEE8_0000 if name == "faulty" else None
    without_driver = {"DLBRIDGE_TEST_MISSING": "1"} if name == "faulty" else None
    without_package = "package_of_faulty" if name == "faulty" else ""

    @pytest.fixture
    def backend(self):
        return FAULT()

    def make_stream(self, backend, device_id):
        if not backend.late:
            return None
        return getattr(backend, "new_stream", Stream)(device_id)

    def make_current(self, backend, device_id, stream):
        return stream

    def queue(self, backend, device_id, stream):
        return by_handle[stream] if stream else backend.default_streams[device_id]

    def slow_work(self, backend, device_id, stream):
        if not backend.late:
            return None
        done = threading.Event()
        queue = self.queue(backend, device_id, stream)
        queue.enqueue(lambda: (time.sleep(0.04), done.set()))
        return done

    def is_done(self, backend, device_id, stream, work):
        return work.is_set() if backend.late else None

    def failing_work(self, backend, device_id, stream):
        if backend.late:
            self.queue(backend, device_id, stream).enqueue(lambda: 1 // 0)
        return backend.late

    def make_native(self, backend, device_id, content):
        if self.name == "cpu":
            return None
        memory = backend.allocate(device_id, len(content), 1, 0)
        span = Span(device_id, memory.data, 0, len(content))
        backend.copy_from_host(span, memoryview(content), 0)
        backend.synchronize(device_id, 0)
        return Array(
            NativeArray(
                device_id,
                memory.data,
                0,
                "uint8",
                (len(content),),
                None,
                readonly=False,
                owner=memory,
            )
        )

    def lose_device(self, backend, device_id):
        if self.name == "cpu":
            return False
        backend.lose(device_id)
        return True

    def lost_together(self, backend, device_id):
        return getattr(backend, "together", {device_id})


if ONLY:  # to collect three hundred tests takes longer than to run one
    for each in dir(TestFaulty):
        if each.startswith("test_") and each != ONLY:
            setattr(TestFaulty, each, None)
