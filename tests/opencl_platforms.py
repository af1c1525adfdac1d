"""Run OpenCL's tests with three drivers in one process: for the Makefile.

Debian's PoCL, PoCL's wheel and Oclgrind. The wheel goes to a folder of its own: in the
environment it would be beside the driver of this machine in every other test, too.
By default these are the tests of several platforms; `opencl_platforms.py backends/opencl/tests`
takes others, and `opencl_platforms.py make test` runs that command with the three drivers.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

WHEEL = "pocl-binary-distribution"
VERSIONS = Path(__file__).resolve().parent / "requirements.txt"
VENDORS = Path("/etc/OpenCL/vendors")
TESTS = Path(__file__).resolve().parent.parent / "backends" / "opencl" / "tests"
THESE = (
    TESTS / "test_platforms.py",
    f"{TESTS / 'test_native.py'}::test_memory_and_queues_of_another_device_are_refused",
)


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
        (vendors / "wheel.icd").write_text(str(library))
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
