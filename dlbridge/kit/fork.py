"""Fork guard: GPU drivers do not survive ``fork()``, and a child is told so."""

from __future__ import annotations

import ctypes
import os

from dlbridge.errors import DeviceError

__all__ = ["ForkGuard"]


class ForkGuard:
    """Knows whether this process is a child, made by ``fork()`` after the driver was opened.

    Parameters
    ----------
    api : str
        The driver's name, for the message.
    *keeps : object
        What a child never releases, not even when it ends: objects whose destructors call the
        driver, which may wait there for threads that only the parent has.
    """

    def __init__(self, api: str, *keeps: object) -> None:
        self._api = api
        self._keeps = keeps
        self.in_child = False
        """Whether the driver was opened by a parent of this process."""
        if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
            os.register_at_fork(after_in_child=self._forked)

    def check(self) -> None:
        """Refuse work in a child, before the driver is called.

        Raises
        ------
        dlbridge.errors.DeviceError
            In a child process.
        """
        if self.in_child:
            raise DeviceError(
                f"{self._api} does not survive fork(), and this process was made by it: start "
                "processes with 'spawn', or open the device in the child only"
            )

    def _forked(self) -> None:
        self.in_child = True
        # A deliberate extra reference: an interpreter that ends clears all modules.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._keeps))
