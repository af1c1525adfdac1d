"""The issue of the scheduled run: one, which each failure updates (.ci/report)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
URL = "https://forge.example/runs/7"
# The forge cannot be reached from a test: this program notes what it is asked, and answers `list`.
GH = """#!/bin/sh
printf '%s ' "$@" >> "$CALLS"; echo >> "$CALLS"
if [ "$2" = list ]; then printf '%s' "$OPEN"; fi
"""


@pytest.mark.parametrize(
    ("number", "call"),
    [("", "issue create --title"), ("12", "issue edit 12 --body")],
    ids=["first", "again"],
)
def test_a_failure_opens_one_issue_or_updates_it(tmp_path, number, call):
    (tmp_path / "gh").write_text(GH)
    (tmp_path / "gh").chmod(0o755)
    calls = tmp_path / "calls"
    subprocess.run(
        [ROOT / ".ci/report", URL],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "CALLS": str(calls), "OPEN": number},
        check=True,
    )
    text = calls.read_text()
    assert call in text
    assert URL in text.partition(call)[2]
    assert text.count("issue create") + text.count("issue edit") == 1
