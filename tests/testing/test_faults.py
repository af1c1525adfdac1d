"""The simulated device, broken in one way at a time: the conformance kit notices each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dlbridge.extending import LOADED
from dlbridge.testing import BackendTests
from tests.testing.faulty.core_faults import CORE_FAULTS, VARIABLE
from tests.testing.faulty.faults import FAULTS, SOUND

HERE = Path(__file__).with_name("faulty")
# Apart, as an entry point is there for whatever else runs in this process.
INSTALLED = HERE / "installed"
PLUGINS = Path(__file__).parents[1] / "support" / "plugins"

MISTAKES = r"AttributeError|NameError|TypeError: .*(keyword|positional) argument"

ALL = {**FAULTS, **{sound.__name__: sound for sound in SOUND}}


class Run:
    """A plugin of pytest: the tests that failed, why, and how many there were."""

    def __init__(self):
        self.failed = set()
        self.why = []
        self.collected = 0

    def pytest_collection_modifyitems(self, items):
        self.collected = len(items)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.add(report.nodeid.rpartition("::")[2].partition("[")[0])
            self.why.append(str(report.longrepr))


@pytest.fixture
def kit(monkeypatch):
    """The options and the environment in which the kit is run for a class of faults.py."""

    def prepare(name):
        folders = [str(INSTALLED), str(PLUGINS)]
        path = [*folders, *filter(None, [os.environ.get("PYTHONPATH")])]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
        for folder in folders:
            monkeypatch.syspath_prepend(folder)
        monkeypatch.delenv("DLBRIDGE_FAKE_SHARED", raising=False)
        monkeypatch.setenv("DLBRIDGE_FAKE_DELAY_US", "1" if ALL[name].late else "0")
        # The sound one of dlbridge-fake would recognise native objects of the same class.
        monkeypatch.setenv("DLBRIDGE_BACKENDS", "cpu,faulty")
        monkeypatch.setenv("DLBRIDGE_EXPECT", "faulty")
        monkeypatch.setenv("DLBRIDGE_TEST_FAULT", name)
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        options = ["-q", "--tb=line", "-p", "no:cacheprovider", "--noconftest"]
        return [*options, "-c", os.devnull, "--rootdir", str(HERE), str(HERE / "kit_of_faults.py")]

    return prepare


def in_new_process(options):
    command = [sys.executable, "-m", "pytest", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS)
def test_the_kit_notices(fault, kit, monkeypatch):
    """The test that the table names fails; a sound backend passes it (the test below)."""
    test = FAULTS[fault].test
    options = kit(fault)
    monkeypatch.setenv("DLBRIDGE_TEST_ONLY", test)
    if FAULTS[fault].hangs:
        done = in_new_process(options)
        assert done.returncode == 1
        assert re.search(rf"{test}\S* does not end; its threads:", done.stderr), done.stderr
        return
    if FAULTS[fault].ends:
        done = in_new_process(options)
        assert (done.returncode, test in done.stdout) == (1, True), done.stdout
        return
    for name in ("faulty", "ext_dev"):
        monkeypatch.delitem(LOADED, name, raising=False)
    monkeypatch.delitem(sys.modules, "kit_of_faults", raising=False)
    seen = Run()
    pytest.main(["-x", *options], [seen])
    LOADED.pop("faulty", None)
    assert seen.collected
    assert seen.failed == {test}
    assert FAULTS[fault].says in seen.why[0]
    # The fault, and not a mistake in its code.
    assert not re.search(MISTAKES, seen.why[0]), seen.why[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", CORE_FAULTS)
def test_random_operations_notice(fault, kit, monkeypatch):
    """A fault that is not a backend's, by as many operations as the kit does by itself."""
    options = kit(CORE_FAULTS[fault].base)
    monkeypatch.setenv("DLBRIDGE_TEST_ONLY", "test_random_operations")
    monkeypatch.setenv(VARIABLE, fault)
    for name in ("DLBRIDGE_OPERATIONS", "DLBRIDGE_KIT_SEED"):
        monkeypatch.delenv(name, raising=False)
    done = in_new_process(["-p", "tests.testing.faulty.core_faults", *options])
    # Some are wrong addresses, and the process ends.
    assert done.returncode < 0 or "1 failed" in done.stdout, done.stdout + done.stderr
    assert not re.search(MISTAKES, done.stdout), done.stdout


# One whole kit each: two of them, and `make stress` has the others.
OFTEN = ("Pooled", "LateShared")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "sound",
    [
        name if name in OFTEN else pytest.param(name, marks=pytest.mark.stress)
        for name in (sound.__name__ for sound in SOUND)
    ],
)
def test_the_kit_passes_a_sound_backend(sound, kit):
    done = in_new_process(kit(sound))  # of its own, as the kit measures memory
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 200, done.stdout


def test_every_test_of_the_kit_finds_a_fault():
    tests = {name for name in dir(BackendTests) if name.startswith("test_")}
    assert tests == {fault.test for fault in FAULTS.values()}


def test_every_fault_says_what_its_author_did():
    assert [name for name, fault in FAULTS.items() if not fault.__doc__] == []
