"""The examples of docs/oneapi.md, in order, as one program."""

from __future__ import annotations

from pathlib import Path

from pages import programs

PAGE = Path(__file__).parents[3] / "docs" / "oneapi.md"


def test_the_examples_run(oneapi, dpnp):
    examples = programs(PAGE.read_text())
    assert len(examples) == 4
    exec("\n".join(examples), {})
