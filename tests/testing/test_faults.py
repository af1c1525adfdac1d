"""The simulated device, broken in one way at a time: the conformance kit notices each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from noticed import NOTICED

from dlbridge.core.plugins import registry

pytestmark = pytest.mark.exhaustive

HERE = Path(__file__).with_name("faulty")

SOUND = [
    *("Sound", "Late", "Shared", "LateShared"),
    *("RefusesOverlaps", "RefusesOverlappingRuns", "TakesMore"),
]


class Run:
    """A plugin of pytest: the tests that failed, without their parameters; *first* is run first."""

    def __init__(self, first):
        self.first = first
        self.failed = set()
        self.collected = 0

    def pytest_collection_modifyitems(self, items):
        items.sort(key=lambda item: item.originalname != self.first)  # the others keep their order
        self.collected = len(items)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.add(report.nodeid.rpartition("::")[2].partition("[")[0])


def late(name):
    import faults

    return getattr(faults, name).late


@pytest.fixture
def kit(monkeypatch):
    """``kit(fault)``: the tests of the kit that fail for a backend with that fault.

    With ``first="test_name"`` that test is run first, and the first failure ends the run.
    """
    monkeypatch.syspath_prepend(str(HERE))
    path = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    for name in ("DLBRIDGE_FAKE_DELAY_US", "DLBRIDGE_FAKE_SHARED"):
        monkeypatch.delenv(name, raising=False)
    # The sound one of dlbridge-fake would recognise native objects of the same class.
    monkeypatch.setenv("DLBRIDGE_BACKENDS", "cpu,faulty")
    monkeypatch.setenv("DLBRIDGE_EXPECT", "faulty")

    def run(fault, first=None):
        monkeypatch.setenv("DLBRIDGE_TEST_FAULT", fault)
        # Of a fault that hangs the test must fail soon; a sound backend may be slow.
        monkeypatch.setenv("DLBRIDGE_TEST_PATIENCE", "8" if first else "120")
        if late(fault):
            monkeypatch.setenv("DLBRIDGE_FAKE_DELAY_US", "1")
        for name in ("faulty", "ext_dev"):
            monkeypatch.delitem(registry.LOADED, name, raising=False)
        monkeypatch.delitem(sys.modules, "kit_of_faults", raising=False)
        options = ["-q", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist", "--noconftest"]
        options += ["-c", os.devnull, "--rootdir", str(HERE), *(["-x"] if first else [])]
        if first is None:  # in a process of its own, as the kit measures memory
            command = [sys.executable, "-m", "pytest", *options, str(HERE / "kit_of_faults.py")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 230, done.stdout
            return set() if done.returncode == 0 else {done.stdout}
        seen = Run(first)
        pytest.main([*options, str(HERE / "kit_of_faults.py")], [seen])
        registry.LOADED.pop("faulty", None)
        assert seen.collected > 250
        return seen.failed

    return run


# One whole kit each, of 12 to 17 s: two of them, and `make stress` has the others.
OFTEN = ("Sound", "LateShared")
MARKED = [
    sound if sound in OFTEN else pytest.param(sound, marks=pytest.mark.stress) for sound in SOUND
]


@pytest.mark.parametrize("sound", MARKED)
def test_the_kit_passes_a_sound_backend(sound, kit):
    assert kit(sound) == set()


@pytest.mark.parametrize("fault", NOTICED)
def test_the_kit_notices(fault, kit):
    """The whole kit, until something fails; a sound backend passes it (the test above)."""
    assert kit(fault, first=NOTICED[fault]) == {NOTICED[fault]}


def test_every_fault_is_run(kit):
    import faults

    classes = {
        name
        for name, value in vars(faults).items()
        if isinstance(value, type) and value.__module__ == "faults"
    }
    assert classes - set(SOUND) == set(NOTICED)
    assert len(NOTICED) >= 30
