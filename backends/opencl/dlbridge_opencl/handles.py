"""Integers that are said to be OpenCL objects: told apart without calling OpenCL.

The first word of every object that a driver makes (platform, device, context,
queue, buffer, event) is the address of the driver's dispatch table: that is
how the ICD loader finds the driver (cl_khr_icd, "ICD dispatch table"). So an
integer is one of our drivers' objects if the word there is one of our
platforms' tables. Measured on PoCL 3.1, Oclgrind 21.10 and Intel 2026.2.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

from . import devices

__all__ = ["dispatch", "is_object", "word_at"]

POINTER_SIZE = ctypes.sizeof(ctypes.c_void_p)
FIRST_PAGE = 4096
"""No object lies below: small integers are counters, flags or mistakes."""


def is_object(handle: int) -> bool:
    """Whether *handle* is an object of one of our platforms' drivers, and may be memory or a queue.

    Platforms, devices and the contexts that we know are not: PoCL 3.1 ends the
    process if it is asked to retain one as a queue. No other kind can be told
    apart before the driver looks.
    """
    if handle in _roots() or handle in devices.contexts():
        return False
    return word_at(handle) in dispatch()


@functools.cache
def _roots() -> frozenset[int]:
    """The handles of our platforms and devices."""
    found = [devices.device(i).handle for i in range(devices.device_count())]
    return frozenset(obj.int_ptr for device in found for obj in (device, device.platform))


@functools.cache
def dispatch() -> frozenset[int]:
    """The dispatch tables of the platforms in use."""
    words = {word_at(devices.device(i).handle.int_ptr) for i in range(devices.device_count())}
    return frozenset(word for word in words if word is not None)


def word_at(address: int) -> int | None:
    """The pointer-sized word at *address*; None if it cannot be one of a driver's objects.

    Where the system lets a process read its own memory as a file, an address
    that is not mapped is None, too, and no crash.
    """
    if address < FIRST_PAGE or address >> (8 * POINTER_SIZE) or address % POINTER_SIZE:
        return None
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, AttributeError):  # not Linux, or not allowed
        return ctypes.c_size_t.from_address(address).value
    try:
        return int.from_bytes(os.pread(memory, POINTER_SIZE, address), sys.byteorder)
    except (OSError, OverflowError):  # not mapped; beyond what a file offset can be
        return None
    finally:
        os.close(memory)
