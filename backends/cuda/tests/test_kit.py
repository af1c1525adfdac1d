"""The conformance kit for each name, at every pace of the simulated driver."""

from suite.conformance import SecondDevice, Slow


class TestCUDA(Slow):
    name = "cuda"


class TestCUDAHost(Slow):
    name = "cuda_host"


class TestCUDAManaged(Slow):
    name = "cuda_managed"


class TestCUDASecondDevice(SecondDevice):
    name = "cuda"
