"""The tests run on drivers that work: those of which a device fails its trial are left out.

Called before the first test, by the conftest of each folder, with the backends that matter there.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor

import dlbridge
from dlbridge.diagnosis.trials import FAILED, try_devices, way_out

__all__ = ["leave_out", "why_left_out"]

_REASONS = "TESTS_LEAVE_OUT"
"""Environment variable, for the processes of pytest-xdist and of tests: backend -> why."""


def leave_out(*names: str) -> None:
    """Set the environment so that no driver is used of which a device of *names* fails.

    The backend goes on with a driver that works, or is left out as a whole.
    """
    if _REASONS in os.environ:
        return
    here = [name for name in names if name in dlbridge.backends()]
    with ThreadPoolExecutor(len(here) or 1) as threads:  # which wait for processes
        tried = dict(zip(here, threads.map(try_devices, here), strict=True))
    reasons, without = {}, []
    for name, trials in tried.items():
        failing = [trial for trial in trials if trial.state in FAILED]
        if not failing:
            continue
        variable, _, value = way_out(name).partition("=")
        print(f"{failing[0].what}: {failing[0].said}\nthe tests run with {variable}={value}")
        if variable == "DLBRIDGE_BACKENDS":
            without.append(value)
            reasons[name] = f"{name}: {failing[0].what} fails: {failing[0].said}"
        else:
            os.environ[variable] = value
    if without:
        os.environ["DLBRIDGE_BACKENDS"] = ",".join(without)
    os.environ[_REASONS] = json.dumps(reasons)


def why_left_out(name: str) -> str:
    """Why the backend *name* is left out; empty if it is not."""
    return json.loads(os.environ.get(_REASONS, "{}")).get(name, "")
