"""The conformance kit of dlbridge for a backend, at every pace of the simulated driver."""

import gc

import pytest

from dlbridge.testing import BackendTests
from dlbridge.testing.backend_process import ProcessTests

from .fixtures import PACES
from .rig import prelude, rig, slow


class Slow(BackendTests):
    """How the kit gets streams and slow work: a host function that sleeps in the stream."""

    @pytest.fixture(autouse=True)
    def _pace(self, pace, pytestconfig):
        self.streams_made = []
        if pytestconfig.dlbridge_fake is not None:
            self.child_setup = prelude() + "drivers()\n"
        if pace == "strict":  # an allocation takes a millisecond; other processes have no pace
            self.allocations, self.child_setup = 1000, None
        yield
        if self.streams_made:
            gc.collect()  # tensors that were made on them
        for device_id, stream in self.streams_made:
            rig().destroy_stream(stream, device_id)

    def make_stream(self, backend, device_id):
        stream = rig().create_stream(device_id, 1)
        self.streams_made.append((device_id, stream))
        return stream

    def slow_work(self, backend, device_id, stream):
        slow(stream or rig().default, 0.06, device_id)
        return self


@pytest.mark.parametrize("pace", PACES[:1], indirect=True)
class OnePace(Slow):
    """Memory whose copies with the host are the host's own, or those of device memory."""


class SecondDevice(Slow):
    """Without forks, exits and signals: they are of the process, and its first device shows them."""

    device_id = 1

    @pytest.fixture
    def pace(self, two_devices):
        """None: the driver at once, for the paces have nothing to do with the device."""


for name in vars(ProcessTests):
    if name.startswith("test_"):
        setattr(SecondDevice, name, None)
