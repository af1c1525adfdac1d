"""The conformance kit on the device that is written in Python."""

from __future__ import annotations

import threading
import time

import torch

from backends.torch.tests import late_device
from dlbridge.testing import BackendTests


class TestTorch(BackendTests):
    name = "torch-late"
    max_nbytes = 8 << 20
    unknown_stream = 12345
    without_package = "torch"
    child_setup = "from backends.torch.tests import late_device; late_device.defer_signals()"

    streams_end = False  # torch takes them out of a pool, which never ends

    def make_stream(self, backend, device_id):
        return late_device.Stream(device_id)

    def make_current(self, backend, device_id, stream):
        return late_device.stream(stream)

    def slow_work(self, backend, device_id, stream):
        done = threading.Event()

        def work():
            time.sleep(0.05)
            done.set()

        backend.stream(device_id, stream).queue.put(work)
        return done

    def is_done(self, backend, device_id, stream, work):
        return work.is_set()

    def failing_work(self, backend, device_id, stream):
        def work():
            raise RuntimeError("the work fails")

        backend.stream(device_id, stream).queue.put(work)
        return True

    def make_native(self, backend, device_id, content):
        return torch.frombuffer(bytearray(content), dtype=torch.uint8).to(f"late:{device_id}")
