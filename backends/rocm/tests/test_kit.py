"""The conformance kit for both names, at every pace of the double."""

import gc

import pytest
from rocm_support import USLEEP, create_stream, hip, slow

from dlbridge.testing import BackendTests


class Slow(BackendTests):
    """How the kit gets streams and slow work here: a host function that sleeps in the stream."""

    @pytest.fixture(autouse=True)
    def _pace(self, pace):
        self.streams_made = []
        if pace:  # an allocation takes a millisecond then; at once there are 10,000
            self.allocations = 1000
        yield
        if self.streams_made:
            gc.collect()  # tensors that were made on them
        for stream in self.streams_made:
            hip("hipStreamDestroy", stream)

    def make_stream(self, backend, device_id):
        self.streams_made.append(create_stream(device_id))
        return self.streams_made[-1]

    def slow_work(self, backend, device_id, stream):
        slow(stream, 0.06, device_id)
        return USLEEP


class TestROCM(Slow):
    name = "rocm"


class TestROCMSecondDevice(Slow):
    name = "rocm"
    device_id = 1

    @pytest.fixture
    def pace(self, two_devices):
        """At once: the paces have nothing to do with the device."""
        return 0


class TestROCMHost(Slow):
    name = "rocm_host"
