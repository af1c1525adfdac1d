"""The conformance kit for each name, at every pace of the simulated driver."""

from suite.conformance import HostMemory, SecondDevice, Slow


class TestCUDA(Slow):
    name = "cuda"


class TestCUDAHost(HostMemory):
    name = "cuda_host"


class TestCUDAManaged(Slow):
    name = "cuda_managed"


class TestCUDASecondDevice(SecondDevice):
    name = "cuda"
