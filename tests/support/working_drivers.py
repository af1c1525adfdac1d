"""The tests run on drivers that work: those of which a device fails its trial are left out.

Called before the first test, by the conftest of each folder, with the backends that matter there.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor

import dlbridge
from dlbridge.diagnosis.trials import FAILED, try_devices, way_out

_REASONS = "TESTS_LEAVE_OUT"
"""Environment variable, for the processes of pytest-xdist and of tests: backend -> why."""


SIMULATOR = ", Oclgrind)"
"""The end of `Trial.what`: it is numbered last, so that it is device 0 where there is no other."""


def leave_out(*names: str, simulators: bool = True) -> None:
    """Set the environment so that no driver is used of which a device of *names* fails.

    The backend goes on with a driver that works, or is left out as a whole; so it is without
    *simulators*, where there is nothing else.
    """
    if _REASONS in os.environ:
        return
    here = [name for name in names if name in dlbridge.backends()]
    with ThreadPoolExecutor(len(here) or 1) as threads:  # which wait for processes
        tried = dict(zip(here, threads.map(try_devices, here), strict=True))
    reasons, without = {}, []
    for name, trials in tried.items():
        failing = [trial for trial in trials if trial.state in FAILED]
        reason = setting = ""
        if failing:
            setting = way_out(name)
            print(f"{failing[0].what}: {failing[0].said}\nthe tests run with {setting}")
            variable, _, value = setting.partition("=")
            if variable == "DLBRIDGE_BACKENDS":
                reason = f"{failing[0].what} fails: {failing[0].said}"
            else:
                os.environ[variable] = value
        first = try_devices(name, setting)[0].what
        if not reason and not simulators and first.endswith(SIMULATOR):
            reason = f"{first} is a simulator"
        if reason:
            without.append(f"-{name}")
            reasons[name] = f"{name}: {reason}"
    if without:
        os.environ["DLBRIDGE_BACKENDS"] = ",".join(without)
    os.environ[_REASONS] = json.dumps(reasons)


def why_left_out(name: str) -> str:
    """Why the backend *name* is left out; empty if it is not."""
    return json.loads(os.environ.get(_REASONS, "{}")).get(name, "")
