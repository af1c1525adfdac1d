"""The kit where it meets several drivers in one process: on the first device of each platform.

tests/opencl_platforms.py chooses the drivers, for `make test-opencl-platforms`.
"""

from __future__ import annotations

import os

import pytest

from backends.opencl.tests.kit import OpenCLKit
from dlbridge.testing.backend_host import HostTests
from dlbridge.testing.backend_moves import ExchangeTests, MoveTests
from dlbridge.testing.backend_overlaps import OverlapTests
from dlbridge.testing.backend_refusals import RefusalTests

pytestmark = pytest.mark.exhaustive  # the same tests once more, beside other drivers


class TestFirst(OpenCLKit, HostTests, MoveTests, OverlapTests, ExchangeTests, RefusalTests):
    """Device 0."""

    @pytest.fixture(autouse=True)
    def is_there(self, opencl):
        if opencl.device_count() <= self.device_id:
            pytest.skip("there are fewer OpenCL devices")


class TestSecond(TestFirst):
    """Device 1."""

    device_id = 1


class TestThird(TestFirst):
    """Device 2."""

    device_id = 2


def test_the_platforms_are_all_here(opencl):
    wanted = int(os.environ.get("DLBRIDGE_OPENCL_PLATFORMS", "1"))
    versions = {opencl.device_info(i)["version"] for i in range(opencl.device_count())}
    assert len(versions) >= wanted, versions
