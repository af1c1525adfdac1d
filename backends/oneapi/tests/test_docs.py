"""The examples of docs/oneapi.md, in order, as one program."""

from __future__ import annotations

from pathlib import Path

from tests.support.pages import run_examples

PAGE = Path(__file__).parents[3] / "docs" / "oneapi.md"


def test_the_examples_run(oneapi, dpnp):
    run_examples(PAGE, 4)
