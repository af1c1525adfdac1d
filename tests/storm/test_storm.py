"""Storms without a finding; and each fault that was mended, put back and found.

`storm.py` is the harness and the command, `operations.py` the table of operations,
`holes.py` the faults.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.storm.holes import HOLES
from tests.storm.storm import environment, storm
from tests.support.expected_parts import backend_or_skip

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX signals and forks")


def without_findings(seconds, each, *options):
    """Run storms one after the other; the seed of each is printed."""
    seed, end = int(time.time()), time.monotonic() + seconds
    while True:
        print(f"storm {seed}", flush=True)
        outcome = storm(seed, each, *options)
        assert not outcome.findings, "\n".join([outcome.command, *outcome.findings])
        assert outcome.report["operations"] > 20, outcome.report  # the worker does not end before
        seed += 1
        if time.monotonic() > end:
            return


def test_a_storm():
    """One short storm; `make stress` runs five minutes of them."""
    without_findings(0, 3, "--without=torch,jax")  # their imports take as long as the storm


SECOND_SIGNAL = """
import signal, sys
from tests.storm import disturbances
from tests.storm.disturbances import Interruptions

def set_timer(*_):
    caller = sys._getframe(1)
    if caller.f_code is Interruptions._strike.__code__:
        print(disturbances._may_come_at(caller))

signal.setitimer = set_timer
storm = Interruptions()
call = compile("storm._strike(signal.SIGALRM, sys._getframe())", "/other/library.py", "exec")
storm.run(__import__("random").Random(0), lambda: exec(call))
"""


def test_the_second_signal_of_a_slow_handler_may_come_where_the_first_may():
    """Else its exception is raised in another library, which may catch it."""
    outcome = subprocess.run(
        [sys.executable, "-c", SECOND_SIGNAL],
        check=False,
        capture_output=True,
        text=True,
        env=environment(0),
    )
    assert outcome.stdout == "False\n", outcome


@pytest.mark.stress
def test_storms():
    without_findings(float(os.environ.get("DLBRIDGE_STORM_SECONDS", "300")), 12)


def options_of(hole):
    """The storm that finds *hole*; threads that work while Python ends are a fault of its own."""
    ends = any(option.startswith("--end=") for option in hole.options)
    return hole.options if ends else ("--end=joined", *hole.options)


def usable(options):
    """Skip where the storm's devices are missing, unless they are expected."""
    for option in options:
        if option.startswith("--devices="):
            for name in {device.partition(":")[0] for device in option[10:].split(",")}:
                backend_or_skip(name)


@pytest.mark.parametrize("name", HOLES)
def test_each_fault_can_be_put_back(name):
    """The text that mends it is in its module; else it is to be adapted in `holes.py`."""
    pytest.importorskip(HOLES[name].module.partition(".")[0])
    source = Path(find_spec(HOLES[name].module).origin).read_text(encoding="utf-8")
    assert HOLES[name].mended in source


@pytest.mark.stress
@pytest.mark.parametrize("name", HOLES)
def test_a_storm_finds_each_fault_that_is_put_back(name):
    hole = HOLES[name]
    usable(hole.options)
    for seed in range(5, 25):  # chance decides where signals come and threads take turns
        options = (f"--hole={name}", *options_of(hole))
        outcome = storm(seed, hole.seconds, *options, patience=hole.patience)
        found = "\n".join(outcome.findings)
        if re.search(hole.finding, found):
            return
    pytest.fail(f"not found; what was found: {found}")


@pytest.mark.stress
@pytest.mark.parametrize("name", HOLES)
def test_the_same_storm_finds_nothing_in_the_package_as_it_is(name):
    hole = HOLES[name]
    usable(hole.options)
    outcome = storm(5, min(hole.seconds, 4), *options_of(hole))
    assert not outcome.findings, "\n".join([outcome.command, *outcome.findings])
