"""The conformance kit for each name, at every pace of the simulated driver."""

from suite.conformance import OnePace, SecondDevice, Slow


class TestROCM(Slow):
    name = "rocm"


class TestROCMHost(OnePace):
    name = "rocm_host"
    refuses_writes = False  # HIP has no such right


class TestROCMSecondDevice(SecondDevice):
    name = "rocm"
