"""What `make test` and `make demo` do when OpenCL drivers of the machine appear or go."""

from __future__ import annotations

import os
import subprocess
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from dlbridge.diagnosis.trials import Trial

ROOT = Path(__file__).resolve().parents[1]
SPEC = spec_from_file_location("opencl_driver", ROOT / "tests/opencl_driver.py")
opencl_driver = module_from_spec(SPEC)
SPEC.loader.exec_module(opencl_driver)
ON_POCL = Trial("opencl:0 (cpu, Portable Computing Language)", "works", "")
ON_OCLGRIND = Trial("opencl:0 (Oclgrind Simulator, Oclgrind)", "works", "")
POCL, OCLGRIND = opencl_driver.WHEELS.values()


@pytest.fixture
def machine(tmp_path):
    """A folder of drivers, and an environment that was made for what is in it now."""
    (tmp_path / "vendors").mkdir()
    (tmp_path / "venv").mkdir()
    for name in (".base", ".test"):
        (tmp_path / "venv" / name).touch()
    return tmp_path


def looks_for_a_driver(machine, target):
    """Whether make would call opencl_driver.py; if so, what that leaves behind is made."""
    settings = [f"VENV={machine / 'venv'}", f"OCL_ICD_VENDORS={machine / 'vendors'}"]
    command = ["make", "-n", target, *settings]
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    if not any(line.endswith("tests/opencl_driver.py") for line in lines):
        return False
    (removed,) = (line for line in lines if line.startswith("rm -f") and ".opencl-" in line)
    for old in machine.glob(f"venv/{Path(removed.split()[-1]).name}"):
        old.unlink()
    (made,) = (line for line in lines if line.startswith("touch") and ".opencl-" in line)
    Path(made.split()[-1]).touch()
    return True


@pytest.mark.parametrize("target", ["demo", "test-core"])
def test_a_driver_that_appears_or_goes_is_seen(machine, target):
    file = machine / "vendors" / "pocl.icd"
    assert looks_for_a_driver(machine, target)
    assert not looks_for_a_driver(machine, target)
    file.touch()
    os.utime(file, (0, 0))  # a package's file is older than the environment
    assert looks_for_a_driver(machine, target)
    assert not looks_for_a_driver(machine, target)
    file.rename(file.with_name("nvidia.icd"))
    assert looks_for_a_driver(machine, target)
    (machine / "vendors" / "nvidia.icd").unlink()
    assert looks_for_a_driver(machine, target)
    assert not looks_for_a_driver(machine, target)


@pytest.fixture
def wheels(monkeypatch, machine):
    """``wheels(installed, driver)``: those that are installed after opencl_driver.py."""

    def after(installed, driver, works=(POCL, OCLGRIND)):
        here = set(installed)

        def pip(command, *arguments):
            (here.add if command == "install" else here.discard)(arguments[-1])
            return True

        def tried(_name):
            trials = [ON_POCL] if driver or POCL in here & set(works) else []
            trials += [ON_OCLGRIND] if OCLGRIND in here & set(works) else []
            return tuple(trials or [Trial("opencl", "unavailable", "no driver was found")])

        tried.cache_clear = lambda: None
        if driver:
            (machine / "vendors" / "pocl.icd").touch()
        monkeypatch.setenv("OCL_ICD_VENDORS", str(machine / "vendors"))
        monkeypatch.setattr(opencl_driver, "pip", pip)
        monkeypatch.setattr(opencl_driver, "try_devices", tried)
        opencl_driver.main()
        return here

    return after


def test_pocls_wheel_goes_when_the_machine_has_a_driver(wheels):
    assert wheels({POCL, OCLGRIND}, driver=True) == {OCLGRIND}


def test_pocls_wheel_comes_when_the_driver_has_gone_though_oclgrind_works(wheels):
    assert wheels({OCLGRIND}, driver=False) == {POCL, OCLGRIND}


def test_oclgrind_is_the_last_choice(wheels):
    assert wheels(set(), driver=False, works=(OCLGRIND,)) == {OCLGRIND}
    assert wheels(set(), driver=False, works=()) == set()
