"""The conformance kit for the three names, at every pace of the double."""

import gc

import pytest
from cuda_support import slow

from dlbridge.testing import BackendTests


class Slow(BackendTests):
    """How the kit gets streams and slow work here: a host function that sleeps in the stream."""

    @pytest.fixture(autouse=True)
    def _pace(self, pace):
        self.streams_made = []
        if pace == "strict":  # an allocation takes a millisecond; delayed, there are 10,000
            self.allocations = 1000
        yield
        from dlbridge_cuda.driver import call

        gc.collect()
        for stream in self.streams_made:
            call("cuStreamDestroy", stream)

    def make_stream(self, backend, device_id):
        from dlbridge_cuda.contexts import current, primary
        from dlbridge_cuda.driver import call, cu

        with current(primary(device_id)):
            stream = call("cuStreamCreate", cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self.streams_made.append(stream)
        return stream

    def slow_work(self, backend, device_id, stream):
        slow(stream or 1, 0.06, device_id)
        return self


class TestCUDA(Slow):
    name = "cuda"


class TestCUDASecondDevice(Slow):
    name = "cuda"
    device_id = 1

    @pytest.fixture
    def pace(self, two_devices):
        """None: the double at once, for the paces have nothing to do with the device."""


class TestCUDAHost(Slow):
    name = "cuda_host"


class TestCUDAManaged(Slow):
    name = "cuda_managed"
