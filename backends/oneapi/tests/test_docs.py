"""The examples of docs/oneapi.md, in order, as one program."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "oneapi.md"


def test_the_examples_run(oneapi, dpnp):
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(examples) == 4
    exec("\n".join(examples), {})
