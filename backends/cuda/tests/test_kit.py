"""The conformance kit for each name, at every pace of the simulated driver."""

from suite.conformance import OnePace, SecondDevice, Slow


class TestCUDA(Slow):
    name = "cuda"


class TestCUDAHost(OnePace):
    name = "cuda_host"


class TestCUDAManaged(OnePace):
    name = "cuda_managed"


class TestCUDASecondDevice(SecondDevice):
    name = "cuda"
