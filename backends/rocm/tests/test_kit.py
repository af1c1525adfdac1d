"""The conformance kit for each name, at every pace of the simulated driver."""

from suite.conformance import HostMemory, SecondDevice, Slow


class TestROCM(Slow):
    name = "rocm"


class TestROCMHost(HostMemory):
    name = "rocm_host"


class TestROCMSecondDevice(SecondDevice):
    name = "rocm"
