"""The conformance kit of dlbridge for a backend, at every pace of the simulated driver."""

import gc

import pytest

from dlbridge.testing import BackendTests
from dlbridge.testing.backend_process import ProcessTests

from .fixtures import PACES
from .rig import prelude, rig, slow

NOT_BYTES = ("contract", "refusals", "native", "leaks")
"""The parts that move few bytes, or none."""


class Kit(BackendTests):
    """How the kit gets streams and slow work: a host function that sleeps in the stream."""

    @pytest.fixture(autouse=True)
    def _pace(self, pace, pytestconfig):
        self.streams_made = []
        if pytestconfig.dlbridge_fake is not None and self.child_setup is not None:
            self.child_setup = prelude() + "drivers()\n"
        yield
        if self.streams_made:
            gc.collect()  # tensors that were made on them
        for device_id, stream in self.streams_made:
            rig().destroy_stream(stream, device_id)

    def make_stream(self, backend, device_id):
        stream = rig().create_stream(device_id, 1)
        self.streams_made.append((device_id, stream))
        return stream

    def end_stream(self, backend, device_id, stream):
        if rig().looks_up_gone_streams:  # else the driver ends the process (docs/cuda.md)
            self.streams_made.remove((device_id, stream))
            rig().destroy_stream(stream, device_id)

    @property
    def streams_end(self):
        """Whether `end_stream` ends them; else they end with the test."""
        return rig().looks_up_gone_streams

    def slow_work(self, backend, device_id, stream):
        slow(stream or rig().default, 0.06, device_id)
        return self

    def is_done(self, backend, device_id, stream, work):
        """Where nothing else is queued behind it, as wherever the kit asks."""
        return rig().is_idle(stream or rig().default, device_id)


@pytest.mark.parametrize("pace", PACES[:1], indirect=True)
class Delayed(Kit):
    """All work on the device is late."""


@pytest.mark.parametrize("pace", PACES[1:], indirect=True)
class Strict(Kit):
    """Copies with pageable memory are late, too."""

    nightly = NOT_BYTES
    allocations = 1000  # one takes a millisecond
    child_setup = None  # other processes have no pace


class SecondDevice(Kit):
    """Calls are made in the context of the device that they are for.

    Without forks, exits and signals: they are of the process, and its first device shows them.
    """

    device_id = 1
    nightly = (*NOT_BYTES, "threads")

    @pytest.fixture
    def pace(self, two_devices):
        """None: the driver at once, for the paces have nothing to do with the device."""


for name in vars(ProcessTests):
    if name.startswith("test_"):
        setattr(SecondDevice, name, None)
