"""A backend that opens a library when it is imported, which the kit must catch."""

import numpy  # noqa: F401 - its libraries stand for a driver's
from plugin_shared import Shared


class Heavy(Shared):
    pass
