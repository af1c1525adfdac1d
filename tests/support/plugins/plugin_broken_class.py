"""Backends that are broken in every way but that of their module."""

import sys

from plugin_shared import Shared


class Backend:
    def __init__(self):
        raise RuntimeError("boom")


class Exits:
    def __init__(self):
        sys.exit("no licence")


class Half:
    api = 2
    device_type = 12
    device_count = Shared.device_count


class NeedsArguments(Shared):
    def __init__(self, device):
        pass
