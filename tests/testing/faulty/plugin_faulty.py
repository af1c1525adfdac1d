"""The backend "faulty": the simulated device with the fault that the environment names."""

import os

NAME = os.environ.get("DLBRIDGE_TEST_FAULT", "Sound")

if NAME == "DriverImportedWithTheModule":
    import slow_driver  # noqa: F401 - the fault


def __getattr__(name):
    # Late, because the module is loaded once and the environment changes.
    if name != "Faulty":
        raise AttributeError(name)
    import faults

    return getattr(faults, os.environ.get("DLBRIDGE_TEST_FAULT", "Sound"))
