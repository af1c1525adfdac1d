"""docs/clusters.md: its example runs on a cluster of three workers, each on what it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from expected import backend_or_skip, expected
from groups import run_group

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clusters.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_example_runs(tmp_path):
    if not expected("peers"):
        pytest.importorskip("distributed")
    if backend_or_skip("opencl").device_info(0)["platform"] != "Portable Computing Language":
        pytest.skip("the two devices are PoCL's")
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) == 2
    program = tmp_path / "photographs.py"
    program.write_text("\n".join(blocks))
    said = run_group(program, cwd=tmp_path)
    for place in ("on opencl:0", "on opencl:1", "by numpy"):
        assert f"blurred {place}" in said
