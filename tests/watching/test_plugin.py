"""The plug-in for pytest, from the wheel, in a small project of its own."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.support.scripts import environment, run_pytest

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ["-p", "dlbridge.watching.plugin", "-p", "no:cacheprovider", "-q"]

CODE = """
import dlbridge as bridge
import numpy as np

def norm(x):
    t = bridge.{call}
    return float(np.linalg.norm(np.from_dlpack(t)))
"""
TESTS = """
import numpy as np
import pytest
from code_of_mine import norm

@pytest.mark.exchanges(max_copies=0, max_moves=0)
def test_norm_copies_nothing():
    assert norm(np.ones(4)) == 2

def test_how_many(exchanges):
    norm(np.ones(4))
    assert {row.target for row in exchanges} == {"dlbridge.Tensor", "numpy.ndarray"}

def test_unwatched():
    assert norm(np.ones(4)) == 2
"""
SHARED, COPIED = "asarray(x)", "to_device(x, 'cpu', copy=True)"


@pytest.fixture
def project(tmp_path):
    """A project with a function and its tests."""
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\naddopts = '--strict-markers'"
    )
    (tmp_path / "test_mine.py").write_text(TESTS)
    write(tmp_path, SHARED)
    return tmp_path


def write(project, call):
    (project / "code_of_mine.py").write_text(CODE.format(call=call))


def run(project, *arguments):
    done = run_pytest(*PLUGIN, *arguments, cwd=project, paths=(project,))
    return done.returncode, done.stdout + done.stderr


def test_it_finds_a_copy_that_a_change_brought_in(project):
    code, output = run(project)
    assert (code, "3 passed" in output) == (0, True), output
    write(project, COPIED)
    code, output = run(project)
    assert code == 1
    assert "exchanges: max_copies=0, and there were 1" in output
    assert "code_of_mine.py:6  norm" in output
    assert "32 B copied" in output
    assert "1 failed, 2 passed" in output


@pytest.mark.parametrize(
    ("marker", "said"),
    [("max_copy=0", "exchanges(max_copy=0) is no limit"), ("0", "write max_copies=0")],
)
def test_a_wrong_marker(project, marker, said):
    (project / "test_mine.py").write_text(
        f"import pytest\n@pytest.mark.exchanges({marker})\ndef test_it(): pass\n"
    )
    code, output = run(project)
    assert code != 0
    assert said in output


def test_none_is_no_limit(project):
    """As the help of the marker says; it lifts a limit of the class or the module."""
    write(project, COPIED)
    (project / "test_mine.py").write_text(
        "import numpy as np, pytest\nfrom code_of_mine import norm\n"
        "pytestmark = pytest.mark.exchanges(max_copies=0)\n"
        "@pytest.mark.exchanges(max_copies=None)\ndef test_it(): norm(np.ones(4))\n"
    )
    assert run(project)[0] == 0


def test_a_test_that_fails_by_itself_fails_so(project):
    (project / "test_mine.py").write_text(
        "import pytest\n@pytest.mark.exchanges(max_copies=0)\ndef test_it(): assert 1 == 2\n"
    )
    code, output = run(project)
    assert (code, "assert 1 == 2" in output) == (1, True)


def test_from_the_wheel(project, tmp_path_factory):
    """In an environment that has the wheel, and not this folder."""
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, folder], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    (site,) = (folder / "venv" / "lib").glob("python3*/site-packages")
    subprocess.run([sys.executable, "-m", "zipfile", "-e", wheel, site], check=True)
    # The packages that the wheel needs are those of this environment, without what is editable.
    for name in ("numpy", "cffi", "pytest"):
        home = Path(__import__(name).__file__).parents[1]
        (site / f"{name}.pth").write_text(f"{home}\n")
    write(project, COPIED)
    variables = environment()
    del variables["PYTHONPATH"]
    done = subprocess.run(
        [python, "-m", "pytest", *PLUGIN],
        cwd=project,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "exchanges: max_copies=0, and there were 1" in done.stdout, done.stdout + done.stderr
    asked = [python, "-c", "import dlbridge; print(dlbridge.__file__)"]
    assert (
        str(site)
        in subprocess.run(
            asked, cwd=project, env=variables, capture_output=True, text=True, check=True
        ).stdout
    )
