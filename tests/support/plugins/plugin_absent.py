"""A backend whose driver this machine lacks."""

from dlbridge.errors import BackendUnavailable


class Backend:
    def __init__(self):
        raise BackendUnavailable("libabsent.so.1 not found; install the driver from absent.example")
