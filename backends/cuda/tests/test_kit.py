"""The conformance kit for each name, at every pace of the simulated driver."""

from suite.conformance import Delayed, SecondDevice, Strict

from dlbridge.testing.backend_copy import CopyTests
from dlbridge.testing.backend_order import OrderTests, StreamTests
from dlbridge.testing.backend_process import ProcessTests
from dlbridge.testing.backend_refusals import LostTests, RefusalTests
from dlbridge.testing.backend_threads import ThreadTests


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
    nightly = (
        CopyTests,
        RefusalTests,
        StreamTests,
        OrderTests,
        ThreadTests,
        LostTests,
        ProcessTests,
    )


class TestCUDASecondDevice(SecondDevice):
    name = "cuda"
