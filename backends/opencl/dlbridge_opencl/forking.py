"""Refuse to use OpenCL in a forked child, and keep what the child inherits untouched.

The threads of a driver do not exist in a forked child, and its locks may be held
by threads that do not exist: PoCL 3.1 then waits for ever. Nothing here calls
the driver in a child, not even to release an object.
"""

from __future__ import annotations

import ctypes
import os
from typing import NoReturn, TypeVar

from dlbridge.errors import DeviceError

__all__ = ["forked", "in_child", "inherited", "keep", "never_released", "opening", "refuse"]

_Container = TypeVar("_Container")

_containers: list[object] = []
_opened = False
forked = False
"""Whether this process was forked after a driver had been opened."""


def opening() -> None:
    """Record that a driver is about to be called for the first time in this process."""
    global _opened
    _opened = True


def in_child() -> bool:
    """Whether this process was forked after a driver had been opened."""
    return forked


def refuse() -> NoReturn:
    """DeviceError for a use of OpenCL in a forked child."""
    raise DeviceError(
        "opencl: OpenCL cannot be used after os.fork(): use the device in the child only, or "
        "start processes with multiprocessing's 'spawn' method"
    )


def inherited(container: _Container) -> _Container:
    """Register *container*: a forked child never releases the OpenCL objects inside it."""
    _containers.append(container)
    return container


def keep() -> None:
    """Never release what is in the registered containers, nor when the process ends."""
    for container in _containers:
        never_released(container)


def never_released(container: _Container) -> _Container:
    """*container*, which lives for ever from now on, with what is put into it."""
    # A deliberate extra reference: interpreters that end clear their modules.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(container))
    return container


def _after_fork() -> None:
    global forked
    if _opened:
        forked = True
        keep()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
