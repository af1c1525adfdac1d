"""The conformance kit on the simulated device."""

from dlbridge.testing import BackendTests


class TestFake(BackendTests):
    name = "ext_dev"

    def lose_device(self, backend, device_id):
        backend.lose(device_id)
        return True
