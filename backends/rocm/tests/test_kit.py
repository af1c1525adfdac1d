"""The conformance kit for each name, at every pace of the simulated driver."""

from suite.conformance import OnePace, SecondDevice, Slow


class TestROCM(Slow):
    name = "rocm"


class TestROCMHost(OnePace):
    name = "rocm_host"


class TestROCMSecondDevice(SecondDevice):
    name = "rocm"
