"""Malformed tensors, thousands of them: refused in words, by every way in, never leaked, never a
crash.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

from tests.support.peers import peer
from tests.support.scripts import finished

SECONDS = os.environ.get("DLBRIDGE_FUZZ_SECONDS", "5")


def test_malformed_structs(tmp_path):  # C10, C12, C16, C18, C23, C24
    peer("tvm_ffi")  # its structs are among the malformed ones
    note = tmp_path / "tried"
    script = Path(__file__).with_name("fuzz_malformed.py")
    done = finished(script, SECONDS, note, env={"DLBRIDGE_BACKENDS": "cpu,ext_dev"})
    tried = note.read_text() if note.exists() else "nothing"
    assert done.returncode == 0, f"trying {tried}:\n{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    count, _, outcomes = done.stdout.partition(" ")
    outcomes = ast.literal_eval(outcomes)
    assert int(count) >= 100
    for kind in (
        *("refused", "accepted", "producer", "unread", "capsule", "ffi"),
        *("their table", "our table", "ffi by table"),
    ):
        assert outcomes[kind] >= 90, outcomes
    for kind in ("array interface", "cuda array interface", "buffer"):
        assert outcomes[kind], outcomes
