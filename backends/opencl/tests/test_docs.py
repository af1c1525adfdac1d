"""The examples of docs/opencl.md, in order, as one program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import run_examples

PAGE = Path(__file__).parents[3] / "docs" / "opencl.md"


def test_the_examples_run(opencl):
    if not opencl.device_info(0)["host_memory_shared"]:
        pytest.skip("one example is about shared memory")
    run_examples(PAGE, 4)
