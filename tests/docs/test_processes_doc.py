"""docs/processes.md: its examples run, those of MPI as one program on two and on four ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from expected import backend_or_skip
from peers import peer
from ranks import run_ranks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "processes.md"


BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
PROGRAM = "__main__"  # what a program of its own has, as its processes import it


def test_the_program_with_shared_memory_runs(tmp_path):
    backend_or_skip("opencl")
    (block,) = [block for block in BLOCKS if PROGRAM in block]
    program = tmp_path / "program.py"
    program.write_text(block)
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_examples_run(ranks, tmp_path):
    backend_or_skip("opencl")
    peer("ml_dtypes")
    blocks = [block for block in BLOCKS if PROGRAM not in block]
    assert len(blocks) == 6
    program = tmp_path / "examples.py"
    program.write_text("\n".join([*blocks, 'print("done")']))
    assert run_ranks(ranks, program).split() == ["done"] * ranks
