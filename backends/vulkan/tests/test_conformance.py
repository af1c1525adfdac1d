"""The conformance kit, on memory that the host addresses and on memory that it does not."""

from dlbridge.testing import BackendTests


class TestVulkan(BackendTests):
    name = "vulkan"
