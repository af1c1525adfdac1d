"""The examples of docs/webgpu.md, in order, as one program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "webgpu.md"


def test_the_examples_run(webgpu):
    """In a process of its own: a number of a device is counted on."""
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(examples) == 3
    code = "\n".join(examples)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
