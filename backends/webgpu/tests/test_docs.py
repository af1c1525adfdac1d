"""The examples of docs/webgpu.md, in order, as one program."""

from __future__ import annotations

from pathlib import Path

from tests.support.pages import programs, with_reference
from tests.support.scripts import run_script

PAGE = Path(__file__).parents[3] / "docs" / "webgpu.md"


def test_the_examples_run(webgpu):
    """In a process of its own: a number of a device is counted on."""
    examples = programs(with_reference(PAGE))
    assert len(examples) == 3
    run_script("\n".join(examples))
