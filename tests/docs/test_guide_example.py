"""The example of docs/writing-a-backend.md: a whole backend, which passes the kit."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "writing-a-backend.md"

KIT = """
from dlbridge.testing import BackendTests


class TestOneQueue(BackendTests):
    name = "one_queue"
"""


@pytest.fixture
def example():
    text = GUIDE.read_text(encoding="utf-8")
    codes = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (code,) = [code for code in codes if "class OneQueue" in code]
    return code


def test_it_is_short(example):
    assert len(example.splitlines()) < 200


@pytest.mark.parametrize(("name", "lines"), [("webgpu", 400), ("oneapi", 320)])
def test_two_backends_are_as_short_as_it_says(name, lines):
    assert "less than 400 lines (WebGPU) and 320 lines (oneAPI)" in GUIDE.read_text(
        encoding="utf-8"
    )
    files = list((GUIDE.parents[1] / "backends" / name / f"dlbridge_{name}").glob("*.py"))
    assert 0 < sum(lines_of_code(file.read_text(encoding="utf-8")) for file in files) < lines


def lines_of_code(source):
    """The lines of *source* that are not in docstrings; blank lines and comments count."""
    docstrings = [
        node.end_lineno - node.lineno + 1
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    return len(source.splitlines()) - sum(docstrings)


def test_it_passes_the_kit(example, tmp_path):
    (tmp_path / "dlbridge_one_queue.py").write_text(example)
    (tmp_path / "test_one_queue.py").write_text(KIT)
    metadata = tmp_path / "dlbridge_one_queue-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: dlbridge-one-queue\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text(
        "[dlbridge.backends]\none_queue = dlbridge_one_queue:OneQueue\n"
    )
    path = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    expected = os.environ.get("DLBRIDGE_EXPECT", "").replace("opencl", "opencl,one_queue")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "DLBRIDGE_EXPECT": expected,
        "DLBRIDGE_BACKENDS": "cpu,one_queue",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path / "test_one_queue.py")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if " passed" not in done.stdout or "test_round_trip" in done.stdout:
        pytest.fail(done.stdout)
    if re.search("one_queue: (OpenCL finds no driver|no OpenCL device)", done.stdout):
        pytest.skip("no OpenCL device here")
