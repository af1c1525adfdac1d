"""The kit, for the backend that plugin_faulty.py chooses; test_faults.py runs it."""

import os
import threading
import time

from dlbridge_fake import Stream
from dlbridge_fake.stream import by_handle

from dlbridge.testing import BackendTests


class TestFaulty(BackendTests):
    name = "faulty"
    max_nbytes = (1 << 24) + 4096  # an offset that does not fit into 24 bits
    allocations = 400
    patience = int(os.environ["DLBRIDGE_TEST_PATIENCE"])
    child_setup = "import os; os.environ['DLBRIDGE_TEST_CHILD'] = '1'"

    def make_stream(self, backend, device_id):
        return Stream(device_id) if backend.late else None

    def make_current(self, backend, device_id, stream):
        return stream

    def slow_work(self, backend, device_id, stream):
        if not backend.late:
            return None
        done = threading.Event()
        queue = by_handle[stream] if stream else backend.default_streams[device_id]
        queue.enqueue(lambda: time.sleep(0.02))
        queue.enqueue(done.set)
        return done

    def is_done(self, backend, device_id, stream, work):
        return work.is_set() if backend.late else None

    def lose_device(self, backend, device_id):
        backend.lose(device_id)
        return True
