"""The conformance kit for each name, at every pace of the simulated driver."""

from suite.conformance import OnePace, SecondDevice, Slow


class TestCUDA(Slow):
    name = "cuda"


class TestCUDAHost(OnePace):
    name = "cuda_host"
    refuses_writes = False  # the driver takes the right to read only as a hint


class TestCUDAManaged(OnePace):
    name = "cuda_managed"


class TestCUDASecondDevice(SecondDevice):
    name = "cuda"
