"""The examples of docs/opencl.md, in order, as one program."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import programs

PAGE = Path(__file__).parents[3] / "docs" / "opencl.md"


def test_the_examples_run(opencl):
    if not opencl.device_info(0)["host_memory_shared"]:
        pytest.skip("one example is about shared memory")
    examples = programs(PAGE.read_text())
    assert len(examples) == 4
    exec("\n".join(examples), {})
