"""Elements below a byte in random programs on this backend's memory."""

from __future__ import annotations

import pytest
from subbyte_programs import run_programs


@pytest.mark.parametrize("devices", [["opencl:0"], ["cpu", "opencl:0"]])
def test_programs(opencl, devices):
    run_programs(range(60), devices)
