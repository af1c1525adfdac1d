"""The conformance kit for each name, at every pace of the simulated driver."""

from tests.drivers.suite.conformance import Delayed, SecondDevice, Strict


class TestROCM(Delayed):
    name = "rocm"


class TestROCMStrict(Strict):
    name = "rocm"


class TestROCMHost(Delayed):
    name = "rocm_host"
    refuses_writes = False  # HIP has no such right
    nightly = ("process",)  # the class is CUDA's, and this is not of the driver


class TestROCMSecondDevice(SecondDevice):
    name = "rocm"
