"""What importing and listing costs; the command line; a package that registers its device itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.scripts import run_script


def test_torch_is_not_imported_before_a_device_of_it_is_named():
    code = """
import sys
import dlbridge as bridge, numpy as np
bridge.backends(); bridge.to_device(np.zeros(3), "cpu", copy=True)
bridge.from_dlpack(bridge.zeros(3, device="ext_dev:0").__dlpack__())
try:
    bridge.zeros(3, device="gpu")
except ValueError:
    pass
print("torch" in sys.modules)
try:
    bridge.zeros(3, device="torch-nothing:0")
except bridge.BackendUnavailable as error:
    print("torch" in sys.modules)
"""
    assert run_script(code) == "False\nTrue\n"


@pytest.fixture
def vendor(tmp_path):
    """The environment in which a vendor's package, which torch loads by itself, is installed."""
    info = tmp_path / "torch_late-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-late\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\nlate = torch_late:load\n")
    (tmp_path / "torch_late.py").write_text(
        "def load():\n    from backends.torch.tests import late_device\n"
    )
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": paths, "DLBRIDGE_BACKENDS": "cpu,torch-"}


def command(vendor, *arguments):
    run = [sys.executable, "-m", "dlbridge", *arguments]
    return subprocess.run(run, env=vendor, capture_output=True, text=True, timeout=240, check=False)


def test_doctor_tries_one_backend(vendor):
    done = command(vendor, "doctor", "torch-late")
    assert done.stdout == (
        "ok        backend torch-late: 2 devices, memory went there and back\n\nno problem was found\n"
    ), done.stderr
    done = command(vendor, "doctor", "torch-npu")
    assert "backend torch-npu: not usable here: torch-npu: torch knows no" in " ".join(
        done.stdout.split()
    )


def test_info_and_explain_name_the_device(vendor):
    told = command(vendor, "info").stdout
    assert "torch-late:1" in told
    assert "Late 1" in told
    told = command(vendor, "explain", "cpu", "torch-late:0").stdout
    assert "by torch's allocator" in told
