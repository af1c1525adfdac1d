"""docs/files.md: its examples run as one program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from expected import backend_or_skip
from peers import peer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "files.md"


def test_the_examples_run(tmp_path):
    backend_or_skip("opencl")
    peer("ml_dtypes")
    peer("safetensors")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 9
    program = tmp_path / "examples.py"
    program.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
