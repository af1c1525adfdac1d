"""Elements below a byte in random programs on this backend's memory."""

from __future__ import annotations

import pytest
from subbyte_programs import run_programs


@pytest.mark.parametrize("devices", [["vulkan:0"], ["cpu", "vulkan:0"]])
def test_programs(vulkan, devices):
    run_programs(range(60), devices)
