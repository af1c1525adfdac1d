"""The tests' own net: no process of a cluster is left, whatever the program did."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.support.process_groups import run_group

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

CHILDREN = """
import subprocess, sys
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
one = subprocess.Popen(sleep, **quiet)
two = subprocess.Popen(sleep, start_new_session=True, **quiet)
with open("pids", "w") as file:
    print(one.pid, two.pid, file=file)
"""


def lives(pid):
    for _ in range(600):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return False
        except OSError:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.parametrize(("end", "message"), [("sys.exit(3)", "^3\n"), ("", "processes are left")])
def test_a_program_leaves_nothing(tmp_path, end, message):
    """Whether it fails, or ends well and forgets them."""
    program = tmp_path / "program.py"
    program.write_text(CHILDREN + end)
    with pytest.raises(AssertionError, match=message):
        run_group(program, cwd=tmp_path, patience=0.2)
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 2
    assert [lives(pid) for pid in pids] == [False, False]
