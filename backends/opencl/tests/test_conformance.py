"""The conformance kit on this machine's first OpenCL device."""

from backends.opencl.tests.kit import OpenCLKit
from dlbridge.testing import BackendTests


class TestOpenCL(OpenCLKit, BackendTests):
    """All of it."""
