"""The backend "faulty": the simulated device with the fault that the environment names."""

import os

NAME = os.environ.get("DLBRIDGE_TEST_FAULT", "Sound")

if NAME == "DriverImportedWithTheModule":
    import slow_driver  # noqa: F401 - the fault
elif NAME == "ImportStartsAThread":
    import threading
    import time

    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
elif NAME == "ImportOpensASocket":
    import socket

    CONNECTION = socket.socket()
elif NAME == "ImportAsksAServer":
    import contextlib
    import socket

    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", 9), 1).close()


def chosen():
    """The class that the environment names now: the module is loaded once."""
    from tests.testing.faulty import faults

    name = os.environ.get("DLBRIDGE_TEST_FAULT", "Sound")
    return faults.FAULTS.get(name) or getattr(faults, name)


def __getattr__(name):
    if name != "Faulty":
        raise AttributeError(name)
    return chosen()
