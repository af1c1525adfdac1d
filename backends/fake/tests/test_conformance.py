from dlbridge.testing import BackendTests


class TestFake(BackendTests):
    name = "ext_dev"
