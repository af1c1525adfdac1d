"""The conformance kit for each name, at every pace of the simulated driver."""

from tests.drivers.suite.conformance import Delayed, SecondDevice, Strict


class TestCUDA(Delayed):
    name = "cuda"


class TestCUDAStrict(Strict):
    name = "cuda"


class TestCUDAHost(Delayed):
    """Its copies with the host are the host's own."""

    name = "cuda_host"
    refuses_writes = False  # the driver takes the right to read only as a hint


class TestCUDAManaged(Delayed):
    """It is allocated in another way; the copies and their order are those of device memory."""

    name = "cuda_managed"
    nightly = ("copy", "order", "refusals", "threads", "process")


class TestCUDASecondDevice(SecondDevice):
    name = "cuda"
