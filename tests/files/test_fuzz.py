"""Damaged files, thousands of them: refused in words or loaded whole, never a crash."""

from __future__ import annotations

import ast
import os
from pathlib import Path

from tests.support.scripts import finished

SECONDS = os.environ.get("DLBRIDGE_FUZZ_SECONDS", "5")


def test_damaged_files(tmp_path):
    script = Path(__file__).with_name("fuzz_files.py")
    done = finished(script, SECONDS, tmp_path, env={"DLBRIDGE_BACKENDS": "cpu,ext_dev"})
    tried = sorted(tmp_path.glob("tried.*"), key=lambda path: path.stat().st_mtime)
    last = tried[-1].read_bytes()[:2000] if tried else "nothing"
    assert done.returncode == 0, f"trying {last!r}:\n{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    outcomes = ast.literal_eval(done.stdout)
    for kind in ("safetensors", "npy", "npz", "npz compressed", "gguf"):
        assert outcomes[f"{kind} refused"] >= 10, outcomes
        assert outcomes[f"{kind} loaded"] >= 1, outcomes
