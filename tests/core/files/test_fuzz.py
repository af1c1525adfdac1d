"""Damaged files, thousands of them: refused in words or loaded whole, never a crash."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SECONDS = float(os.environ.get("DLBRIDGE_FUZZ_SECONDS", "5"))


def test_damaged_files(tmp_path):
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, HERE / "fuzz_files.py", str(SECONDS), tmp_path],
        env={
            **os.environ,
            "DLBRIDGE_BACKENDS": "cpu,ext_dev",
            "PYTHONPATH": os.pathsep.join(paths),
        },
        capture_output=True,
        text=True,
        timeout=SECONDS + 300,
        check=False,
    )
    tried = sorted(tmp_path.glob("tried.*"), key=lambda path: path.stat().st_mtime)
    last = tried[-1].read_bytes()[:2000] if tried else "nothing"
    assert done.returncode == 0, f"trying {last!r}:\n{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    outcomes = ast.literal_eval(done.stdout)
    for kind in ("safetensors", "npy", "npz", "npz compressed", "gguf"):
        assert outcomes[f"{kind} refused"] >= 10, outcomes
        assert outcomes[f"{kind} loaded"] >= 1, outcomes
