"""Run OpenCL's tests with three drivers in one process: for the Makefile.

Debian's PoCL, PoCL's wheel and Oclgrind. The wheel goes to a folder of its own: in the
environment it would be beside the driver of this machine in every other test, too. It is of 2022 and
builds nothing for a CPU that its LLVM does not know: Intel's CPU runtime, which the tests of oneAPI
bring, takes its place there.
By default these are the tests of several platforms; `opencl_platforms.py backends/opencl/tests`
takes others, and `opencl_platforms.py make test` runs that command with the three drivers.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from dlbridge.diagnosis.trials import try_devices

WHEEL = "pocl-binary-distribution"
VERSIONS = Path(__file__).resolve().parent / "requirements.txt"
VENDORS = Path("/etc/OpenCL/vendors")
INTEL = Path(sys.prefix, "lib", "libintelocl.so")
TESTS = Path(__file__).resolve().parent.parent / "backends" / "opencl" / "tests"
THESE = (
    TESTS / "test_platforms.py",
    f"{TESTS / 'test_native.py'}::test_memory_and_queues_of_another_device_are_refused",
)


def works(driver: Path) -> bool:
    """Whether each device of the .icd file *driver* works; a line that says why, where one does not."""
    trials = try_devices("opencl", f"OCL_ICD_VENDORS={driver}")
    for trial in trials:
        if trial.state != "works":
            print(f"{driver.stem}: {trial.what}: {trial.said}")
    return all(trial.state == "works" for trial in trials)


def main() -> int:
    """The exit code of what was run; 1 where a driver is missing."""
    installed = [file for file in VENDORS.glob("*.icd") if "pocl" in file.read_text()]
    if not installed:
        print("PoCL is not installed: apt install pocl-opencl-icd")
        return 1
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        install = ["install", "-q", "--no-deps", "-c", str(VERSIONS)]
        install += ["--target", str(folder / "wheel"), WHEEL]
        if subprocess.run([sys.executable, "-m", "pip", *install], check=False).returncode:
            print(f"{WHEEL} does not install here")
            return 1
        (library,) = folder.glob("wheel/pyopencl/.libs/libpocl*.so*")
        vendors = folder / "vendors"
        vendors.mkdir()
        (vendors / "system.icd").write_text(installed[0].read_text())
        second = vendors / "wheel.icd"
        second.write_text(str(library))
        if not works(second):
            second.unlink()
            (vendors / "intel.icd").write_text(str(INTEL))
        # pyopencl's loader always lists Oclgrind's wheel.
        variables = {"OCL_ICD_VENDORS": str(vendors), "DLBRIDGE_OPENCL_PLATFORMS": "3"}
        expected = {*os.environ.get("DLBRIDGE_EXPECT", "").split(","), "opencl"} - {""}
        variables["DLBRIDGE_EXPECT"] = ",".join(sorted(expected))
        command = sys.argv[1:]
        if command[:1] != ["make"]:
            these = command or ["-m", "exhaustive or not exhaustive", *map(str, THESE)]
            command = [sys.executable, "-m", "pytest", "-q", *these]
        environment = {**os.environ, **variables}
        return subprocess.run(command, env=environment, check=False).returncode


sys.exit(main())
