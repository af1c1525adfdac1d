"""tests/again.py: what fails by chance is reported, what fails again fails."""

import subprocess
import sys
from pathlib import Path

import pytest

AGAIN = Path(__file__).with_name("again.py")

TESTS = {
    "always": "def test_it():\n    assert False\n",
    "once": """
from pathlib import Path

def test_it():
    seen = Path(__file__).with_name("seen")
    was_there = seen.exists()
    seen.touch()
    assert was_there

def test_another():
    pass
""",
    "every other time": """
from pathlib import Path

def test_it():
    runs = Path(__file__).with_name("runs")
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    assert len(runs.read_text()) % 2 == 0
""",
    "a crash of a worker": "import os\n\ndef test_it():\n    os.abort()\n",
    "many": "import pytest\n\n@pytest.mark.parametrize('x', range(11))\ndef test_it(x): assert False\n",
    "no test": "import no_such_module\n",
    "a mark": "import pytest\n\n@pytest.mark.exhaustive\ndef test_it(): assert False\n",
    "nothing": "def test_it():\n    pass\n",
}
EXPECTED = {
    "always": (1, "FAILED"),
    "once": (0, "FAILED ONCE in 4 runs:\n  test_it.py::test_it"),
    "every other time": (1, "FAILED"),
    "a crash of a worker": (1, "crashed"),
    "many": (1, "11 failed"),
    "no test": (1, "no_such_module"),
    "a mark": (1, "FAILED"),
    "nothing": (0, "1 passed"),
}


@pytest.mark.parametrize("name", TESTS)
def test_a_failure_must_come_again(tmp_path, name):
    (tmp_path / "test_it.py").write_text(TESTS[name])
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = exhaustive: long\n")
    done = subprocess.run(
        [sys.executable, AGAIN, "-q", "-n", "1", "-m", "exhaustive or not exhaustive", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    status, text = EXPECTED[name]
    assert (done.returncode, text in done.stdout) == (status, True), done.stdout + done.stderr
    assert ("FAILED ONCE" in done.stdout) == (name == "once")
