"""The scheduled run: one issue, which each failure updates; the ratios, which each night commits."""

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


def git(folder, *arguments):
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def test_a_night_pushes_its_ratios_and_nothing_else_beside_what_others_push(tmp_path):
    remote, clone = tmp_path / "remote", tmp_path / "clone"
    git(tmp_path, "init", "-q", "--bare", "-b", "main", str(remote))
    git(tmp_path, "clone", "-q", str(remote), str(clone))
    history = clone / "docs" / "benchmarks" / "history"
    history.mkdir(parents=True)
    (history / "exchange.csv").write_text("commit\na\n")
    (clone / "other").write_text("1")
    git(clone, "add", ".")
    git(clone, "commit", "-q", "-m", "first")
    git(clone, "push", "-q", "origin", "HEAD:refs/heads/main")
    command = [ROOT / ".ci/history", str(remote), "main"]
    said = subprocess.run(command, cwd=clone, check=True, capture_output=True, text=True).stdout
    assert said == "no new line\n"
    (history / "exchange.csv").write_text("commit\na\nb\n")
    (history / "ffi.csv").write_text("commit\nb\n")
    (clone / "other").write_text("2")
    colleague = tmp_path / "colleague"
    git(tmp_path, "clone", "-q", str(remote), str(colleague))
    (colleague / "more").write_text("1")
    git(colleague, "add", ".")
    git(colleague, "commit", "-q", "-m", "meanwhile")
    git(colleague, "push", "-q", "origin", "HEAD:refs/heads/main")
    subprocess.run(command, cwd=clone, check=True)
    assert git(remote, "log", "--format=%s", "-1", "main~1").strip() == "meanwhile"
    assert (clone / "other").read_text() == "2"
    changed = git(remote, "diff", "--name-only", "main~1", "main").split()
    assert changed == [f"docs/benchmarks/history/{name}.csv" for name in ("exchange", "ffi")]
