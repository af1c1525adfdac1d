"""``python -m dlbridge watch``: the program runs as by Python itself, and its table comes at the end."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.scripts import environment

PROGRAM = """
import sys
import numpy as np
import dlbridge as bridge

def main():
    copied = bridge.to_device(np.zeros(4), "cpu", copy=True)
    print("arguments", sys.argv[1:], __name__)

if __name__ == "__main__":
    main()
    sys.exit(3)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def run(folder, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "dlbridge", "watch", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("program", [["program.py"], ["-m", "program"]], ids=["script", "module"])
def test_a_program(folder, program):
    code, out, err = run(folder, *program, "a", "--b")
    assert (code, err) == (3, "")
    first, *table = out.splitlines()
    assert first == "arguments ['a', '--b'] __main__"
    assert (
        "program.py:7  main  numpy.ndarray  dlbridge.Tensor  float64 (4,)  32 B copied" in table[1]
    )
    assert "copy=True was asked for" in table[1]


def test_json(folder):
    code, out, _ = run(folder, "--json", "-", "program.py")
    assert code == 3
    assert json.loads(out.partition("\n")[2])["copies"] == 1
    run(folder, "--json", "found.json", "program.py")
    assert json.loads((folder / "found.json").read_text())["nbytes"] == 32


def test_the_program_ends_at_the_line_that_copies(folder):
    code, out, err = run(folder, "--fail-on", "host copy", "program.py")
    assert code == 1
    assert "arguments" not in out
    assert err.startswith("dlbridge watch: program.py:7, in main: to_device of numpy.ndarray")


def test_an_exception_of_the_program(folder):
    (folder / "program.py").write_text("import numpy\nraise RuntimeError('its own')\n")
    code, out, err = run(folder, "program.py")
    assert code == 1
    assert err.rstrip().endswith("RuntimeError: its own")
    assert "0 exchanges" in out


def test_a_program_without_numpy(folder):
    (folder / "program.py").write_text("print('hello')\n")
    code, out, err = run(folder, "program.py")
    assert (code, out.splitlines()[0], err) == (0, "hello", "")


def test_a_program_that_imports_numpy_itself(folder):
    """Nothing of dlbridge reads numpy before its import has ended."""
    (folder / "program.py").write_text("import numpy as np\nprint(np.zeros(2))\n")
    code, out, err = run(folder, "program.py")
    assert (code, err) == (0, "")
    assert "could not be read" not in out


def test_a_wrong_kind(folder):
    code, _, err = run(folder, "--fail-on", "copies", "program.py")
    assert code == 1
    assert "fail_on='copies' is no kind of exchange" in err


@pytest.mark.parametrize(
    "error", ["ValueError('its own')", "OSError('its own')", "dlbridge.ExchangeError('its own')"]
)
def test_an_exception_of_the_program_has_its_traceback(folder, error):
    """Also of the classes that dlbridge's own commands report in a line."""
    (folder / "program.py").write_text(f"import dlbridge\ndef deep():\n    raise {error}\ndeep()\n")
    code, out, err = run(folder, "program.py")
    assert code == 1
    assert 'program.py", line 3, in deep' in err
    assert err.rstrip().endswith("its own")
    assert "0 exchanges" in out


def test_the_program_has_its_path_and_its_folder(folder):
    """As by Python itself: an absolute `__file__`, and no modules of the current folder."""
    (folder / "below").mkdir()
    (folder / "below" / "program.py").write_text(
        "import os, sys\nassert os.path.isabs(__file__), __file__\n"
        "assert sys.path[0] == os.path.dirname(__file__), sys.path\n"
        "assert sys.path[1] != os.getcwd(), sys.path\n"
    )
    assert run(folder, "below/program.py")[::2] == (0, "")


@pytest.mark.parametrize("program", [["none.py"], ["-m", "none"]], ids=["script", "module"])
def test_a_program_that_is_not_there(folder, program):
    code, _, err = run(folder, *program)
    assert code == 1
    assert err.startswith("dlbridge watch: ")
    assert "none" in err
    assert "Traceback" not in err
